"""The queues that come first in an order other than by name, found a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.times import NO_TICK

QUEUES_PER_STEP = 1_000
"""A step of this many queues takes about half a millisecond."""

LAST = 2**64
"""Rank of a queue that keeps no segment, or whose oldest record has no known time."""

RANKS: dict[str, Callable[[Queue], float]] = {
    "records": lambda queue: -queue.records,
    "bytes": lambda queue: -queue.live_bytes(),
    "segment": lambda queue: LAST if (first := queue.first_segment()) is None else first,
    "age": lambda queue: LAST if (tick := queue.oldest_tick()) == NO_TICK else tick,
}
"""Ranks by the name of their order; the lowest comes first: most records, most bytes, oldest segment, oldest record."""


def first_in_steps(queues: Iterable[Queue], order: str, most: int) -> Iterator[list[Queue]]:
    """Yield, after each step, the first *most* of the queues seen so far. The last list is the result."""
    rank, listed = RANKS[order], list(queues)
    best: list[Queue] = []
    for at in range(0, len(listed), QUEUES_PER_STEP):
        best = nsmallest(most, best + listed[at : at + QUEUES_PER_STEP], key=rank)
        yield best
