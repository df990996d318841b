"""The only place that touches the operating system.

Everything the log does to a disk goes through one `FileSystem` object, so that tests can put a disk in its place that
forgets what was not synced, or fails at the n-th call. Methods are as thin as can be: one system call each, offsets
given, errors as plain OSError. A handle is the file descriptor as an int and means nothing outside its FileSystem.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
"""What can be written: contiguous bytes."""

BUFFERS_MAX = 1024
"""Buffers that one write may carry (IOV_MAX of Linux)."""


class FileSystem(Protocol):
    """What the log asks of a disk. `path` is a name under the log's directory or the directory itself."""

    def make_directory(self, path: str) -> None:
        """Create *path*, private to the owner (0700); FileExistsError, FileNotFoundError for a missing parent."""

    def names(self, path: str) -> list[str]:
        """List a directory."""

    def open_directory(self, path: str) -> int:
        """Open a directory for `sync_directory` (NotADirectoryError for a file)."""

    def create(self, path: str) -> int:
        """Make an empty file (0600) that must not exist, open for reading and writing."""

    def open(self, path: str, *, write: bool = True) -> int:
        """Open a file that exists; IsADirectoryError for a directory, also where it is only read."""

    def close(self, handle: int) -> None:
        """Close a handle. Never raises: nothing that matters waits for close."""

    def size(self, handle: int) -> int:
        """Return the file's length in bytes."""

    def links(self, handle: int) -> int:
        """Return how many names the file has: 0 once it is removed, 2 or more where a hard link shares its bytes."""

    def capacity_of(self, handle: int) -> int:
        """Return the size of the whole file system that the file or directory is on; 0 where it does not say."""

    def is_alone(self, handle: int) -> bool:
        """Tell whether nobody else has the file open. False where the system cannot say."""

    def mode(self, path: str) -> int:
        """Return the permission bits."""

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """Read up to *length* bytes; fewer only at the end of the file."""

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most `BUFFERS_MAX` buffers at *offset*; return the bytes taken, which may be fewer."""

    def reserve(self, handle: int, offset: int, length: int) -> None:
        """Make sure that *length* bytes from *offset* have space, growing the file if need be. Reads as zeros."""

    def cut(self, handle: int, size: int) -> None:
        """Set the file's length, giving back what lies behind."""

    def sync(self, handle: int) -> None:
        """Wait until content and size are on the medium."""

    def sync_directory(self, handle: int) -> None:
        """Wait until the directory's entries are on the medium."""

    def forget_cache(self, handle: int) -> None:
        """Drop clean pages, so that the next read asks the medium."""

    def rename(self, old: str, new: str) -> None:
        """Give a file its new name in one step."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name (FileExistsError where it is taken); both names share its bytes."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; the file goes with its last name and its last handle."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def lock(self, path: str) -> int:
        """Take the exclusive lock on *path*, creating the file; BlockingIOError if somebody holds it.

        The lock that is returned is on the file that *path* names then, also if it was replaced meanwhile.
        """


_statx = getattr(ctypes.CDLL(None), "statx", None)
_AT_EMPTY_PATH, _STATX_NLINK = 0x1000, 0x4
_Statx = ctypes.c_char * 256

_locks: set[int] = set()
_fork_guard = threading.Lock()
"""No fork falls between taking a lock and noting it: every lock that a child inherits is known to `_drop_locks`."""


def _drop_locks() -> None:
    """In a forked child: close its copies of this process's locks, or they would be held when the parent lets go."""
    for handle in _locks:
        os.close(handle)
    _locks.clear()
    _fork_guard.release()


os.register_at_fork(before=_fork_guard.acquire, after_in_parent=_fork_guard.release, after_in_child=_drop_locks)


