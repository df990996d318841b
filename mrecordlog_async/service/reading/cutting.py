"""Cut runs at any record into pieces of about one size.

Callers work in turns (see `turns`): a function that may take long is a generator that yields after every part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from mrecordlog_async.memory.cutting import UNLIMITED
from mrecordlog_async.model import Run
from mrecordlog_async.protocol.bulk_schemas import Piece, PlanRequest


def head_of(run: Run, records_max: int, bytes_max: int, *, at_least_one: bool) -> tuple[int, int]:
    """Return how many of the first records of *run* fit both limits, and their payload bytes."""
    ends = memoryview(run.offsets).cast("i")
    most = min(run.record_count, max(records_max, 0))
    count = max(min(most, bisect_right(ends, bytes_max, 0, most + 1) - 1), 0)
    if not count and at_least_one:
        count = 1
    return count, ends[count]


class Cutter:
    """Cut one range into pieces of about the requested size, which together cover it."""

    def __init__(self, start: int, request: PlanRequest) -> None:
        self._records_max = request.piece_records or UNLIMITED
        self._bytes_max = request.piece_bytes or UNLIMITED
        self.wanted = bool(request.piece_records or request.piece_bytes)
        self.pieces: list[Piece] = []
        self.next_position = start  # after the last record that was added
        self._start = start
        self._records = self._bytes = 0

    def add(self, run: Run, count: int) -> Iterator[None]:
        """Add the first *count* records of *run*. Yield after every part, so that the caller can let others run."""
        self.next_position = run.first_position + count
        if not self.wanted:
            return
        for first_position, records, size in _spans(run, count, self._records_max, self._bytes_max):
            if self._records and (self._records + records > self._records_max or self._bytes + size > self._bytes_max):
                self.pieces.append(Piece(self._start, first_position, self._records, self._bytes))
                self._start, self._records, self._bytes = first_position, 0, 0
            self._records += records
            self._bytes += size
            yield

    def finish(self, stop: int) -> list[Piece]:
        """End the last piece at *stop*, the end of the range, and return all pieces."""
        if self.wanted and stop > self._start:
            self.pieces.append(Piece(self._start, stop, self._records, self._bytes))
        return self.pieces


def _spans(run: Run, count: int, records_max: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield first position, record count and bytes of *run*, in parts no larger than a piece. Nothing is copied."""
    ends = memoryview(run.offsets).cast("i")
    at = 0
    while at < count:
        fitting = bisect_right(ends, ends[at] + bytes_max, at + 1, count + 1) - 1
        stop = min(count, at + records_max, max(fitting, at + 1))
        yield run.first_position + at, stop - at, ends[stop] - ends[at]
        at = stop
