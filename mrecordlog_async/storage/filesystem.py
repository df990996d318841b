"""The interface of file systems that the log needs, and reading and writing through it.

Everything the log does to a disk goes through one `FileSystem` object, so that tests can replace it with a disk that
loses unsynced data or fails at the n-th call. Methods are thin: one system call each, explicit offsets, errors as plain
OSError. A handle is the file descriptor as an int and means nothing outside its FileSystem. The real disk is
`os_filesystem`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
"""Anything that can be written: contiguous bytes."""

BUFFERS_MAX = 1024
"""Maximum number of buffers per write (IOV_MAX on Linux)."""

CALL_BYTES_MAX = 1 << 20
"""Maximum number of bytes per buffered write. Linux serves a larger one with cache pages of 2 MiB, which a virtual
machine must first request from its host: 2,371 µs per MiB instead of 147."""

DIRECT_BLOCK_BYTES = 4_096
"""Offsets, lengths and memory of direct reads and writes are multiples of this."""


class FileSystem(Protocol):
    """The file operations the log needs. `path` is a name under the log's directory or the directory itself.

    What root creates belongs to the owner of the directory that it is in: a command that root runs must not leave files
    in a log which the user of its service cannot open.
    """

    def make_directory(self, path: str) -> None:
        """Create *path*, private to the owner (0700); FileExistsError, FileNotFoundError for a missing parent."""

    def list_names(self, path: str) -> list[str]:
        """List a directory."""

    def open_directory(self, path: str) -> int:
        """Open a directory for `sync_directory` (NotADirectoryError for a file)."""

    def create(self, path: str) -> int:
        """Create an empty file (0600) and open it for reading and writing; FileExistsError if it exists."""

    def open(self, path: str, *, write: bool = True) -> int:
        """Open an existing file; IsADirectoryError for a directory, even if opened only for reading."""

    def close(self, handle: int) -> None:
        """Close a handle. Never raises: nothing depends on the result of close."""

    def size(self, handle: int) -> int:
        """Return the file's length in bytes."""

    def links(self, handle: int) -> int:
        """Return the file's link count: 0 once it is removed, 2 or more if a hard link shares its bytes."""

    def space_of(self, handle: int) -> tuple[int, int]:
        """Return the size of the file system that holds the file or directory, and what this user may still take of it.

        In bytes; zeros if it does not report them.
        """

    def recycles(self, handle: int) -> bool:
        """Return whether a file of this file system may be written again as another segment: ext4 and XFS only.

        There, blocks that were written before cost less to write than new ones. File systems that never write in place
        gain nothing, and of others it was not measured.
        """

    def is_alone(self, handle: int) -> bool:
        """Return whether nobody else has the file open; False if the system cannot tell."""

    def give_to_owner_of(self, path: str, handle: int) -> None:
        """Have an open file or directory belong to the owner and the group of *path*, if this user is root and may."""

    def is_at(self, handle: int, path: str) -> bool:
        """Return whether *path*, links followed, names the open file or directory."""

    def is_replaceable(self, path: str) -> bool:
        """Return False if *path* is a symbolic link or a mount point: a directory cannot be renamed over either."""

    def mode(self, path: str) -> int:
        """Return the permission bits."""

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """Read up to *length* bytes; fewer only at the end of the file."""

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most `BUFFERS_MAX` buffers at *offset*; return the bytes taken, which may be fewer."""

    def set_direct(self, handle: int, direct: bool) -> None:
        """Have later `read_into`, `write` and `write_durable` bypass the page cache, or not.

        Their offsets, lengths and the addresses of their memory must then be multiples of `DIRECT_BLOCK_BYTES`. Raises
        OSError if the file or the system cannot do it, or has no `write_durable`.
        """

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        """Read into *buffer*; return the bytes read, fewer only at the end of the file."""

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at *offset*; the bytes taken, and the size they need, are on the medium. Earlier ones may not be.

        Only for direct handles.
        """

    def open_writes(self, most: int) -> int:
        """Prepare for direct writes of which up to *most* are under way at once; return the number of the preparation.

        Raises OSError where the system has no such writes, does not allow them, or has no more of them to give.
        """

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        """Begin to write *buffer* at *offset* and return. Only for direct handles.

        Until `finish_writes` has returned, the buffer must keep its bytes, and the handle must stay open. Writes under
        way reach the medium in any order. Raises OSError if the write was not begun.
        """

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        """Wait until all of the *count* writes under way have ended; return the bytes that each one took, by offset.

        A negative number is that of an error (`-errno`). Whatever was written is on the medium after a `sync`.
        """

    def close_writes(self, writes: int) -> None:
        """Give back what `open_writes` prepared, after waiting for writes under way. Never raises."""

    def reserve(self, handle: int, offset: int, length: int) -> None:
        """Reserve space for *length* bytes from *offset*, growing the file if necessary. New bytes read as zeros."""

    def set_size(self, handle: int, size: int) -> None:
        """Set the file's length and free the space after it."""

    def sync(self, handle: int) -> None:
        """Wait until content and size are on the medium."""

    def sync_directory(self, handle: int) -> None:
        """Wait until the directory's entries are on the medium."""

    def drop_cache(self, handle: int) -> None:
        """Drop clean pages, so that the next read comes from the medium."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name (FileExistsError if it is taken); both names share its bytes."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; the file is deleted with its last name and its last handle."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def note(self, directory: int, name: str, text: bytes, *, aside: bool) -> None:
        """Replace the content of the small file *name* in an open directory, if that works: nothing depends on it.

        Never raises. aside: return at once, whatever the disk does.
        """

    def lock(self, path: str) -> int:
        """Take the exclusive lock on *path*, creating the file; BlockingIOError if the lock is held.

        Its errno is EALREADY if this process holds the lock, EAGAIN if another one does.
        The returned lock is always on the file that *path* names at that moment, even if it was replaced meanwhile.
        """


def write_all(files: FileSystem, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write every buffer, continuing after short writes; OSError(EIO) if a write makes no progress."""
    for rest in _calls(buffers):
        total = sum(map(len, rest))
        while total:
            taken = files.write(handle, rest, offset)
            if taken <= 0:
                raise OSError(errno.EIO, "the disk accepts no bytes")
            offset += taken
            total -= taken
            if total:
                rest = _after(rest, taken)


def _calls(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Yield the buffers of one call after the other: at most `BUFFERS_MAX` of them and `CALL_BYTES_MAX` bytes."""
    call: list[Buffer] = []
    room = CALL_BYTES_MAX
    for buffer in buffers:
        at, size = 0, len(buffer)
        while size - at > room:
            yield [*call, memoryview(buffer)[at : at + room]]
            at += room
            call, room = [], CALL_BYTES_MAX
        call.append(memoryview(buffer)[at:] if at else buffer)
        room -= size - at
        if len(call) == BUFFERS_MAX:
            yield call
            call, room = [], CALL_BYTES_MAX
    if call:
        yield call


def read_exact(files: FileSystem, handle: int, length: int, offset: int) -> bytes:
    """Read *length* bytes; fewer only at the end of the file."""
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


def _after(buffers: list[Buffer], taken: int) -> list[Buffer]:
    """Return *buffers* without their first *taken* bytes."""
    for index, buffer in enumerate(buffers):
        if taken < len(buffer):
            return [memoryview(buffer)[taken:], *buffers[index + 1 :]]
        taken -= len(buffer)
    return []
