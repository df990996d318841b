"""The pieces in which a queue keeps its records: runs, runs with gaps, and the columns that hold many of them.

Positions that a producer chose (a clock, another log) are seldom consecutive. With one run per record, listing or
truncating a million of them took a second and a half. A `GappedRun` is laid out like a run, with a position next to the
offset of each record: four bytes per record, eight where its positions span more than 31 bits. Readers get `Run`s,
which are consecutive; they are made one by one as a reader iterates (`RunsOfGapped`).

A queue's open runs (`Runs`) and its sealed ones (`SealedRuns`) are stored by column, in the order of their positions. A
gigabyte is tens of thousands of runs. If they were objects, Python's cyclic garbage collector would scan each of them:
a young collection with 20,000 stopped the event loop for 19 to 28 ms. The entries of an array of positions and of two
lists of bytes are not tracked, and a run is made only when it is read. Dropping from the front is cheap on average:
columns are moved up once more than half of their places are empty.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import sub
from typing import NamedTuple, overload

from crc32c import crc32c

from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Record, Run, pack_offsets

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
        payloads = Run(0, self.offsets, self.payload).payloads()
        return map(tuple.__new__, repeat(Record), zip(self._positions(), payloads, strict=True))

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


def cut_ends(found: list[HeldRun], start: int, stop: int) -> list[HeldRun]:
    """Cut the first and the last run to positions *start* … *stop* - 1. A run with gaps may have nothing left."""
    for at in {0, len(found) - 1} if found else ():
        cut = found[at].cut(start, stop)
        if cut is None:
            return [run for each in found if (run := each.cut(start, stop)) is not None]
        found[at] = cut
    return found


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


def as_runs(held: list[HeldRun]) -> Sequence[Run]:
    """Return *held* as runs. Those between gaps are made during iteration."""
    return RunsOfGapped(held) if GappedRun in map(type, held) else held  # type: ignore[return-value]  # all are Runs


MOVED_UP_FROM = 64
"""Up to this many places at the front stay empty, however short the columns are."""


class Runs:
    """A sequence of runs that grows at the back and shrinks at the front. Its `Queue` owns it."""

    __slots__ = ("_dropped", "_first_positions", "_offsets", "_payloads")

    def __init__(self) -> None:
        self._first_positions = array("q")
        self._offsets: list[bytes] = []
        self._payloads: list[bytes] = []
        self._dropped = 0  # places at the front whose runs were dropped

    def __len__(self) -> int:
        return len(self._payloads) - self._dropped

    def append(self, first_position: int, offsets: bytes, payload: bytes) -> None:
        """Add a run after the last one."""
        self._first_positions.append(first_position)
        self._offsets.append(offsets)
        self._payloads.append(payload)

    def oldest(self) -> Run:
        """Return the run at the front."""
        return self._run(self._dropped)

    def newest(self) -> Run:
        """Return the run at the back."""
        return self._run(len(self._payloads) - 1)

    def first_position(self) -> int:
        """Return the position of the first record."""
        return self._first_positions[self._dropped]

    def drop_oldest(self) -> Run:
        """Remove and return the run at the front."""
        at = self._dropped
        run = self._run(at)
        self._offsets[at] = self._payloads[at] = b""
        self._dropped = at + 1
        if MOVED_UP_FROM < self._dropped > len(self._payloads) // 2:
            self._move_up()
        return run

    def joined(self) -> HeldRun:
        """Return the records of all runs as one run, or as one with gaps."""
        offsets, payloads = self._offsets[self._dropped :], self._payloads[self._dropped :]
        if len(payloads) == 1:
            return self.oldest()
        lengths: Iterable[int] = map(len, payloads)
        if max(map(len, offsets)) > 2 * OFFSET_BYTES:  # not all of them are single records
            each = [memoryview(ends).cast("i").tolist() for ends in offsets]
            lengths = chain.from_iterable(map(sub, ends[1:], ends) for ends in each)
        packed, payload = pack_offsets(accumulate(lengths, initial=0)), b"".join(payloads)
        first, records = self.first_position(), len(packed) // OFFSET_BYTES - 1
        if self._next_position(len(self._payloads) - 1) - first == records:
            return Run(first, packed, payload)
        return GappedRun.of(self._positions(offsets, records), packed, payload)

    def _positions(self, offsets: list[bytes], records: int) -> list[int]:
        """Return the position of each record. *offsets*: of all runs; *records*: their number in all runs."""
        firsts = self._first_positions[self._dropped :].tolist()
        if len(firsts) == records:
            return firsts
        counts = (len(ends) // OFFSET_BYTES - 1 for ends in offsets)
        return list(chain.from_iterable(range(first, first + n) for first, n in zip(firsts, counts, strict=True)))

    def between(self, start: int, stop: int, most: int | None = None) -> list[Run]:
        """Return the runs with any position of *start* … *stop* - 1, uncut; at most the first *most* of them."""
        positions = self._first_positions
        first = max(bisect_right(positions, start, self._dropped) - 1, self._dropped)
        if first < len(positions) and self._next_position(first) <= start:
            first += 1
        end = bisect_left(positions, stop, first)
        return self._cut(first, end if most is None else min(end, first + most))

    def starting_at(self, position: int) -> Iterator[Run]:
        """Yield the runs from the one that holds *position* on, uncut. Nothing may change meanwhile."""
        positions = self._first_positions
        at = max(bisect_right(positions, position, self._dropped) - 1, self._dropped)
        if at < len(positions) and self._next_position(at) <= position:
            at += 1
        yield from map(self._run, range(at, len(positions)))

    def _cut(self, first: int, end: int) -> list[Run]:
        if end - first == 1:
            return [self._run(first)]
        columns: Iterable[tuple[int, bytes, bytes]] = zip(
            self._first_positions[first:end], self._offsets[first:end], self._payloads[first:end], strict=True
        )
        return list(map(Run._make, columns))

    def _run(self, at: int) -> Run:
        return Run(self._first_positions[at], self._offsets[at], self._payloads[at])

    def _next_position(self, at: int) -> int:
        return self._first_positions[at] + len(self._offsets[at]) // OFFSET_BYTES - 1

    def _move_up(self) -> None:
        del self._first_positions[: self._dropped], self._offsets[: self._dropped], self._payloads[: self._dropped]
        self._dropped = 0


class SealedRuns:
    """Runs of many records, with or without gaps between them. Grows and shrinks as `Runs` does."""

    __slots__ = ("_dropped", "_first_positions", "_offsets", "_payloads", "_positions")

    def __init__(self) -> None:
        self._first_positions = array("q")
        self._offsets: list[bytes] = []
        self._payloads: list[bytes] = []
        self._positions: list[bytes] = []  # of each record; empty for a run without gaps
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._payloads) - self._dropped

    def append(self, run: HeldRun) -> None:
        """Add a run after the last one."""
        self._first_positions.append(run[0])
        self._offsets.append(run[1])
        self._payloads.append(run[2])
        self._positions.append(b"" if isinstance(run, Run) else run[3])

    def oldest(self) -> HeldRun:
        """Return the run at the front."""
        return self._run(self._dropped)

    def newest(self) -> HeldRun:
        """Return the run at the back."""
        return self._run(len(self._payloads) - 1)

    def drop_oldest(self) -> HeldRun:
        """Remove and return the run at the front."""
        at = self._dropped
        run = self._run(at)
        self._offsets[at] = self._payloads[at] = self._positions[at] = b""
        self._dropped = at + 1
        if MOVED_UP_FROM < self._dropped > len(self._payloads) // 2:
            for column in (self._first_positions, self._offsets, self._payloads, self._positions):
                del column[: self._dropped]
            self._dropped = 0
        return run

    def between(self, start: int, stop: int, most: int | None = None) -> list[HeldRun]:
        """Return the runs that reach into positions *start* … *stop* - 1, uncut; at most the first *most* of them.

        A run with gaps may have none of these positions.
        """
        first = self._at_or_after(start)
        end = bisect_left(self._first_positions, stop, first)
        end = end if most is None else min(end, first + most)
        firsts, offsets = self._first_positions[first:end], self._offsets[first:end]
        payloads, positions = self._payloads[first:end], self._positions[first:end]
        if not any(positions):
            return list(map(Run._make, zip(firsts, offsets, payloads, strict=True)))
        return list(map(_held, firsts, offsets, payloads, positions))

    def starting_at(self, position: int) -> Iterator[Run]:
        """Yield the runs from the one that holds *position* on, uncut. Nothing may change meanwhile.

        Runs with gaps are split, and the first of them is cut.
        """
        firsts, offsets, payloads, positions = self._first_positions, self._offsets, self._payloads, self._positions
        for at in range(self._at_or_after(position), len(payloads)):
            if not positions[at]:
                yield Run(firsts[at], offsets[at], payloads[at])
            elif (cut := self._run(at).cut(position, POSITION_MAX + 1)) is not None:
                yield from (cut,) if isinstance(cut, Run) else cut.runs()

    def first_from(self, position: int) -> HeldRun | None:
        """Return the first run that ends at or after *position*, uncut."""
        at = self._at_or_after(position)
        return self._run(at) if at < len(self._payloads) else None

    def _at_or_after(self, position: int) -> int:
        at = max(bisect_right(self._first_positions, position, self._dropped) - 1, self._dropped)
        if at < len(self._payloads) and self._next_position(at) <= position:
            at += 1
        return at

    def _next_position(self, at: int) -> int:
        if self._positions[at]:
            return self._run(at).next_position
        return self._first_positions[at] + len(self._offsets[at]) // OFFSET_BYTES - 1

    def _run(self, at: int) -> HeldRun:
        return _held(self._first_positions[at], self._offsets[at], self._payloads[at], self._positions[at])


def _held(first_position: int, offsets: bytes, payload: bytes, positions: bytes) -> HeldRun:
    if positions:
        return GappedRun(first_position, offsets, payload, positions)
    return Run(first_position, offsets, payload)


NO_SEALED_RUNS = SealedRuns()
NO_RUNS = Runs()
"""Shared by all queues without runs, and always empty: one sequence for each queue would cost 300 bytes."""


def checksum_of(runs: Iterable[Run]) -> int:
    """Return the CRC-32C of the lengths and payloads of *runs*. It does not depend on how records are cut into runs."""
    checksum = 0
    for run in runs:
        checksum = crc32c(_packed_lengths(run.offsets), checksum)
    for run in runs:
        checksum = crc32c(run.payload, checksum)
    return checksum


def checksum_of_one(payload: bytes) -> int:
    """Return what `checksum_of` returns for a run of one record."""
    return crc32c(payload, crc32c(len(payload).to_bytes(OFFSET_BYTES, "little")))


def _packed_lengths(offsets: bytes) -> bytes:
    """Return the lengths between *offsets* as int32."""
    # One subtraction of long integers computes all of them: offsets ascend, so no difference borrows from the next one.
    lengths = int.from_bytes(offsets[OFFSET_BYTES:], "little") - int.from_bytes(offsets[:-OFFSET_BYTES], "little")
    return lengths.to_bytes(len(offsets) - OFFSET_BYTES, "little")
