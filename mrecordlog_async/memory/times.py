"""Times at which records were stored: kept where they change along a queue's positions, in steps of 0.1 s.

A record's time is that of its batch's COMMIT, rounded down to a **tick** of 0.1 s, so it is the same after every
restart. It is the wall clock of the machine: it may go back, and then ticks do not ascend along positions.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from struct import Struct

from mrecordlog_async.model import Times

NO_TICK = 0
"""No record, or a time that is not known."""

ENTRY_BYTES = 18
"""Memory of an entry: two integers, in an array that grows by an eighth at a time."""

INDEX_OVERHEAD_BYTES = 80
"""Memory of an index in addition to its entries."""


TimeIndex = bytearray
"""The tick of each position: an entry, position and tick as int64, holds from its position to that of the next one.

Entries ascend by position. Where ticks do too, which is the rule, a search takes no longer than for a position. Once
the clock went back, this and all later entries have their ticks negated: the newest one says how to search. It is not
an object with attributes, because the cycle collector would visit it for each queue.
"""

_ENTRY = Struct("<qq")

pack_time = _ENTRY.pack
"""Make an entry of a position and a tick, to be added to an index whose ticks ascend to it."""


def begin_times(position: int, tick: int) -> TimeIndex:
    """Return an index in which *tick* holds from *position* on."""
    return TimeIndex(_ENTRY.pack(position, tick))


def memory_of_times(index: TimeIndex) -> int:
    """Return the memory of *index*."""
    return INDEX_OVERHEAD_BYTES + ENTRY_BYTES * (len(index) // _ENTRY.size)


def note_time(index: TimeIndex, position: int, tick: int, before: int) -> None:
    """Note that *tick* holds from *position* on, not before the last entry; *before*: the tick until then."""
    # The last byte has the sign of the newest tick.
    index += _ENTRY.pack(position, -tick if tick < before or index[-1] > 127 else tick)


def tick_of(index: TimeIndex, position: int) -> int:
    """Return the tick of *position*; that of the first entry before it."""
    return abs(_ticks(index)[_covering(index, position)])


def first_at(index: TimeIndex, tick: int) -> int | None:
    """Return the position of the first entry with *tick* or a later one, or None.

    Takes time in proportion to the number of entries if the clock went back between any two.
    """
    ticks = _ticks(index)
    if ticks[-1] < 0:
        found = next((at for at, stored in enumerate(ticks.tolist()) if abs(stored) >= tick), len(ticks))
    else:
        found = bisect_left(ticks, tick)
    return _positions(index)[found] if found < len(ticks) else None


def times_between(index: TimeIndex, start: int, stop: int) -> Times:
    """Return the times of positions *start* … *stop* - 1."""
    positions = _positions(index)
    first = _covering(index, start)
    end = bisect_left(positions, stop, first + 1)
    found = Times(array("q", positions[first:end].tolist()), array("q", map(abs, _ticks(index)[first:end].tolist())))
    found.positions[0] = start
    return found


def spans_of(index: TimeIndex, start: int, stop: int, most: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield (first position, position after the last, tick) of each entry that holds between *start* and *stop*.

    The last one holds until *stop*. most: yield about this many at most; an entry then stands for those after it.
    """
    first = _covering(index, start)
    end = max(bisect_left(_positions(index), stop), first + 1)
    entries = slice(first, end, 1 if most is None else -((first - end) // most))
    positions = [*_positions(index)[entries].tolist(), stop]
    for (begin, end), tick in zip(pairwise(positions), _ticks(index)[entries].tolist(), strict=True):
        yield begin, end, abs(tick)


def drop_times(index: TimeIndex, position: int) -> None:
    """Drop the entries that hold for no position from *position* on."""
    del index[: _covering(index, position) * _ENTRY.size]  # a bytearray is shortened there without moving the rest


def _covering(index: TimeIndex, position: int) -> int:
    return max(bisect_right(_positions(index), position) - 1, 0)


def _positions(index: TimeIndex) -> memoryview[int]:
    return memoryview(index).cast("q")[::2]


def _ticks(index: TimeIndex) -> memoryview[int]:
    return memoryview(index).cast("q")[1::2]
