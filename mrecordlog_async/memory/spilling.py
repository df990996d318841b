"""Records leave memory: those of one segment are collected for its gathered file, and later dropped. Pure; in steps.

Each step takes a queue, or a part of a large one. A caller that holds `settling.lock` takes as many as it has time for:
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
    """Collect what is retained of a complete *segment*. Joins what is loose or open: it is to be whole on the disk."""
    for queue_id in queues.pins.queue_ids(segment):
        queue = queues.by_id(queue_id)
        bounds = queue.bounds_in(segment) if queue is not None else None
        if queue is None or bounds is None:
            continue
        position, stop = bounds
        queues.settling.grown_bytes += queue.settle_before(stop)
        found.begin(queue_id)
        found.add_times(times_of(queue, position, stop))
        while held := queue.held(position, stop, PIECES_AT_ONCE):
            found.add_runs(held)
            position = held[-1].next_position
            yield
        yield


def leave(queues: Queues, index: GatheredIndex) -> Iterator[None]:
    """Drop from memory the records of a segment, which are on the disk as *index* has it."""
    for at, queue_id in enumerate(index.ids):
        for place in range(index.starts[at], index.starts[at + 1]):
            queue = queues.by_id(queue_id)
            if queue is not None:
                queues.settling.grown_bytes += queue.leave(index, place)
            yield
