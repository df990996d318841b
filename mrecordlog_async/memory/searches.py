"""Searches through all queues of a log, in steps: what comes first in an order, and what keeps the oldest segment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import oldest_tick
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.metrics import SegmentPin

QUEUES_PER_STEP = 1_000
"""A step of this many queues takes about half a millisecond, and 0.14 ms in the search for the oldest segment."""

LAST = 2**64
"""Rank of a queue that keeps no segment, or whose oldest record has no known time."""

RANKS: dict[str, Callable[[Queue], float]] = {
    "records": lambda queue: -queue.records,
    "bytes": lambda queue: -queue.live_bytes(),
    "segment": lambda queue: LAST if (first := queue.first_segment()) is None else first,
    "age": lambda queue: LAST if (tick := oldest_tick(queue)) == NO_TICK else tick,
}
"""Ranks by the name of their order; the lowest comes first: most records, most bytes, oldest segment, oldest record."""


def first_in_steps(queues: Iterable[Queue], order: str, most: int) -> Iterator[list[Queue]]:
    """Yield, after each step, the first *most* of the queues seen so far. The last list is the result."""
    rank, listed = RANKS[order], list(queues)
    best: list[Queue] = []
    for at in range(0, len(listed), QUEUES_PER_STEP):
        best = nsmallest(most, best + listed[at : at + QUEUES_PER_STEP], key=rank)
        yield best


class OldestPin:
    """Finds the queue that keeps the oldest segment; searches all queues only if the one found last no longer does."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._found: Queue | None = None

    def find_in_steps(self, segments: range) -> Iterator[SegmentPin | None]:
        """Yield None after each step of a search, then the result.

        Other work may run between two steps: the queues are listed once, at the start. The result is None if no queue
        needs an older segment than the current one, the last of *segments*.
        """
        if self._oldest(segments) is not None and not self._still_pins():
            yield from self._search()
        oldest = self._oldest(segments)
        found = self._found if oldest is not None and self._still_pins() else None
        yield None if found is None or oldest is None else self._describe(found, oldest, segments[-1])

    def _oldest(self, segments: range) -> int | None:
        """Return the oldest segment that is needed, or None if it is the current one."""
        oldest = self._queues.pins.oldest()
        return oldest if oldest is not None and oldest < segments[-1] else None

    def _still_pins(self) -> bool:
        found = self._found
        if found is None or self._queues.get(found.name) is not found:
            return False
        return found.first_segment() == self._queues.pins.oldest()

    def _search(self) -> Iterator[None]:
        self._found = None
        listed = list(self._queues)
        for at in range(0, len(listed), QUEUES_PER_STEP):
            oldest = self._queues.pins.oldest()
            for queue in listed[at : at + QUEUES_PER_STEP]:
                if queue.first_segment() == oldest:
                    self._found = queue
                    return
            yield None

    def _describe(self, found: Queue, oldest: int, current: int) -> SegmentPin:
        own = set(found.segments())
        others = (segment for segment, queues in self._queues.pins.by_segment() if queues > (segment in own))
        return SegmentPin(found.name, current - oldest, min(next(others, current), current) - oldest)
