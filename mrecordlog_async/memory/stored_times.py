"""When the records of one queue were stored: the part of a queue that `retained` extends.

The newest record that is not loose has its time in `_tick`. Once two such records have different ones, `_ticks` has an
entry wherever the time changes. A loose record has the time of its block, so that storing it costs nothing here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from mrecordlog_async.memory.loose import Blocks
from mrecordlog_async.memory.times import ENTRY_BYTES, INDEX_OVERHEAD_BYTES, NO_TICK, TimeIndex
from mrecordlog_async.model import Times


class StoredTimes:
    """The times of the records from first_position to next_position."""

    __slots__ = ("_blocks", "_tick", "_ticks", "first_position", "loose", "memory_bytes", "next_position")

    _blocks: Blocks | None
    _tick: int
    """When the newest record was stored that is not loose; `NO_TICK` if there is none."""
    _ticks: TimeIndex | None
    """Of these records, once two of them have different times."""
    first_position: int
    loose: array[int]
    memory_bytes: int
    next_position: int

    def note_tick(self, position: int, tick: int) -> None:
        """Note that the record at *position*, and those after it until the next note, were stored at *tick*."""
        if self._tick != NO_TICK:
            if self._ticks is None:
                self._ticks = TimeIndex(self.first_position, self._tick)
                self.memory_bytes += INDEX_OVERHEAD_BYTES + ENTRY_BYTES
            self._ticks.add(position, tick)
            self.memory_bytes += ENTRY_BYTES
        self._tick = tick

    def tick_at(self, position: int) -> int:
        """Return when the record at *position* was stored, which is retained; `NO_TICK` if that is unknown."""
        loose = position - self._loose_first()
        if loose >= 0:
            return self._loose_ticks(self.loose[loose : loose + 1])[0]
        return self._tick if self._ticks is None else self._ticks.at(position)

    def oldest_tick(self) -> int:
        """Return when the oldest retained record was stored; `NO_TICK` if there is none, or it is unknown."""
        first = self.first_record()
        return NO_TICK if first is None else self.tick_at(first)

    def position_at(self, tick: int) -> int:
        """Return the first position that was stored at *tick* or later; the next position if none was.

        Every retained record before it was stored earlier, even if the clock went back since.
        """
        for start, stored in self._first_ticks(tick):
            if stored >= tick:
                return max(start, self.first_position)
        return self.next_position

    def _first_ticks(self, tick: int) -> Iterator[tuple[int, int]]:
        """Yield positions with their ticks; among them, in order, the first of all with *tick* or a later one."""
        if self._ticks is not None:
            found = self._ticks.first_at(tick)
            if found is not None:
                yield found, tick
        elif self._tick != NO_TICK:
            yield self.first_position, self._tick
        yield from zip(range(self._loose_first(), self.next_position), self._loose_ticks(self.loose), strict=True)

    def tick_spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first position, position after the last, tick) from first_position on, where anything is retained.

        The queue must not change meanwhile.
        """
        start, loose = self.first_position, self._loose_first()
        if self._ticks is not None:
            for position, stop, tick in self._ticks.spans(loose):
                yield max(position, start), stop, tick
        elif self._has_runs():
            yield start, loose, self._tick
        for position, tick in enumerate(self._loose_ticks(self.loose), loose):
            yield position, position + 1, tick

    def times(self, start: int, stop: int) -> Times:
        """Return the times of positions *start* … *stop* - 1, at least one and none of them truncated."""
        loose = self._loose_first()
        if start >= loose:
            found = Times.none()
        elif self._ticks is not None:
            found = self._ticks.between(start, min(stop, loose))
        else:
            found = Times(array("q", (start,)), array("q", (self._tick,)))
        if stop > loose:
            first = max(start, loose)
            for position, tick in enumerate(self._loose_ticks(self.loose[first - loose : stop - loose]), first):
                found.add(position, tick)
        return found

    def _loose_ticks(self, places: Sequence[int]) -> list[int]:
        return self._blocks.ticks(places) if self._blocks is not None else []

    def _drop_ticks(self) -> None:
        """Forget the times of the records that were truncated; some are retained."""
        if not self._has_runs():
            self._reset_ticks()
        elif self._ticks is not None:
            held = self._ticks.memory_bytes
            # From the first record on, not from first_position: an entry without a record must not be found.
            first = self.first_record()
            self._ticks.drop_before(self.first_position if first is None else first)
            self.memory_bytes += self._ticks.memory_bytes - held

    def _reset_ticks(self) -> None:
        """Forget all times: every record is loose, or there is none."""
        if self._ticks is not None:
            self.memory_bytes -= self._ticks.memory_bytes
            self._ticks = None
        self._tick = NO_TICK

    # What the records themselves say.

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""
        raise NotImplementedError

    def _has_runs(self) -> bool:
        """Return whether there is a record that is not loose."""
        raise NotImplementedError

    def _loose_first(self) -> int:
        """Return the position of the first loose record; the next position if there is none."""
        return self.next_position - len(self.loose)
