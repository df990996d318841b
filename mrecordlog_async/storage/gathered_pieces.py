"""The pieces of gathered files that were read last, up to 1 MiB each. Several threads use them at a time.

They are read into buffers that are used again: 1 MiB that the system has to zero first takes as long as its checksum.
So a piece counts who reads from it.
"""

from __future__ import annotations

from threading import Lock

from mrecordlog_async.storage.direct import whole_blocks
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import PIECE_BYTES, GatheredFile, aligned_buffer

PIECES_MAX = 16
"""Pieces that are kept."""

PIECES_OF_BUFFER = 4
"""Pieces whose memory is taken from the system at a time."""


class FilePiece:
    """A part of a file: bytes *start* … *stop* - 1 of it are in *buffer*, once it is read.

    users: jobs that read from it, and 1 while it is kept. reading: held while it is read.
    """

    def __init__(self, file: GatheredFile, start: int, stop: int, buffer: memoryview) -> None:
        self.file = file
        self.start = start
        self.stop = stop
        self.buffer = buffer
        self.users = 1
        self.is_read = False
        self.reading = Lock()

    def has(self, file: GatheredFile, start: int, stop: int) -> bool:
        """Return whether bytes *start* … *stop* - 1 of *file* are in it, once it is read."""
        return self.file is file and self.start <= start and stop <= self.stop


class Pieces:
    """The pieces that are kept, and buffers for others."""

    def __init__(self) -> None:
        self._kept: list[FilePiece] = []  # the one that was used last is the last
        self._free: list[memoryview] = []
        self._lock = Lock()  # held for moments

    def take(self, file: GatheredFile, start: int, stop: int) -> FilePiece:
        """Return a piece with bytes *start* … *stop* - 1 of *file*, which threads that want it share; `release` it.

        Of few bytes, it has those after them: most often they are wanted next.

        Raises:
            OSError: It cannot be read.
            GatheredError: The file ends before *stop*.
        """
        with self._lock:
            piece = next((each for each in self._kept if each.has(file, start, stop)), None)
            if piece is None:
                piece = self._new(file, start, stop)
            else:
                self._kept.remove(piece)
            self._kept.append(piece)
            piece.users += 1
        try:
            with piece.reading:
                if not piece.is_read:
                    size = piece.stop - piece.start
                    file.read_into(piece.start, piece.buffer[: whole_blocks(size)], size)
                    piece.is_read = True
        except BaseException:
            self.release(piece)
            raise
        return piece

    def _new(self, file: GatheredFile, start: int, stop: int) -> FilePiece:
        while len(self._kept) >= PIECES_MAX:
            self._drop(self._kept.pop(0))
        if not self._free:
            many = aligned_buffer(PIECES_OF_BUFFER * PIECE_BYTES)
            self._free = [many[at : at + PIECE_BYTES] for at in range(0, len(many), PIECE_BYTES)]
        base = start - start % DIRECT_BLOCK_BYTES
        end = stop if stop - start >= PIECE_BYTES // 2 else base + PIECE_BYTES
        return FilePiece(file, base, min(end, file.size), self._free.pop())

    def release(self, piece: FilePiece) -> None:
        """End a use of *piece*, whose bytes may be others from now on."""
        with self._lock:
            self._drop(piece)

    def _drop(self, piece: FilePiece) -> None:
        piece.users -= 1
        if not piece.users:
            self._free.append(piece.buffer)

    def forget(self, file: GatheredFile) -> None:
        """Keep no piece of *file*."""
        with self._lock:
            for piece in [each for each in self._kept if each.file is file]:
                self._kept.remove(piece)
                self._drop(piece)


class UsedPiece:
    """The piece that one job reads from, in a `with` block: neighbouring places take no lock."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._used: FilePiece | None = None

    def __enter__(self) -> UsedPiece:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._used is not None:
            self._pieces.release(self._used)

    def bytes(self, file: GatheredFile, start: int, stop: int) -> memoryview:
        """Return bytes *start* … *stop* - 1 of *file*, valid until the next call; the errors are as of `take`."""
        used = self._used
        if used is None or not used.has(file, start, stop):
            if stop - start + start % DIRECT_BLOCK_BYTES > PIECE_BYTES:
                return file.read(start, stop - start)
            self.__exit__()
            self._used = None
            self._used = used = self._pieces.take(file, start, stop)
        return used.buffer[start - used.start : stop - used.start]
