"""The real disk: with `os_locks`, the only place of the log that calls the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from mrecordlog_async.storage.filesystem import Buffer, FileSystem
from mrecordlog_async.storage.os_locks import HELD_LOCKS, release_lock, take_lock
from mrecordlog_async.support.disk_errors import NoInodesError, is_refusal

try:
    import fcntl
except ImportError:
    IS_POSIX = False  # Windows, where clients import this module; no log opens there
else:
    IS_POSIX = True

_library = ctypes.CDLL(None, use_errno=True) if IS_POSIX else None
_statx = getattr(_library, "statx", None)
_AT_EMPTY_PATH, _STATX_NLINK = 0x1000, 0x4
_Statx = ctypes.c_uint32 * 64
_NLINK_AT = 4  # the fifth of its 32-bit words
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_ATTRIBUTES = slice(8, 16)  # in bytes
_MOUNT_ROOT = 0x2000

_fstatfs = getattr(_library, "fstatfs", None)
_Statfs = ctypes.c_char * 512  # more than struct statfs has on any system
_F_TYPE_BYTES = ctypes.sizeof(ctypes.c_long)
_RECYCLING = {0xEF53: "ext4", 0x58465342: "XFS"}
"""By the number that statfs(2) reports; ext4's is also that of ext2 and ext3, which its driver serves."""

_FADV_DONTNEED = getattr(os, "POSIX_FADV_DONTNEED", 0)
_RWF_DSYNC = getattr(os, "RWF_DSYNC", 0)
_O_DIRECT = getattr(os, "O_DIRECT", 0) if _RWF_DSYNC else 0