class OsFileSystem:
    """The real disk, through the `os` module."""

    def make_directory(self, path: str) -> None:
        """See `FileSystem`."""
        os.mkdir(path, mode=0o700)

    def names(self, path: str) -> list[str]:
        """See `FileSystem`."""
        return os.listdir(path)

    def open_directory(self, path: str) -> int:
        """See `FileSystem`."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        """See `FileSystem`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str, *, write: bool = True) -> int:
        """See `FileSystem`."""
        handle = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)
        if stat.S_ISDIR(os.fstat(handle).st_mode):  # to be read, a directory opens as well
            os.close(handle)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return handle

    def close(self, handle: int) -> None:
        """See `FileSystem`."""
        _locks.discard(handle)
        with contextlib.suppress(OSError):
            os.close(handle)

    def size(self, handle: int) -> int:
        """See `FileSystem`."""
        return os.fstat(handle).st_size

    def links(self, handle: int) -> int:
        """See `FileSystem`.

        Asks for nothing but the number: once somebody has seen a file's times, Linux (6.13 and later) gives the next
        write a new one, and the sync behind that write takes a quarter longer.
        """
        if _statx is not None:
            found = bytearray(256)
            if _statx(handle, b"", _AT_EMPTY_PATH, _STATX_NLINK, _Statx.from_buffer(found)) == 0:
                return int.from_bytes(found[16:20], sys.byteorder)
        return os.fstat(handle).st_nlink

    def capacity_of(self, handle: int) -> int:
        """See `FileSystem`."""
        found = os.fstatvfs(handle)
        return found.f_blocks * found.f_frsize

    def is_alone(self, handle: int) -> bool:
        """See `FileSystem`. Linux grants a write lease only on a file that nobody else has open, mappings included."""
        if sys.platform != "linux":
            return False
        try:
            # An open that had found the name before it was removed breaks the lease, and that sends a signal: SIGIO,
            # which would end the process, unless told otherwise. SIGURG is ignored by default.
            fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return False
        return True

    def mode(self, path: str) -> int:
        """See `FileSystem`."""
        return os.stat(path).st_mode & 0o7777

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """See `FileSystem`."""
        return os.pread(handle, length, offset)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See `FileSystem`."""
        return os.pwritev(handle, buffers, offset)

    def reserve(self, handle: int, offset: int, length: int) -> None:
        """See `FileSystem`."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, offset, length)
            return
        _reserve_by_writing(handle, offset, length)

    def cut(self, handle: int, size: int) -> None:
        """See `FileSystem`."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """See `FileSystem`. macOS flushes the drive's cache only when asked by name."""
        if sys.platform == "darwin":
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)

    def sync_directory(self, handle: int) -> None:
        """See `FileSystem`. A full fsync: fdatasync need not wait for a change of entries alone."""
        os.fsync(handle)

    def forget_cache(self, handle: int) -> None:
        """See `FileSystem`."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: str, new: str) -> None:
        """See `FileSystem`."""
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """See `FileSystem`."""
        os.link(old, new)

    def unlink(self, path: str) -> None:
        """See `FileSystem`."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """See `FileSystem`."""
        os.rmdir(path)

    def lock(self, path: str) -> int:
        """See `FileSystem`. flock belongs to the open file: it dies with the process and no other close releases it."""
        with _fork_guard:
            handle = self._lock(path)
            _locks.add(handle)
            return handle

    def _lock(self, path: str) -> int:
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_named(handle, path):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            # Somebody replaced the file between open and flock: this lock excludes nobody.
            os.close(handle)


def write_all(files: FileSystem, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write every buffer, going on after a short write; OSError(EIO) if the disk takes nothing."""
    for group in range(0, len(buffers), BUFFERS_MAX):
        rest = list(buffers[group : group + BUFFERS_MAX])
        total = sum(map(len, rest))
        while total:
            taken = files.write(handle, rest, offset)
            if taken <= 0:
                raise OSError(errno.EIO, "the disk accepts no bytes")
            offset += taken
            total -= taken
            if total:
                rest = _behind(rest, taken)


def read_exact(files: FileSystem, handle: int, length: int, offset: int) -> bytes:
    """Read *length* bytes, fewer only where the file ends."""
    piece = files.read(handle, length, offset)
    if len(piece) == length or not piece:
        return piece
    pieces = [piece]
    have = len(piece)
    while have < length:
        piece = files.read(handle, length - have, offset + have)
        if not piece:
            break
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def _is_named(handle: int, path: str) -> bool:
    """Tell whether *path* still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _behind(buffers: list[Buffer], taken: int) -> list[Buffer]:
    for index, buffer in enumerate(buffers):
        if taken < len(buffer):
            return [memoryview(buffer)[taken:], *buffers[index + 1 :]]
        taken -= len(buffer)
    return []


def _reserve_by_writing(handle: int, offset: int, length: int) -> None:
    """Write zeros where the system has no posix_fallocate, behind the present end only."""
    size = os.fstat(handle).st_size
    at, end = max(offset, size), offset + length
    while at < end:
        at += os.pwrite(handle, bytes(min(1 << 20, end - at)), at)
