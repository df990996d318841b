"""Pieces of gathered files: read once, kept for a while, and their buffers used again when nobody reads from them."""

from __future__ import annotations

from threading import Event, Thread
from typing import cast

import pytest

from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import PIECE_BYTES, GatheredFile
from mrecordlog_async.storage.gathered_pieces import PIECES_MAX, PIECES_OF_BUFFER, Pieces, UsedPiece


class CountingFile:
    """A file of which each MiB has its number. reads: offset and length of each. error: raised by a read."""

    def __init__(self) -> None:
        self.size = 200 * PIECE_BYTES + 7
        self.reads: list[tuple[int, int]] = []
        self.error: OSError | None = None
        self.begun, self.goes_on = Event(), Event()
        self.goes_on.set()

    def read_into(self, base: int, blocks: memoryview, least: int) -> None:
        """Fill *blocks*."""
        assert base % DIRECT_BLOCK_BYTES == len(blocks) % DIRECT_BLOCK_BYTES == 0
        assert least <= len(blocks) <= PIECE_BYTES
        self.reads.append((base, least))
        self.begun.set()
        assert self.goes_on.wait(10)
        if self.error is not None:
            raise self.error
        for at in range(0, len(blocks), DIRECT_BLOCK_BYTES):
            blocks[at : at + DIRECT_BLOCK_BYTES] = bytes([(base + at) // PIECE_BYTES]) * DIRECT_BLOCK_BYTES

    def read(self, offset: int, length: int) -> memoryview:
        """Return the bytes of a large place."""
        self.reads.append((offset, length))
        return memoryview(bytes(length))


def file_of(counting: CountingFile) -> GatheredFile:
    """Return it as the class that it stands for."""
    return cast(GatheredFile, counting)


def test_a_piece_that_several_threads_want_is_read_once() -> None:
    """Threads that want it while it is read wait for that."""
    pieces, file, found = Pieces(), CountingFile(), list[int]()
    file.goes_on.clear()

    def use() -> None:
        with UsedPiece(pieces) as used:
            found.append(used.bytes(file_of(file), 3 * PIECE_BYTES + 5, 3 * PIECE_BYTES + 6)[0])

    threads = [Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert file.begun.wait(10)
    file.goes_on.set()
    for thread in threads:
        thread.join()
    assert (found, file.reads) == ([3] * 4, [(3 * PIECE_BYTES, PIECE_BYTES)])


def test_a_buffer_is_used_again_when_nobody_reads_from_it() -> None:
    """A piece that a job reads from does not change, however many others are read; free buffers are used again."""
    pieces, file = Pieces(), CountingFile()
    held = pieces.take(file_of(file), 9, 10)
    memory = {id(held.buffer.obj)}
    for number in range(1, 3 * PIECES_MAX):
        start = number * PIECE_BYTES + 7
        piece = pieces.take(file_of(file), start, start + 1)
        assert piece.buffer[7] == number
        memory.add(id(piece.buffer.obj))
        pieces.release(piece)
    assert held.buffer[9] == 0
    assert len(memory) * PIECES_OF_BUFFER < PIECES_MAX + 2 * PIECES_OF_BUFFER
    pieces.release(held)
    pieces.release(pieces.take(file_of(file), 9, 10))
    assert file.reads.count((0, PIECE_BYTES)) == 2


def test_a_piece_is_what_is_wanted_and_what_follows() -> None:
    """Small places share one that begins with the first of them; much at a time is read as it is, and so is more."""
    pieces, file, half = Pieces(), CountingFile(), PIECE_BYTES // 2
    with UsedPiece(pieces) as used:
        for start in (5_000, 6_000, half, PIECE_BYTES):
            assert used.bytes(file_of(file), start, start + 1_000)[0] == start // PIECE_BYTES
        assert file.reads == [(4_096, PIECE_BYTES)]
        found = used.bytes(file_of(file), 3 * PIECE_BYTES - 9, 3 * PIECE_BYTES + half)
        assert (len(found), found[8], found[9]) == (half + 9, 2, 3)
        used.bytes(file_of(file), 8 * PIECE_BYTES + 1, 9 * PIECE_BYTES + 1)
        used.bytes(file_of(file), file.size - 1, file.size)
    start, size = 3 * PIECE_BYTES - DIRECT_BLOCK_BYTES, half + DIRECT_BLOCK_BYTES
    assert file.reads[1:] == [(start, size), (8 * PIECE_BYTES + 1, PIECE_BYTES), (200 * PIECE_BYTES, 7)]


def test_a_piece_that_cannot_be_read_is_read_again() -> None:
    """The error is that of the read that met it; the next one tries for itself."""
    pieces, file = Pieces(), CountingFile()
    file.error = OSError(5, "EIO")
    with UsedPiece(pieces) as used, pytest.raises(OSError, match="EIO"):
        used.bytes(file_of(file), PIECE_BYTES, PIECE_BYTES + 1)
    file.error = None
    assert pieces.take(file_of(file), PIECE_BYTES, PIECE_BYTES + 1).buffer[0] == 1


def test_the_pieces_of_a_file_are_forgotten() -> None:
    """Those of another file of the same segment are not taken for them."""
    pieces, old, new = Pieces(), CountingFile(), CountingFile()
    for file in (old, new):
        pieces.release(pieces.take(file_of(file), 0, 1))
    pieces.forget(file_of(old))
    for file in (old, new):
        pieces.release(pieces.take(file_of(file), 0, 1))
    assert (len(old.reads), len(new.reads)) == (2, 1)
