"""Which queue keeps the oldest segment on the disk, and how many segments only that queue keeps."""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.metrics import SegmentPin

QUEUES_PER_STEP = 1_000
"""A step of this many queues takes 0.14 ms. 100,000 queues in one step would hold the event loop for 14 ms."""


def oldest_pin_in_steps(queues: Queues, segments: range) -> Iterator[SegmentPin | None]:
    """Search *queues* for the one that needs the oldest of *segments*, a step at a time.

    Other work may run between two steps: the queues are listed once, at the start. Without older segments than the
    current one, the last of *segments*, nothing is searched and nothing is yielded.

    Yields:
        The result so far, after each step. The last one is the result.
    """
    first = second = current = segments[-1]
    listed = list(queues) if len(segments) > 1 else []
    name = ""
    for at in range(0, len(listed), QUEUES_PER_STEP):
        for queue in listed[at : at + QUEUES_PER_STEP]:  # a plain loop: heapq.nsmallest takes twice as long
            segment = queue.first_segment()
            if segment is not None and segment < second:
                if segment < first:
                    first, second, name = segment, first, queue.name
                else:
                    second = segment
        yield SegmentPin(name, current - first, second - first) if first < current else None
