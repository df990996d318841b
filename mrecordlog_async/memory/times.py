"""Times at which records were stored: kept where they change along a queue's positions, in steps of 0.1 s.

A record's time is that of its batch's COMMIT, rounded down to a **tick** of 0.1 s, so it is the same after every
restart. It is the wall clock of the machine: it may go back, and then ticks do not ascend along positions.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import datetime, timedelta

from mrecordlog_async.model import EPOCH, Times, time_of_tick

TICK_NS = 100_000_000
TICKS_PER_SECOND = 10

NO_TICK = 0
"""No record, or a time that is not known."""

ENTRY_BYTES = 18
"""Memory of an entry: two integers, in arrays that grow by a sixteenth at a time."""

INDEX_OVERHEAD_BYTES = 220
"""Memory of an index in addition to its entries: the object and two arrays."""

DROPPED_MAX = 64
"""Up to this many entries at the front stay until half of all are dropped."""

FUTURE_SECONDS_MAX = 60
"""A time may be this far ahead of this machine's clock: it may come from another machine."""


class TimeIndex:
    """The tick of each position: an entry holds from its position to that of the next one.

    Entries ascend by position. Where ticks do too, which is the rule, a search takes no longer than for a position.
    """

    __slots__ = ("_dropped", "_positions", "_ticks", "_went_back")

    def __init__(self, position: int, tick: int) -> None:
        self._positions = array("q", (position,))
        self._ticks = array("q", (tick,))
        self._dropped = 0  # entries at the front that are no longer needed
        self._went_back = False

    def __len__(self) -> int:
        return len(self._positions) - self._dropped

    @property
    def memory_bytes(self) -> int:
        """Memory of the index."""
        return INDEX_OVERHEAD_BYTES + ENTRY_BYTES * len(self._positions)

    def add(self, position: int, tick: int) -> None:
        """Note that *tick* holds from *position* on, which is not before the last entry's."""
        self._went_back |= tick < self._ticks[-1]
        self._positions.append(position)
        self._ticks.append(tick)

    def at(self, position: int) -> int:
        """Return the tick of *position*; that of the first entry before it."""
        return self._ticks[self._covering(position)]

    def newest(self) -> int:
        """Return the tick of the last entry."""
        return self._ticks[-1]

    def first_at(self, tick: int) -> int | None:
        """Return the position of the first entry with *tick* or a later one, or None.

        Takes time in proportion to the number of entries if the clock went back between any two.
        """
        ticks = self._ticks
        if self._went_back:
            found = next((at for at in range(self._dropped, len(ticks)) if ticks[at] >= tick), len(ticks))
        else:
            found = bisect_left(ticks, tick, self._dropped)
        return self._positions[found] if found < len(ticks) else None

    def between(self, start: int, stop: int) -> Times:
        """Return the times of positions *start* … *stop* - 1."""
        first = self._covering(start)
        end = bisect_left(self._positions, stop, first + 1)
        found = Times(self._positions[first:end], self._ticks[first:end])
        found.positions[0] = start
        return found

    def spans(self, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first position, position after the last, tick) of each entry; the last one holds until *stop*."""
        for at in range(self._dropped, len(self._ticks)):
            end = self._positions[at + 1] if at + 1 < len(self._ticks) else stop
            yield self._positions[at], end, self._ticks[at]

    def drop_before(self, position: int) -> None:
        """Drop the entries that hold for no position from *position* on."""
        self._dropped = self._covering(position)
        if DROPPED_MAX < self._dropped > len(self._positions) // 2:
            del self._positions[: self._dropped], self._ticks[: self._dropped]
            self._dropped = 0

    def _covering(self, position: int) -> int:
        return max(bisect_right(self._positions, position, self._dropped) - 1, self._dropped)


def age_of(tick: int) -> float:
    """Return how many seconds ago *tick* was, by the clock of this machine; 0 for a tick in the future."""
    return max(time.time() - tick / TICKS_PER_SECOND, 0.0)


def tick_of_time(moment: datetime) -> int:
    """Return the tick that *moment* is in.

    Raises:
        TypeError: It is not a datetime.
        ValueError: It has no time zone, or it is in the future.
    """
    if not isinstance(moment, datetime):
        raise TypeError(f"a time must be a datetime with a time zone, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"time {moment} has no time zone: use datetime.now(UTC) or moment.astimezone()")
    since = moment - EPOCH
    if since.total_seconds() > time.time() + FUTURE_SECONDS_MAX:
        raise ValueError(f"time {moment} is in the future: it is {time_of_tick(time.time_ns() // TICK_NS)} now")
    return since // timedelta(milliseconds=100)
