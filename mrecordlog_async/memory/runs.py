"""Runs in the order of their positions, stored by column: a queue's open runs, and its sealed ones.

A gigabyte is tens of thousands of runs. If they were objects, Python's cyclic garbage collector would scan each of
them: a young collection with 20,000 stopped the event loop for 19 to 28 ms. The entries of an array of positions and of
two lists of bytes are not tracked, and a run is made only when it is read.

Dropping from the front is cheap on average: columns are moved up once more than half of their places are empty.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, chain
from operator import sub
from typing import TYPE_CHECKING

from mrecordlog_async.memory.gapped import GappedRun, HeldRun
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Run, pack_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
