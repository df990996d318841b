"""Which segments are still needed: counted by number, so that files are removed without a search through the queues."""

from __future__ import annotations

from heapq import heappop, heappush


class SegmentPins:
    """Counts, for each segment, the queues that have records in it."""

    def __init__(self) -> None:
        self._queues: dict[int, int] = {}
        self._oldest: list[int] = []  # a heap of every needed segment, and of some that were dropped
        self._in_heap: set[int] = set()  # each of them once, however often a segment is dropped and needed again

    def add(self, segment: int) -> None:
        """Note that one more queue holds records in *segment*."""
        self._queues[segment] = self._queues.get(segment, 0) + 1
        if segment not in self._in_heap:
            self._in_heap.add(segment)
            heappush(self._oldest, segment)

    def drop(self, segment: int) -> None:
        """Note that one queue no longer needs *segment*."""
        left = self._queues[segment] - 1
        if left:
            self._queues[segment] = left
        else:
            del self._queues[segment]

    def by_segment(self) -> list[tuple[int, int]]:
        """Return each segment with retained records, and the number of queues that have some in it; oldest first."""
        return sorted(self._queues.items())

    def oldest(self) -> int | None:
        """Return the oldest segment that is needed, or None if nothing is retained.

        Called several times per batch, so its cost must not depend on the number of segments.
        """
        oldest = self._oldest
        while oldest and oldest[0] not in self._queues:
            self._in_heap.discard(heappop(oldest))
        return oldest[0] if oldest else None
