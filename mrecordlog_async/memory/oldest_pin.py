"""Which queue keeps the oldest segment on the disk, and how many segments only that queue keeps."""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.metrics import SegmentPin

QUEUES_PER_STEP = 1_000
"""A step of this many queues takes 0.14 ms. 100,000 queues in one step would hold the event loop for 14 ms."""


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
