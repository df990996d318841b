"""Records leave memory: those of one segment are collected for its gathered file, and later dropped. Pure; in steps.

Each step takes a queue, or a part of a large one. A caller that holds `Queues.lock` takes as many as it has time for:
between two calls anything may happen to the queues, so each step looks them up again.
"""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.format.gathered import GatheredIndex
from mrecordlog_async.memory.collected import CollectedRuns
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import times_of

PIECES_AT_ONCE = 64
"""Runs of one queue in a step: as objects the garbage collector sees no more than these at a time."""


def collect(queues: Queues, segment: int, found: CollectedRuns) -> Iterator[None]:
    """Collect what is retained of a complete *segment*."""
    for queue_id in queues.pins.queue_ids(segment):
        yield from _collect_queue(queues, queue_id, segment, found)


def _collect_queue(queues: Queues, queue_id: int, segment: int, found: CollectedRuns) -> Iterator[None]:
    """Collect what a queue has. Seals its tail: it is to be whole on the disk."""
    queue = queues.by_id(queue_id)
    bounds = queue.bounds_in(segment) if queue is not None else None
    if queue is None or bounds is None:
        return
    position, stop = bounds
    queues.grow(queue.seal())
    found.begin(queue_id)
    found.add_times(times_of(queue, position, stop))
    while held := queue.held(position, stop, PIECES_AT_ONCE):
        found.add_runs(held)
        position = held[-1].next_position
        yield
    yield


def collect_and_leave(queues: Queues, index: GatheredIndex) -> Iterator[CollectedRuns]:
    """Yield what a complete segment has of each queue; it leaves memory once *index* has it, before the next queue.

    The tails of all queues, sealed at once, would be in the heap twice: what they were copied from leaves holes.
    """
    segment = index.head.segment
    ids = queues.pins.queue_ids(segment)
    queues.pins.gathered[segment] = index  # its memory is counted once it is whole
    for queue_id in ids:
        found, known = CollectedRuns(), len(index.ids)
        for _ in _collect_queue(queues, queue_id, segment, found):
            pass
        yield found
        del found  # or its records stay until those of the next queue are joined
        for _ in leave(queues, index, known):
            pass
    queues.pins.add_gathered(index)


def leave(queues: Queues, index: GatheredIndex, first: int = 0) -> Iterator[None]:
    """Drop from memory the records of a segment, which are on the disk as *index* has it, from its queue *first* on."""
    for at, queue_id in enumerate(index.ids[first:], first):
        for place in range(index.starts[at], index.starts[at + 1]):
            queue = queues.by_id(queue_id)
            if queue is not None:
                queues.grow(queue.leave(index, place))
            yield