_IOCB = struct.Struct("<QIIHhIQQqQII")
"""A write for io_submit(2): a number for its result, the call, the handle, memory, length and offset."""
_IO_EVENT = struct.Struct("<QQqq")
"""The result of a write: its number first, and third the bytes taken or -errno."""
_IOCB_CMD_PWRITE = 1
_IO_SETUP, _IO_DESTROY, _IO_GETEVENTS, _IO_SUBMIT = range(4)
_AIO_CALLS: Mapping[str, tuple[int, int, int, int]] = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of these system calls, which the C library has no functions for, by the machine."""
_aio_numbers = _AIO_CALLS.get(os.uname().machine) if sys.platform == "linux" and sys.maxsize > 2**32 else None
_syscall = getattr(_library, "syscall", None)
if _syscall is not None:
    _syscall.restype = ctypes.c_long


class OsFileSystem:
    """The real disk, through the `os` module."""

    def __init__(self) -> None:
        """Raise OSError on a system that is not POSIX."""
        if not IS_POSIX:
            raise OSError(
                "a log needs a POSIX system such as Linux, to lock and sync its directory; run `mrecordlog serve` on "
                "one, and use RecordLogClient here"
            )

    def make_directory(self, path: str) -> None:
        """See `FileSystem`."""
        with _naming_inodes(path):
            os.mkdir(path, mode=0o700)
        if os.geteuid() == 0:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _give(handle, _parent(path))
            finally:
                os.close(handle)

    def list_names(self, path: str) -> list[str]:
        """See `FileSystem`."""
        return os.listdir(path)

    def open_directory(self, path: str) -> int:
        """See `FileSystem`."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, path: str) -> int:
        """See `FileSystem`."""
        return _create(path)

    def give_to_owner_of(self, path: str, handle: int) -> None:
        """See `FileSystem`."""
        _give(handle, path)

    def open(self, path: str, *, write: bool = True) -> int:
        """See `FileSystem`."""
        # O_NONBLOCK: a pipe of this name would keep its opener waiting.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | flags)
        if stat.S_ISDIR(os.fstat(handle).st_mode):  # open(2) accepts a directory for reading
            os.close(handle)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return handle

    def close(self, handle: int) -> None:
        """See `FileSystem`."""
        if handle in HELD_LOCKS:
            release_lock(handle)
        with contextlib.suppress(OSError):
            os.close(handle)

    def size(self, handle: int) -> int:
        """See `FileSystem`."""
        return os.fstat(handle).st_size

    def links(self, handle: int) -> int:
        """See `FileSystem`.

        Requests only the link count: once a file's timestamps were read, Linux (6.13 and later) updates them at the
        next write, and the sync after that write takes a quarter longer.
        """
        if _statx is not None:
            found = _Statx()
            if _statx(handle, b"", _AT_EMPTY_PATH, _STATX_NLINK, found) == 0:
                return int(found[_NLINK_AT])
        return os.fstat(handle).st_nlink

    def space_of(self, handle: int) -> tuple[int, int]:
        """See `FileSystem`."""
        try:
            found = os.fstatvfs(handle)
        except OSError as error:
            if not is_refusal(error):
                raise
            return 0, 0
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def recycles(self, handle: int) -> bool:
        """See `FileSystem`. fstatfs(2) names the file system; an overlay has its own number and is not recycled on."""
        if sys.platform != "linux" or _fstatfs is None:
            return False
        found = bytearray(ctypes.sizeof(_Statfs))
        if _fstatfs(handle, _Statfs.from_buffer(found)) != 0:
            return False
        return int.from_bytes(found[:_F_TYPE_BYTES], sys.byteorder) in _RECYCLING

    def is_alone(self, handle: int) -> bool:
        """See `FileSystem`. Linux grants a write lease only on a file that nobody else has open, mappings included."""
        if sys.platform != "linux":
            return False
        try:
            # An open that resolved the name before it was removed breaks the lease, which sends a signal: by default
            # SIGIO, which would kill the process. SIGURG is ignored by default.
            fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return False
        return True

    def is_at(self, handle: int, path: str) -> bool:
        """See `FileSystem`."""
        try:
            return os.path.samestat(os.fstat(handle), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_replaceable(self, path: str) -> bool:
        """See `FileSystem`. A mount of a directory of the same file system is recognized on Linux, from 5.8 on."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return True
        is_mounted = found.st_dev != os.stat(os.path.dirname(path)).st_dev or _is_mount_root(path)
        return not stat.S_ISLNK(found.st_mode) and not is_mounted

    def mode(self, path: str) -> int:
        """See `FileSystem`."""
        return os.stat(path).st_mode & 0o7777

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """See `FileSystem`."""
        return os.pread(handle, length, offset)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See `FileSystem`. Python makes this call pwritev2, which sandboxes refuse that do not know it."""
        try:
            return os.pwritev(handle, buffers, offset)
        except OSError as error:
            if not is_refusal(error):
                raise
            return os.pwrite(handle, buffers[0] if len(buffers) == 1 else b"".join(buffers), offset)

    def set_direct(self, handle: int, direct: bool) -> None:
        """See `FileSystem`. Only Linux has O_DIRECT and RWF_DSYNC; some sandboxes have only the first."""
        if not _O_DIRECT:
            raise OSError(errno.EINVAL, "this system has no O_DIRECT")
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        if direct:
            os.pwritev(handle, [b""], 0, _RWF_DSYNC)  # writes nothing; fails where the flag is not known
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | _O_DIRECT if direct else flags & ~_O_DIRECT)

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        """See `FileSystem`. Python makes this call preadv2; see `write`."""
        try:
            return os.preadv(handle, [buffer], offset)
        except OSError as error:
            if not is_refusal(error):
                raise
            found = os.pread(handle, len(buffer), offset)
            buffer[: len(found)] = found
            return len(found)

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See `FileSystem`."""
        return os.pwritev(handle, buffers, offset, _RWF_DSYNC)

    def open_writes(self, most: int) -> int:
        """See `FileSystem`. Linux's own asynchronous I/O, which containers allow where they block io_uring."""
        context = ctypes.c_ulong(0)
        _call_aio(_IO_SETUP, most, ctypes.addressof(context))
        try:
            # Of no writes: a sandbox that refuses this call must do so before there is a result to wait for.
            _call_aio(_IO_GETEVENTS, context.value, 0, 0, 0, 0)
        except OSError:
            self.close_writes(context.value)
            raise
        return context.value

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        """See `FileSystem`. The kernel copies the description of the write, and holds the pages of *buffer*."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        iocb = _IOCB.pack(offset, 0, 0, _IOCB_CMD_PWRITE, 0, handle, address, len(buffer), offset, 0, 0, 0)
        described = ctypes.create_string_buffer(iocb, _IOCB.size)
        pointer = ctypes.c_void_p(ctypes.addressof(described))
        _call_aio(_IO_SUBMIT, writes, 1, ctypes.addressof(pointer))

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        """See `FileSystem`."""
        taken: dict[int, int] = {}
        events = bytearray(_IO_EVENT.size * count)
        address = ctypes.addressof(ctypes.c_char.from_buffer(events)) if count else 0
        while len(taken) < count:
            rest = count - len(taken)
            try:
                ended = _call_aio(_IO_GETEVENTS, writes, rest, rest, address, 0)
            except InterruptedError:  # a signal: this call is not in the table of those that Python repeats
                continue
            found = _IO_EVENT.iter_unpack(events[: ended * _IO_EVENT.size])
            taken |= {offset: result for offset, _, result, _ in found}
        return taken

    def close_writes(self, writes: int) -> None:
        """See `FileSystem`."""
        with contextlib.suppress(OSError):
            _call_aio(_IO_DESTROY, writes)

    def reserve(self, handle: int, offset: int, length: int) -> None:
        """See `FileSystem`. Where the file system does not support it, glibc writes a byte into each block itself."""
        try:
            os.posix_fallocate(handle, offset, length)
        except AttributeError:  # macOS has no such call
            _reserve_by_writing(handle, offset, length)
        except OSError as error:
            if not is_refusal(error):
                raise
            is_direct = bool(fcntl.fcntl(handle, fcntl.F_GETFL) & _O_DIRECT)
            if is_direct:  # which refuses writes from memory that is not aligned
                self.set_direct(handle, False)
            try:
                _reserve_by_writing(handle, offset, length)
            finally:
                if is_direct:
                    self.set_direct(handle, True)

    def set_size(self, handle: int, size: int) -> None:
        """See `FileSystem`."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """See `FileSystem`."""
        if sys.platform == "darwin":  # has no fdatasync
            full_sync(handle)
        else:
            os.fdatasync(handle)

    def sync_directory(self, handle: int) -> None:
        """See `FileSystem`. A full fsync: fdatasync may skip a change that affects only directory entries."""
        full_sync(handle)

    def drop_cache(self, handle: int) -> None:
        """See `FileSystem`."""
        drop_cache(handle)

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

    def note(self, directory: int, name: str, text: bytes, *, aside: bool) -> None:
        """See `FileSystem`. *aside*, in a thread that no exit waits for: the disk may hang."""
        if not aside:
            _note(directory, name, text)
            return
        with contextlib.suppress(OSError, RuntimeError):  # no descriptor, no thread
            threading.Thread(target=_note_and_close, args=(os.dup(directory), name, text), daemon=True).start()

    def lock(self, path: str) -> int:
        """See `FileSystem`."""
        return take_lock(path, _create)


def _call_aio(call: int, *arguments: int) -> int:
    """Make one of the calls in `_AIO_CALLS`; OSError if it fails. The interpreter is free meanwhile."""
    if _aio_numbers is None or _syscall is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result = int(_syscall(*map(ctypes.c_long, (_aio_numbers[call], *arguments))))
    if result < 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
    return result


def makes_calls(files: FileSystem) -> bool:
    """Return whether *files* makes the system calls of a durable write itself, so that they may be made in its place.

    One that watches its calls, such as a test's, does not.
    """
    return (getattr(type(files), "links", None), getattr(type(files), "write_durable", None)) == _CALLS


_CALLS = OsFileSystem.links, OsFileSystem.write_durable


def _note_and_close(directory: int, name: str, text: bytes) -> None:
    try:
        _note(directory, name, text)
    finally:
        os.close(directory)


def _note(directory: int, name: str, text: bytes) -> None:
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                return
            os.unlink(name, dir_fd=directory)  # not its content: that may have another name, and another owner
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            _give(handle, directory)
            os.write(handle, text)
        finally:
            os.close(handle)


def _create(path: str) -> int:
    with _naming_inodes(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    _give(handle, _parent(path))
    return handle


@contextlib.contextmanager
def _naming_inodes(path: str) -> Iterator[None]:
    """Raise NoInodesError if *path* cannot be made because its file system has no inodes left."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            found = None
            with contextlib.suppress(OSError):
                found = os.statvfs(_parent(path))
            if found and found.f_files and not found.f_favail:  # no files at all: the file system counts none
                raise NoInodesError(path) from None
        raise


