"""The records of one segment, collected from memory queue by queue, for a gathered file.

Runs are plain tuples of bytes, and the rest is in columns: Python's cyclic garbage collector would scan a hundred
thousand objects again and again, but drops such a tuple from what it scans.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from mrecordlog_async.format.gathered import StoredRun
from mrecordlog_async.memory.gapped import GappedRun, HeldRun
from mrecordlog_async.model import Run, Times


class CollectedRuns:
    """Runs of queues in ascending order of their ids. `begin` comes before the runs and times of each queue."""

    def __init__(self) -> None:
        self._ids = array("Q")
        self._starts = array("Q")  # of each queue, the number of its first run
        self._runs: list[StoredRun] = []
        self._time_starts = array("Q")
        self._times = Times.none()

    def begin(self, queue_id: int) -> None:
        """Go on to the next queue."""
        self._ids.append(queue_id)
        self._starts.append(len(self._runs))
        self._time_starts.append(len(self._times.ticks))

    def add_runs(self, runs: Iterable[HeldRun]) -> None:
        """Add runs to the queue that was begun last, in the order of their positions."""
        self._runs += [(run[0], run[1], run[2], run[3] if isinstance(run, GappedRun) else b"") for run in runs]

    def add_times(self, times: Times) -> None:
        """Add times to the queue that was begun last."""
        self._times.positions.extend(times.positions)
        self._times.ticks.extend(times.ticks)

    def queues(self) -> Iterator[tuple[int, Iterable[StoredRun], Times]]:
        """Yield id, runs and times of each queue."""
        for at, queue_id in enumerate(self._ids):
            yield (queue_id, *self._of(at))

    def queue(self, queue_id: int) -> tuple[Iterable[StoredRun], Times]:
        """Return runs and times of one queue; both are empty if nothing was collected of it."""
        at = bisect_left(self._ids, queue_id)
        if at == len(self._ids) or self._ids[at] != queue_id:
            return (), Times.none()
        return self._of(at)

    def _of(self, at: int) -> tuple[Iterable[StoredRun], Times]:
        times = _part(self._time_starts, at, len(self._times.ticks))
        runs = self._runs[_part(self._starts, at, len(self._runs))]
        return runs, Times(self._times.positions[times], self._times.ticks[times])


def _part(starts: array[int], at: int, end: int) -> slice:
    return slice(starts[at], starts[at + 1] if at + 1 < len(starts) else end)


def held_run(stored: Run | StoredRun) -> HeldRun:
    """Return a run of a gathered file as memory holds it."""
    if isinstance(stored, Run):
        return stored
    return GappedRun(*stored) if stored[3] else Run(*stored[:3])
