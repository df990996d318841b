"""The pieces of gathered files that were read last, 1 MiB each. Several threads use them at a time.

They are read into buffers that are used again: 1 MiB that the system has to zero first takes as long as its checksum.
So a piece counts who reads from it.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from threading import Lock

from mrecordlog_async.storage.gathered_files import PIECE_BYTES, GatheredFile

PIECES_MAX = 24
"""Pieces that are kept."""

USED_AT_ONCE = 2
"""Pieces that one job uses at a time: a place may reach from one into the next."""


class FilePiece:
    """A part of a file. users: jobs that read from it, and 1 while it is kept. reading: held while it is read."""

    def __init__(self, buffer: memoryview) -> None:
        self.bytes = buffer
        self.users = 1
        self.is_read = False
        self.reading = Lock()


class Pieces:
    """The pieces that are kept, and buffers for others."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[GatheredFile, int], FilePiece] = OrderedDict()
        self._free: list[memoryview] = []
        self._lock = Lock()  # held for moments

    def take(self, file: GatheredFile, number: int) -> FilePiece:
        """Return a piece of *file*, which is read once for all threads that want it; `release` it.

        Raises:
            OSError: It cannot be read.
            GatheredError: The file ends before it.
        """
        with self._lock:
            piece = self._kept.get((file, number))
            if piece is None:
                buffer = self._free.pop() if self._free else memoryview(mmap.mmap(-1, PIECE_BYTES))
                piece = self._kept[file, number] = FilePiece(buffer)
            self._kept.move_to_end((file, number))
            piece.users += 1
            while len(self._kept) > PIECES_MAX:
                self._drop(self._kept.popitem(last=False)[1])
        try:
            with piece.reading:
                if not piece.is_read:
                    file.read_piece(number, piece.bytes)
                    piece.is_read = True
        except BaseException:
            self.release(piece)
            raise
        return piece

    def release(self, piece: FilePiece) -> None:
        """End a use of *piece*, whose bytes may be others from now on."""
        with self._lock:
            self._drop(piece)

    def _drop(self, piece: FilePiece) -> None:
        piece.users -= 1
        if not piece.users and len(self._free) < USED_AT_ONCE:
            self._free.append(piece.bytes)

    def has(self, file: GatheredFile, number: int) -> bool:
        """Return whether a piece is kept, or is being read."""
        return (file, number) in self._kept

    def forget(self, file: GatheredFile) -> None:
        """Keep no piece of *file*."""
        with self._lock:
            for key in [each for each in self._kept if each[0] is file]:
                self._drop(self._kept.pop(key))


class UsedPieces:
    """The pieces that one job reads from, in a `with` block: neighbouring places take no lock."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._used: dict[tuple[GatheredFile, int], FilePiece] = {}

    def __enter__(self) -> UsedPieces:
        return self

    def __exit__(self, *raised: object) -> None:
        for piece in self._used.values():
            self._pieces.release(piece)

    def place(self, file: GatheredFile, start: int, length: int) -> memoryview:
        """Return *length* bytes of *file* at *start*, valid until the next call; the errors are as of `take`."""
        if length > PIECE_BYTES:
            return file.read(start, length)
        first, last = start // PIECE_BYTES, (start + length - 1) // PIECE_BYTES
        begun, at = self._bytes(file, first), start % PIECE_BYTES
        if first == last:
            return begun[at : at + length]
        return memoryview(b"".join((begun[at:], self._bytes(file, last)[: length - (PIECE_BYTES - at)])))

    def _bytes(self, file: GatheredFile, number: int) -> memoryview:
        piece = self._used.get((file, number))
        if piece is None:
            if len(self._used) == USED_AT_ONCE:
                self._pieces.release(self._used.pop(next(iter(self._used))))
            piece = self._used[file, number] = self._pieces.take(file, number)
        return piece.bytes