def _give(handle: int, like: str | int) -> None:
    """Have an open file belong to the owner of *like*, a path or a handle."""
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):  # a share, or a container whose root has no such right
        owner = os.stat(like)
        if owner.st_uid or owner.st_gid:
            os.fchown(handle, owner.st_uid, owner.st_gid)


def _parent(path: str) -> str:
    return os.path.dirname(path) or "."


def _is_mount_root(path: str) -> bool:
    """Return whether the kernel says that *path* is where something is mounted."""
    found = _Statx()
    if _statx is None or _statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, 0, found) != 0:
        return False
    return bool(int.from_bytes(bytes(found)[_ATTRIBUTES], sys.byteorder) & _MOUNT_ROOT)


def full_sync(handle: int) -> None:
    """Put an open file or directory on the medium, with everything about it. Raises OSError.

    On macOS, fsync leaves the bytes in the drive's cache, which a power cut empties; F_FULLFSYNC flushes that too. A
    file system without a drive, such as a network share, refuses it: there, fsync is all that can be asked for.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        except OSError as error:
            # After any other error pages may be lost, and an fsync would report success.
            if error.errno != errno.ENOTSUP:
                raise
        else:
            return
    os.fsync(handle)


def drop_cache(handle: int) -> None:
    """Drop an open file's clean pages from the page cache, on systems with a call for it that they do not refuse."""
    if hasattr(os, "posix_fadvise"):
        try:
            os.posix_fadvise(handle, 0, 0, _FADV_DONTNEED)
        except OSError as error:
            if not is_refusal(error):
                raise


def _reserve_by_writing(handle: int, offset: int, length: int) -> None:
    """Write what the file has there, holes included, and zeros after its end: then the disk has room for it."""
    at, end = offset, offset + length
    while at < end:
        size = min(1 << 20, end - at)
        taken = os.pwrite(handle, os.pread(handle, size, at).ljust(size, b"\0"), at)
        if taken <= 0:
            raise OSError(errno.EIO, "the disk accepts no bytes")
        at += taken
