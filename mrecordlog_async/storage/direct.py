"""Write a segment past the page cache, in whole blocks of 4 KiB, from one aligned buffer.

Why: a buffered write of some MiB waits for new pages of the cache, which took 85 % of its time in a virtual machine.
And the cache would hold a second copy of everything that is retained.

How: batches end anywhere, direct writes at whole blocks. The last, partial block is kept in memory and written again,
with the same bytes, in front of the next batch; what follows the batch in its last block is zeros. This assumes that
a write leaves all other bytes intact, including bytes that it rewrites with the same value. A power cut in the middle
of the write may leave anything in the bytes that it changes, which nobody was promised yet.
"""

from __future__ import annotations

import errno
import mmap
from collections import deque
from collections.abc import Sequence

from mrecordlog_async.options import KIB, MIB
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer, FileSystem

STAGING_BYTES = 4 * MIB + 8 * KIB
"""Room for the largest usual batch, its COMMIT and frames, and two partial blocks."""

UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of a direct read or write that say that the file system cannot do it."""

_ZEROS = bytes(DIRECT_BLOCK_BYTES)


def whole_blocks(size: int) -> int:
    """Return *size* rounded up to whole blocks."""
    return -(-size // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES


class Staging:
    """The aligned buffer of a log's thread. The system gives it memory page by page, as it is used.

    The mapping is shared: in a private one, a fork during a write would give the disk and this process different pages.
    """

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, STAGING_BYTES)
        self.view = memoryview(self.map)


class DirectWriter:
    """Appends to one file through a direct handle. After an error, what the file holds is not known."""

    def __init__(self, files: FileSystem, handle: int, staging: Staging, end: int) -> None:
        """Continue the file at *end*.

        Raises:
            OSError: The last block cannot be read; one of `UNSUPPORTED` if direct access is not possible.
        """
        self._files = files
        self._handle = handle
        self._staging = staging
        self.end = end
        self._kept = self._read_last_block() if end else b""

    def write(self, buffers: Sequence[Buffer], offset: int, *, durable: bool) -> bool:
        """Write *buffers* at *offset*, which is the end; return whether they are on the medium.

        durable: put them there, if one write has room for them; several are cheaper to sync together.
        """
        assert offset == self.end, "a direct file is only appended to"
        size = len(self._kept) + sum(map(len, buffers))
        if size <= len(self._staging.view):
            self._stage(buffers)
            self._write_staged(size, durable)
            return durable
        for part in self._parts(buffers):
            size = len(self._kept) + sum(map(len, part))
            self._stage(part)
            self._write_staged(size, durable=False)
        return False

    def _read_last_block(self) -> bytes:
        """Return the bytes of the partial block before the end. Where there is none, the last block is read anyway."""
        start = (self.end - 1) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
        with self._staging.view[:DIRECT_BLOCK_BYTES] as block:
            if self._files.read_into(self._handle, block, start) < self.end - start:
                raise OSError(errno.EIO, "the last block of the segment cannot be read")
            return bytes(block[: self.end % DIRECT_BLOCK_BYTES])

    def _parts(self, buffers: Sequence[Buffer]) -> list[list[Buffer]]:
        """Cut *buffers* into parts, each of which the staging buffer has room for in addition to a partial block."""
        limit = len(self._staging.view) - DIRECT_BLOCK_BYTES
        parts: list[list[Buffer]] = [[]]
        room = limit
        for buffer in buffers:
            rest = memoryview(buffer)
            while len(rest) > room:
                parts[-1].append(rest[:room])
                rest = rest[room:]
                parts.append([])
                room = limit
            parts[-1].append(rest)
            room -= len(rest)
        return parts

    def _stage(self, buffers: Sequence[Buffer]) -> None:
        """Copy the partial block, *buffers*, and zeros up to a whole block into the staging buffer."""
        staging = self._staging.map
        staging.seek(0)
        staging.write(self._kept)
        deque(map(staging.write, buffers), maxlen=0)
        staging.write(_ZEROS[: -staging.tell() % DIRECT_BLOCK_BYTES])

    def _write_staged(self, size: int, durable: bool) -> None:
        """Write the first *size* staged bytes, in whole blocks; continue short writes at the last whole block."""
        write = self._files.write_durable if durable else self._files.write
        view, start = self._staging.view, self.end - len(self._kept)
        at, stop, was_short = 0, whole_blocks(size), False
        while at < stop:
            with view[at:stop] as rest:
                taken = write(self._handle, [rest], start + at)
            is_short = taken < DIRECT_BLOCK_BYTES
            if taken <= 0 or (is_short and was_short):
                raise OSError(errno.EIO, "the disk accepts no whole block")
            at, was_short = at + taken - taken % DIRECT_BLOCK_BYTES, is_short
        self.end = start + size
        self._kept = bytes(view[size - size % DIRECT_BLOCK_BYTES : size])
