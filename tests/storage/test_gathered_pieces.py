"""Pieces of gathered files: read once, kept for a while, and their buffers used again when nobody reads from them."""

from __future__ import annotations

from threading import Event, Thread
from typing import cast

import pytest

from mrecordlog_async.storage.gathered_files import PIECE_BYTES, GatheredFile
from mrecordlog_async.storage.gathered_pieces import PIECES_MAX, Pieces, UsedPieces


class CountingFile:
    """A file of which each piece begins with its number. reads: the numbers that were read. error: raised by a read."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.error: OSError | None = None
        self.begun, self.goes_on = Event(), Event()
        self.goes_on.set()

    def read_piece(self, number: int, buffer: memoryview) -> None:
        """Fill *buffer*."""
        self.reads.append(number)
        self.begun.set()
        assert self.goes_on.wait(10)
        if self.error is not None:
            raise self.error
        buffer[:] = bytes([number]) * PIECE_BYTES


def file_of(counting: CountingFile) -> GatheredFile:
    """Return it as the class that it stands for."""
    return cast(GatheredFile, counting)


def test_a_piece_that_several_threads_want_is_read_once() -> None:
    """Threads that want it while it is read wait for that."""
    pieces, file, found = Pieces(), CountingFile(), list[int]()
    file.goes_on.clear()

    def use() -> None:
        with UsedPieces(pieces) as used:
            found.append(used.place(file_of(file), 3 * PIECE_BYTES + 5, 1)[0])

    threads = [Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert file.begun.wait(10)
    file.goes_on.set()
    for thread in threads:
        thread.join()
    assert (found, file.reads) == ([3] * 4, [3])


def test_a_buffer_is_used_again_when_nobody_reads_from_it() -> None:
    """A piece that a job reads from does not change, however many others are read; free buffers are used again."""
    pieces, file = Pieces(), CountingFile()
    held = pieces.take(file_of(file), 0)
    buffers = {id(held.bytes.obj)}
    for number in range(1, 3 * PIECES_MAX):
        piece = pieces.take(file_of(file), number)
        assert piece.bytes[7] == number
        buffers.add(id(piece.bytes.obj))
        pieces.release(piece)
    assert held.bytes[9] == 0
    assert len(buffers) <= PIECES_MAX + 2
    assert not pieces.has(file_of(file), 0)
    pieces.release(held)


def test_a_place_in_two_pieces_is_joined() -> None:
    """It ends one piece and begins the next; larger ones are read without pieces."""
    pieces, file = Pieces(), CountingFile()
    with UsedPieces(pieces) as used:
        assert used.place(file_of(file), 2 * PIECE_BYTES - 2, 5).tobytes() == bytes([1, 1, 2, 2, 2])
        assert used.place(file_of(file), 3 * PIECE_BYTES - 1, 2).tobytes() == bytes([2, 3])
    assert file.reads == [1, 2, 3]


def test_a_piece_that_cannot_be_read_is_read_again() -> None:
    """The error is that of the read that met it; the next one tries for itself."""
    pieces, file = Pieces(), CountingFile()
    file.error = OSError(5, "EIO")
    with pytest.raises(OSError, match="EIO"):
        pieces.take(file_of(file), 1)
    file.error = None
    assert pieces.take(file_of(file), 1).bytes[0] == 1


def test_the_pieces_of_a_file_are_forgotten() -> None:
    """Those of another file of the same segment are not taken for them."""
    pieces, old, new = Pieces(), CountingFile(), CountingFile()
    pieces.release(pieces.take(file_of(old), 1))
    pieces.release(pieces.take(file_of(new), 1))
    pieces.forget(file_of(old))
    assert not pieces.has(file_of(old), 1)
    assert pieces.has(file_of(new), 1)
    assert new.reads == [1]
