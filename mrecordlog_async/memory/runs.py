"""Runs in the order of their positions, kept by column.

A gigabyte is tens of thousands of runs. Kept as objects, however small, each is one more thing that Python's cycle
collector walks over: a young collection that met 20,000 of them stopped the event loop for 19 to 28 ms. As an array of
positions and two lists of bytes there is nothing for it to meet, and a run is made when somebody reads it.

Dropping from the front is cheap on the average: columns are moved up when more than half of them is gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate, chain
from operator import sub
from typing import TYPE_CHECKING

from mrecordlog_async.model import OFFSET_BYTES, Run, pack_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable

MOVED_UP_FROM = 64
"""So many places at the front may stay empty, whatever follows them."""


class Runs:
    """A sequence of runs that grows at the back and is dropped from the front. Owned by its `Queue`."""

    __slots__ = ("_first_positions", "_gone", "_offsets", "_payloads")

    def __init__(self) -> None:
        self._first_positions = array("q")
        self._offsets: list[bytes] = []
        self._payloads: list[bytes] = []
        self._gone = 0  # places at the front whose runs were dropped

    def __len__(self) -> int:
        return len(self._payloads) - self._gone

    def append(self, first_position: int, offsets: bytes, payload: bytes) -> None:
        """Add a run behind the last one."""
        self._first_positions.append(first_position)
        self._offsets.append(offsets)
        self._payloads.append(payload)

    def extend(self, runs: Runs) -> None:
        """Add all of *runs* behind the last one."""
        self._first_positions += runs._first_positions[runs._gone :]
        self._offsets += runs._offsets[runs._gone :]
        self._payloads += runs._payloads[runs._gone :]

    def oldest(self) -> Run:
        """Return the run at the front."""
        return self._run(self._gone)

    def newest(self) -> Run:
        """Return the run at the back."""
        return self._run(len(self._payloads) - 1)

    def first_position(self) -> int:
        """Return the position of the first record."""
        return self._first_positions[self._gone]

    def drop_oldest(self) -> Run:
        """Forget the run at the front, and return it."""
        at = self._gone
        run = self._run(at)
        self._offsets[at] = self._payloads[at] = b""
        self._gone = at + 1
        if MOVED_UP_FROM < self._gone > len(self._payloads) // 2:
            self._move_up()
        return run

    def joined(self) -> Run:
        """Return one run that holds the records of all, which follow one another without a gap."""
        offsets, payloads = self._offsets[self._gone :], self._payloads[self._gone :]
        if len(payloads) == 1:
            return self.oldest()
        lengths: Iterable[int] = map(len, payloads)
        if max(map(len, offsets)) > 2 * OFFSET_BYTES:  # not all of them are single records
            each = [memoryview(ends).cast("i").tolist() for ends in offsets]
            lengths = chain.from_iterable(map(sub, ends[1:], ends) for ends in each)
        return Run(self.first_position(), pack_offsets(accumulate(lengths, initial=0)), b"".join(payloads))

    def between(self, start: int, stop: int) -> list[Run]:
        """Return the runs with any of the positions *start* … *stop* - 1, whole."""
        positions = self._first_positions
        first = max(bisect_right(positions, start, self._gone) - 1, self._gone)
        if first < len(positions) and self._next_position(first) <= start:
            first += 1
        return self._cut(first, bisect_left(positions, stop, first))

    def records(self) -> int:
        """Return how many records there are."""
        return sum(map(len, self._offsets[self._gone :])) // OFFSET_BYTES - len(self)

    def _cut(self, first: int, behind: int) -> list[Run]:
        columns: Iterable[tuple[int, bytes, bytes]] = zip(
            self._first_positions[first:behind], self._offsets[first:behind], self._payloads[first:behind], strict=True
        )
        return list(map(Run._make, columns))

    def _run(self, at: int) -> Run:
        return Run(self._first_positions[at], self._offsets[at], self._payloads[at])

    def _next_position(self, at: int) -> int:
        return self._first_positions[at] + len(self._offsets[at]) // OFFSET_BYTES - 1

    def _move_up(self) -> None:
        del self._first_positions[: self._gone], self._offsets[: self._gone], self._payloads[: self._gone]
        self._gone = 0


NO_RUNS = Runs()
"""Stands for the runs of every queue that has none, and stays empty: a sequence of its own costs 300 bytes."""
