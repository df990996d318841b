"""Write a segment past the page cache, in whole blocks of 4 KiB, from one aligned buffer.

Why: a buffered write of some MiB waits for new pages of the cache, which took 85 % of its time in a virtual machine.
And the cache would hold a second copy of everything that is retained.

How: batches end anywhere, direct writes at whole blocks. The last, partial block is kept in memory and written again,
with the same bytes, in front of the next batch; what follows the batch in its last block is zeros. This assumes that
a write leaves all other bytes intact, including bytes that it rewrites with the same value. A power cut in the middle
of the write may leave anything in the bytes that it changes, which nobody was promised yet.

A large batch is encoded step by step. Each piece of it goes to the disk as soon as it is staged, and is written while
the next one is being made; one sync follows the last. Pieces land in any order: a batch
counts only with its COMMIT, and is acknowledged after the sync. The buffer is not touched again before every piece has
ended, whatever fails.

Where the system refuses a direct or a durable write (`support.disk_errors`), the same bytes are written through the
page cache, and so is what follows.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Iterable, Sequence

from mrecordlog_async.options import KIB, MIB
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES, Buffer, FileSystem
from mrecordlog_async.support.disk_errors import is_refusal

STAGING_BYTES = 4 * MIB + 8 * KIB
"""Room for the largest usual batch, its COMMIT and frames, and two partial blocks."""

LARGE_BYTES = 512 * KIB
"""A batch from this size on is written in pieces, the first of them while the rest is being encoded."""

PIECE_BYTES = 512 * KIB
PIECES_MAX = 16
"""Bytes of a piece, and how many may be under way. The staging buffer has room for fewer."""

_ZEROS = bytes(DIRECT_BLOCK_BYTES)

_Piece = tuple[int, int, int]
"""The place of a piece, in whole blocks: from one byte to another in the staging buffer, and an offset in the file."""


def whole_blocks(size: int) -> int:
    """Return *size* rounded up to whole blocks."""
    return -(-size // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES


def _no_whole_block() -> OSError:
    """Return the error of a write that makes no progress."""
    return OSError(errno.EIO, "the disk accepts no whole block")


class Staging:
    """The aligned buffer of a log's thread. The system gives it memory page by page, as it is used.

    The mapping is shared: in a private one, a fork during a write would give the disk and this process different pages.
    """

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, STAGING_BYTES)
        self.view = memoryview(self.map)
        self._writes: int | None = None  # from `FileSystem.open_writes`
        self._takes_pieces = True
        self._under_way: list[_Piece] = []

    def takes_pieces(self, files: FileSystem) -> bool:
        """Return whether `start_write` can work; find out if that is not known."""
        if self._writes is None and self._takes_pieces:
            try:
                self._writes = files.open_writes(PIECES_MAX)
            except OSError:  # no such call, not allowed (seccomp), or too many in the system (fs.aio-max-nr)
                self._takes_pieces = False
        return self._takes_pieces

    def start_write(self, files: FileSystem, handle: int, at: int, stop: int, offset: int) -> bool:
        """Begin to write the bytes from *at* to *stop* of the buffer at *offset* of a file; return whether it began.

        From then on, the buffer belongs to the disk, until `finish_writes` returns.
        """
        if self._writes is None or len(self._under_way) == PIECES_MAX:
            return False
        try:
            files.start_write(self._writes, handle, self.view[at:stop], offset)
        except OSError:  # if the disk is the reason, a plain write reports it
            self._takes_pieces = False
            return False
        self._under_way.append((at, stop, offset))
        return True

    def finish_writes(self, files: FileSystem) -> list[tuple[_Piece, int]]:
        """Wait for all pieces; return each with the bytes that were taken, or with the negative number of its error.

        Raises OSError if the results cannot be had. No piece is under way after that either.
        """
        under_way, self._under_way = self._under_way, []
        if not under_way or self._writes is None:
            return []
        try:
            taken = files.finish_writes(self._writes, len(under_way))
        except OSError:
            self.close_writes(files)
            raise
        return [(piece, taken[piece[2]]) for piece in under_way]

    def close_writes(self, files: FileSystem) -> None:
        """Begin no more writes, and wait for those under way."""
        self._takes_pieces = False
        if self._writes is not None:
            files.close_writes(self._writes)
            self._writes = None


class DirectWriter:
    """Appends to one file through a direct handle. After an error, what the file holds is not known.

    end: where the next write continues. kept: the bytes of the last, partial block before it, which it repeats.
    is_refused: the system refused a write, which then went through the page cache; the handle is not direct any more.
    """

    def __init__(self, files: FileSystem, handle: int, staging: Staging, end: int) -> None:
        """Continue the file at *end*.

        Raises:
            OSError: The last block cannot be read; a refusal if direct access is not possible.
        """
        self._files = files
        self._handle = handle
        self._staging = staging
        self.end = end
        self.is_refused = False
        self.kept = self._read_last_block() if end else b""

    def write(self, buffers: Sequence[Buffer], offset: int, *, durable: bool) -> bool:
        """Write *buffers* at *offset*, which is the end; return whether they are on the medium.

        durable: put them there, if one write has room for them; several are cheaper to sync together.
        """
        assert offset == self.end, "a direct file is only appended to"
        size = len(self.kept) + sum(map(len, buffers))
        if size <= len(self._staging.view):
            self._stage(buffers)
            self._write_staged(size, durable)
            return durable and not self.is_refused
        for part in self._parts(buffers):
            size = len(self.kept) + sum(map(len, part))
            self._stage(part)
            self._write_staged(size, durable=False)
        return False

    def takes_pieces(self) -> bool:
        """Return whether `write_in_pieces` may be called."""
        return self._staging.takes_pieces(self._files)

    def write_in_pieces(self, steps: Iterable[Sequence[Buffer]], offset: int) -> None:
        """Write the buffers that *steps* makes at *offset*, which is the end. They are on the medium after a sync."""
        assert offset == self.end, "a direct file is only appended to"
        try:
            self._stage_pieces(steps)
        except BaseException:
            self._staging.finish_writes(self._files)  # pieces are written from the buffer, which is used again
            raise

    def stage(self, frames: bytes) -> memoryview | None:
        """Stage *frames*; return the blocks to write from the one on that holds the end. `note_written` follows.

        None if the staging buffer has no room for them. Two copies of few bytes: in 2 µs, where `_stage` takes 4.5.
        """
        view, staged = self._staging.view, self.kept + frames
        size = len(staged)
        stop = size + -size % DIRECT_BLOCK_BYTES
        if stop > len(view):
            return None
        view[:size] = staged
        view[size:stop] = _ZEROS[: stop - size]
        return view[:stop]

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
        staging.write(self.kept)
        deque(map(staging.write, buffers), maxlen=0)
        staging.write(_ZEROS[: -staging.tell() % DIRECT_BLOCK_BYTES])

    def _stage_pieces(self, steps: Iterable[Sequence[Buffer]]) -> None:
        """Stage what *steps* makes, and begin to write each piece that is complete."""
        staging, room = self._staging.map, len(self._staging.view)
        staging.seek(0)
        staging.write(self.kept)
        begun = 0  # the staged bytes before this one belong to pieces
        for buffers in steps:
            if staging.tell() + sum(map(len, buffers)) >= room:
                begun = self._stage_and_empty(buffers, begun)
            else:
                deque(map(staging.write, buffers), maxlen=0)
            stop = staging.tell() // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
            if stop - begun >= PIECE_BYTES:
                self._start_piece(begun, stop)
                begun = stop
        size = staging.tell()
        staging.write(_ZEROS[: -size % DIRECT_BLOCK_BYTES])
        self._finish_pieces(begun, size)

    def _stage_and_empty(self, buffers: Sequence[Buffer], begun: int) -> int:
        """Stage *buffers*; whenever the staging buffer is full, write all of it. Return what is then with pieces."""
        staging, room = self._staging.map, len(self._staging.view)
        for buffer in buffers:
            rest = buffer
            while len(rest) >= (left := room - staging.tell()):
                staging.write(rest[:left])
                rest = memoryview(rest)[left:]
                self._finish_pieces(begun, room)
                staging.seek(begun := 0)
            staging.write(rest)
        return begun

    def _start_piece(self, at: int, stop: int) -> None:
        start = self.end - len(self.kept)
        if self.is_refused or not self._staging.start_write(self._files, self._handle, at, stop, start + at):
            self._await_pieces()  # a write that is refused turns to the page cache, which must not meet direct writes
            self._write_blocks(at, stop)

    def _finish_pieces(self, at: int, size: int) -> None:
        """Write the last piece, from *at* on, of *size* staged bytes, and wait until all of them are written."""
        if at < size:
            self._start_piece(at, whole_blocks(size))
        self._await_pieces()
        self.note_written(size)

    def _await_pieces(self) -> None:
        """Wait until the pieces under way are written; write again what the disk did not take of them."""
        ended = self._staging.finish_writes(self._files)
        for error in [OSError(-taken, os.strerror(-taken)) for _, taken in ended if taken < 0]:
            if not is_refusal(error):
                raise error
        for (begin, stop, _), taken in ended:
            self._write_blocks(begin + max(taken, 0) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES, stop)

    def _write_staged(self, size: int, durable: bool) -> None:
        """Write the first *size* staged bytes, in whole blocks."""
        self._write_blocks(0, whole_blocks(size), durable)
        self.note_written(size)

    def _write_blocks(self, at: int, stop: int, durable: bool = False) -> None:
        """Write the staged bytes from *at* to *stop*; continue short writes at the last whole block."""
        view, start, was_short = self._staging.view, self.end - len(self.kept), False
        while at < stop:
            with view[at:stop] as rest:
                taken = self._write_some(rest, start + at, durable)
            is_short = taken < DIRECT_BLOCK_BYTES
            if taken <= 0 or (is_short and was_short):
                raise _no_whole_block()
            at, was_short = at + taken - taken % DIRECT_BLOCK_BYTES, is_short

    def _write_some(self, blocks: memoryview, offset: int, durable: bool) -> int:
        """Write *blocks*; return how many bytes the disk took. If it refuses a direct write, turn to the page cache."""
        write = self._files.write_durable if durable and not self.is_refused else self._files.write
        try:
            return write(self._handle, [blocks], offset)
        except OSError as error:
            if self.is_refused or not is_refusal(error):
                raise
        self._files.set_direct(self._handle, False)
        self.is_refused = True
        return self._files.write(self._handle, [blocks], offset)

    def note_written(self, size: int) -> None:
        """Note that the first *size* staged bytes are in the file, and keep the last, partial block of them."""
        self.end += size - len(self.kept)
        self.kept = bytes(self._staging.view[size - size % DIRECT_BLOCK_BYTES : size])
