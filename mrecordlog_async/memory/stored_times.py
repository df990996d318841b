"""The times at which the records of a queue were stored: those in memory, and those on the disk."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.times import NO_TICK, first_at, spans_of, tick_of, times_between
from mrecordlog_async.model import Times


def tick_at(queue: Queue, position: int) -> int:
    """Return when the record at *position* was stored, which is retained; `NO_TICK` if that is unknown."""
    if position < queue.memory_first:
        tick, highest = ticks_of_place(queue, position)
        if tick != highest:
            raise queue.on_disk(position)
        return tick
    return queue.tick if queue.ticks is None else tick_of(queue.ticks, position)


def oldest_tick(queue: Queue) -> int:
    """Return when the oldest retained record was stored; `NO_TICK` if there is none, or it is unknown."""
    first = queue.first_record()
    return NO_TICK if first is None else tick_near(queue, first)


def tick_near(queue: Queue, position: int) -> int:
    """Return what `tick_at` does; for a record on the disk, when the first record of its place was stored."""
    return ticks_of_place(queue, position)[0] if position < queue.memory_first else tick_at(queue, position)


def ticks_of_place(queue: Queue, position: int) -> tuple[int, int]:
    """Return the first and the highest tick of the place on the disk that has *position*, or of the next one."""
    index, place = next(queue.places(position, queue.memory_first))
    return index.first_ticks[place], index.highest_ticks[place]


def position_at(queue: Queue, tick: int) -> int:
    """Return the first position that was stored at *tick* or later; the next position if none was.

    Every retained record before it was stored earlier, even if the clock went back since. Raises RecordsOnDiskError
    if it is in a place on the disk in which the time changes. Where the clock went back inside a place that a truncate
    has cut, it may be the first position, although that was stored earlier.
    """
    return position_from(queue, queue.first_position, tick)


def position_from(queue: Queue, start: int, tick: int) -> int:
    """Do what `position_at` does, where every retained record before *start* was stored before *tick*."""
    start = max(start, queue.first_position)
    for index, place in queue.places(start, queue.memory_first):
        if index.highest_ticks[place] >= tick:
            first = max(index.first_positions[place], start)
            if index.first_ticks[place] < tick:
                raise queue.on_disk(first)
            return first
    for position, stored in _first_ticks(queue, tick):
        if stored >= tick:
            return max(position, queue.first_position)
    return queue.next_position


def _first_ticks(queue: Queue, tick: int) -> Iterator[tuple[int, int]]:
    """Yield positions with their ticks; among them, in order, the first of all with *tick* or a later one."""
    if queue.ticks is not None:
        found = first_at(queue.ticks, tick)
        if found is not None:
            yield found, tick
    elif queue.tick != NO_TICK:
        yield max(queue.first_position, queue.memory_first), queue.tick


def tick_spans(
    queue: Queue, start: int = 0, stop: int | None = None, most: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield (first position, position after the last, tick) of retained positions *start* … *stop* - 1, in order.

    The queue must not change meanwhile. Of a place on the disk, the tick is the highest one. most: yield about this
    many spans of the other records; where there are more, each covers several.
    """
    start = max(start, queue.first_position)
    stop = queue.next_position if stop is None else min(stop, queue.next_position)
    for index, place in queue.places(start, stop):
        end = min(index.next_positions[place], queue.memory_first, stop)
        yield max(index.first_positions[place], start), end, index.highest_ticks[place]
    start, end = max(start, queue.memory_first), stop
    if start < end and queue.ticks is not None:
        for position, following, tick in spans_of(queue.ticks, start, end, most):
            yield max(position, start), following, tick
    elif start < end and queue.store.has_runs():
        yield start, end, queue.tick


def times_of(queue: Queue, start: int, stop: int) -> Times:
    """Return the times of positions *start* … *stop* - 1, at least one and none of them truncated."""
    if start < queue.memory_first:
        raise queue.on_disk(start)
    if queue.ticks is not None:
        return times_between(queue.ticks, start, stop)
    return Times(array("q", (start,)), array("q", (queue.tick,)))


def held_times(queue: Queue, start: int, stop: int) -> Times:
    """Return what `times_of` does, of those positions whose records are in memory now."""
    start = max(start, queue.first_position, queue.memory_first)
    return times_of(queue, start, stop) if start < stop else Times.none()
