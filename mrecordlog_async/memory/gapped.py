"""Runs with gaps between their positions, and how readers get them as runs without.

Positions that a producer chose (a clock, another log) are seldom consecutive. With one run per record, listing or
truncating a million of them took a second and a half. A `GappedRun` is laid out like a run, with a position next to the
offset of each record: four bytes per record, eight where its positions span more than 31 bits. Readers get `Run`s,
which are consecutive; they are made one by one as a reader iterates (`RunsOfGapped`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import NamedTuple, overload

from mrecordlog_async.model import OFFSET_BYTES, Record, Run, pack_offsets

SPAN_MAX = 2**31
"""Positions that span less than this are kept as 32-bit integers."""


class GappedRun(NamedTuple):
    """Records with ascending positions. positions: n distances from first_position; the other fields as in `Run`."""

    first_position: int
    offsets: bytes
    payload: bytes
    positions: bytes

    @classmethod
    def of(cls, positions: Sequence[int], offsets: bytes, payload: bytes) -> GappedRun:
        """Make one of records whose *positions* ascend, with at least one gap."""
        first = positions[0]
        code = "i" if positions[-1] - first < SPAN_MAX else "q"
        return cls(first, offsets, payload, array(code, [position - first for position in positions]).tobytes())

    @property
    def record_count(self) -> int:
        """Number of records."""
        return len(self.offsets) // OFFSET_BYTES - 1

    @property
    def next_position(self) -> int:
        """Position after the last record."""
        return self.first_position + int.from_bytes(self.positions[-4 if self._is_narrow() else -8 :], "little") + 1

    def ends(self) -> list[int]:
        """Return the n+1 offsets as integers."""
        return memoryview(self.offsets).cast("i").tolist()

    def before(self, position: int) -> int:
        """Return the number of records before *position*."""
        return bisect_left(self._distances(), position - self.first_position)

    def cut(self, start: int, stop: int) -> Run | GappedRun | None:
        """Return the part with positions *start* … *stop* - 1, or None if it is empty.

        It is the object itself if that is all of it, and a run if it has no gap.
        """
        first, last = self.before(start), self.before(stop)
        if first == last:
            return None
        if first == 0 and last == self.record_count:
            return self
        ends = memoryview(self.offsets).cast("i")[first : last + 1].tolist()
        offsets = pack_offsets([end - ends[0] for end in ends])
        positions = [self.first_position + distance for distance in self._distances()[first:last].tolist()]
        payload = self.payload[ends[0] : ends[-1]]
        if positions[-1] - positions[0] == last - first - 1:
            return Run(positions[0], offsets, payload)
        return GappedRun.of(positions, offsets, payload)

    def distance(self, record: int) -> int:
        """Return how far the record with this number, from 0 on, is from the first one."""
        return self._distances()[record]

    def cut_records(self, records: int) -> Run | GappedRun:
        """Return the first *records* records, at least one and fewer than all of them."""
        cut = self.cut(self.first_position, self.first_position + self._distances()[records])
        assert cut is not None, "it has at least one record"
        return cut

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        return map(tuple.__new__, repeat(Record), self.pairs())

    def pairs(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position, payload) of the records one by one."""
        return zip(self._positions(), Run(0, self.offsets, self.payload).payloads(), strict=True)

    def runs(self) -> Iterator[Run]:
        """Yield the consecutive stretches as runs."""
        positions = self._positions()
        payloads = Run(0, self.offsets, self.payload).payloads()
        start = 0
        for stop in range(1, len(positions) + 1):
            if stop == len(positions) or positions[stop] != positions[stop - 1] + 1:
                yield Run.of(positions[start], payloads[start:stop])
                start = stop

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the first position and the number of records of each run."""
        positions = self._positions()
        start = 0
        for stop in range(1, len(positions) + 1):
            if stop == len(positions) or positions[stop] != positions[stop - 1] + 1:
                yield positions[start], stop - start
                start = stop

    def run_count(self) -> int:
        """Return the number of runs."""
        positions = self._positions()
        return 1 + sum(later != earlier + 1 for earlier, later in pairwise(positions))

    def _distances(self) -> memoryview[int]:
        return memoryview(self.positions).cast("i" if self._is_narrow() else "q")

    def _is_narrow(self) -> bool:
        return len(self.positions) == len(self.offsets) - OFFSET_BYTES

    def _positions(self) -> list[int]:
        return [self.first_position + distance for distance in self._distances().tolist()]


HeldRun = Run | GappedRun
"""Pieces that a queue keeps: consecutive records, or records with gaps."""


class RunsOfGapped(Sequence[Run]):
    """The runs of what a queue held at one moment. They are made during iteration; the sequence never changes."""

    def __init__(self, held: Sequence[HeldRun]) -> None:
        self._held = held

    def __iter__(self) -> Iterator[Run]:
        return chain.from_iterable((run,) if type(run) is Run else run.runs() for run in self._held)  # type: ignore[union-attr]  # NamedTuples do not narrow by type()

    def __bool__(self) -> bool:
        return bool(self._held)

    def __len__(self) -> int:
        """Return the number of runs. Visits every position."""
        return sum(1 if isinstance(run, Run) else run.run_count() for run in self._held)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> list[Run]: ...
    def __getitem__(self, index: int | slice) -> Run | list[Run]:
        """Return runs by index. Makes all of them unless only the last one is asked for."""
        if index == -1 and self._held:
            newest = self._held[-1]
            return newest if isinstance(newest, Run) else list(newest.runs())[-1]
        return list(self)[index]
