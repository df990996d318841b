"""The retained records of one queue: sealed runs, small open ones that are still to be joined, and loose records.

Runs arrive as batches made them. A large run is kept as it is. Small runs stay open and are joined into one sealed run
once they hold 32 to 64 KiB or 500 to 1,000 records. So a retained record costs its payload and four bytes, plus four or
eight where neighbouring positions have gaps. Truncating drops whole runs from the left, so its cost does not depend on
the length of the queue.

The newest record that is not loose has its time in `_tick`. Once two such records have different ones, `_ticks` has an
entry wherever the time changes. A loose record has the time of its block, so that storing it costs nothing here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

from mrecordlog_async.memory.loose import NO_PLACES, Blocks
from mrecordlog_async.memory.pieces import (
    NO_RUNS,
    NO_SEALED_RUNS,
    GappedRun,
    HeldRun,
    Runs,
    SealedRuns,
    as_runs,
    cut_ends,
)
from mrecordlog_async.memory.times import ENTRY_BYTES, INDEX_OVERHEAD_BYTES, NO_TICK, TimeIndex
from mrecordlog_async.model import OFFSET_BYTES, Record, Run, Times


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


SEAL_BYTES = 65_536
SEAL_RECORDS = 1_000
"""Open runs are joined once they hold this much, or as little as half of it, depending on the queue's id.

With one limit for all, a thousand queues that get one record each in turn would fill at the same moment: joining all
of them stopped the event loop for 150 to 450 ms.
"""
SEAL_SPREAD = 512
SPREAD_BYTES = 64
FULL_RECORDS_MIN = SEAL_RECORDS - SEAL_SPREAD + 1
FULL_BYTES_MIN = SEAL_BYTES - SPREAD_BYTES * (SEAL_SPREAD - 1)
"""Below these limits the open runs are not full, whatever the queue's id. Checked first: computing the id's own limit
on every append makes applying it 10 % slower."""

KEPT_BYTES = SEAL_BYTES // 4
KEPT_RECORDS = SEAL_RECORDS // 4
"""A run this large is kept as it arrived: joining it would cost a copy and save less than two bytes per record."""

RUN_OVERHEAD_BYTES = 120
"""Memory of a run in addition to its bytes: two bytes objects and its places in the columns."""

QUEUE_OVERHEAD_BYTES = 500
"""Memory of an empty queue."""

LOOSE_RECORDS_MAX = 512
LOOSE_SPREAD = 256
"""Loose records are settled when there are so many, or up to `LOOSE_SPREAD` - 1 fewer, depending on the queue's id."""

LOOSE_RECORDS_LEAST = LOOSE_RECORDS_MAX - LOOSE_SPREAD + 1
"""With fewer, no queue's are settled for their number. More than `KEPT_RECORDS`, so that they become a sealed run."""

PLACES_OVERHEAD_BYTES = 120
"""Memory of the array of a queue's places in addition to its items."""


class RetainedRecords(StoredTimes):
    """The records of one queue from first_position to next_position. Readers get runs, which never change."""

    __slots__ = (
        "_dead_records",
        "_last_first",
        "_open_bytes",
        "_open_records",
        "_open_runs",
        "_sealed",
        "held_bytes",
        "id",
        "records",
    )

    def __init__(self, queue_id: int, first_position: int, next_position: int, blocks: Blocks | None) -> None:
        self.id = queue_id
        self.first_position = first_position
        self.next_position = next_position
        self.records = 0
        self.held_bytes = 0
        self.memory_bytes = QUEUE_OVERHEAD_BYTES
        self.loose = NO_PLACES  # of the loose records: the newest ones, up to next_position without a gap
        self._blocks = blocks
        self._sealed = NO_SEALED_RUNS
        self._open_runs = NO_RUNS
        self._open_bytes = 0
        self._open_records = 0
        self._last_first = -1  # first position of the append that ends at next_position; -1 if unknown
        self._dead_records = 0  # records of the oldest run that are before first_position
        self._tick = NO_TICK  # when the newest record was stored that is not loose; NO_TICK if there is none
        self._ticks: TimeIndex | None = None  # of these records, once two of them have different ones

    # Reading.

    def runs(self, start: int | None, stop: int | None) -> Sequence[Run]:
        """Return the retained runs with positions *start* … *stop* - 1, cut to them."""
        return as_runs(self.held(start, stop))

    def held(
        self, start: int | None, stop: int | None, most: int | None = None, records_max: int | None = None
    ) -> list[HeldRun]:
        """Return what `runs` returns in the form it is kept: records with gaps between them in one piece.

        most: return at most this many pieces, the first ones. Cutting may leave fewer, even none. records_max: no more
        records than this are wanted; what is joined only for this read has no more.
        """
        first = self.first_position if start is None else max(start, self.first_position)
        last = self.next_position if stop is None else min(stop, self.next_position)
        return cut_ends(self._reaching_into(first, last, most, records_max), first, last)

    def _reaching_into(
        self, first: int, last: int, most: int | None = None, records_max: int | None = None
    ) -> list[HeldRun]:
        """Return what holds positions *first* … *last* - 1, which are not truncated; the ends are uncut."""
        if first >= last:
            return []
        # Asking the shared empty runs takes a quarter of a read of few records.
        found = self._sealed.between(first, last, most) if self._sealed is not NO_SEALED_RUNS else []
        if most is None or len(found) < most:
            found += self._open_runs.between(first, last, None if most is None else most - len(found))
        loose = max(first, self._loose_first())
        if last > loose and (most is None or len(found) < most):
            found.append(self._loose_run(loose, last if records_max is None else min(last, loose + records_max)))
        return found

    def dense(self, start: int, stop: int, bytes_max: int) -> list[Run] | None:
        """Return the runs of positions *start* … *stop* - 1 if each has a record, with uncut ends; otherwise None.

        None also if loose records would have to be joined that do not fit into *bytes_max*.
        """
        loose = max(start, self._loose_first())
        found = self._reaching_into(start, min(stop, loose))
        if loose < stop:
            before = sum([len(run[2]) for run in found])
            if found and type(found[0]) is Run:
                before -= found[0].bytes_before(max(start - found[0][0], 0))
            places = self.loose[loose - self._loose_first() :][: stop - loose]
            if self._blocks is None or self._blocks.count_within(places, bytes_max - before) < len(places):
                return None
            found.append(self._loose_run(loose, stop))
        if not found or GappedRun in map(type, found) or found[0][0] > start or found[-1].next_position < stop:
            return None
        records = sum([len(run[1]) for run in found]) // OFFSET_BYTES - len(found)
        if records != found[-1].next_position - found[0][0]:
            return None
        return found  # type: ignore[return-value]  # all are Runs

    def head(self, start: int) -> list[HeldRun]:
        """Return the oldest part of what `held` returns: a sealed run, the few open ones, or the loose records."""
        first = max(start, self.first_position)
        run = self._sealed.first_from(first)
        found: list[HeldRun] = [*self._open_runs.between(first, self.next_position)] if run is None else [run]
        if not found and self.loose and first < self.next_position:
            found = [self._loose_run(first, self.next_position)]
        return cut_ends(found, first, self.next_position)

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield the runs with positions from *start* on, which must not be truncated. The first may begin before.

        What is joined only for this read has at most *records_max* records and *bytes_max* bytes, but at least one
        record. The queue must not change meanwhile.
        """
        sealed = self._sealed.starting_at(start)
        if not self._open_runs and not self.loose:
            return sealed
        return chain(sealed, self._open_runs.starting_at(start), self._loose_runs(start, records_max, bytes_max))

    def _loose_runs(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        if self.loose and start < self.next_position:
            assert self._blocks is not None
            first = self._loose_first()
            start = max(start, first)
            places = self.loose[start - first : start - first + records_max]
            yield self._loose_run(start, start + max(self._blocks.count_within(places, bytes_max), 1))

    def last_record(self) -> Record | None:
        """Return the newest retained record."""
        if self.loose:
            return Record(self.next_position - 1, self._newest_loose_payload())
        runs = self._open_runs or self._sealed
        if not runs:
            return None
        run = runs.newest()
        start, stop = run.ends()[-2:]
        return Record(run.next_position - 1, run.payload[start:stop])

    def held_end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""
        if self.loose:
            return self.next_position
        runs = self._open_runs or self._sealed
        return runs.newest().next_position if runs else None

    def live_bytes(self) -> int:
        """Return the payload bytes from first_position on."""
        if not self._dead_records:
            return self.held_bytes
        oldest = (self._sealed or self._open_runs).oldest()
        return self.held_bytes - memoryview(oldest.offsets).cast("i")[self._dead_records]

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""
        if 0 < self.records == self.next_position - self.first_position:
            return self.first_position  # without gaps, which is most often, no run has to be made
        runs = self._sealed or self._open_runs
        if not runs:
            return self._loose_first() if self.loose else None
        oldest = runs.oldest()
        if isinstance(oldest, GappedRun):
            return oldest.position_from(self.first_position)
        return max(oldest.first_position, self.first_position)

    # Runs.

    def _has_runs(self) -> bool:
        """Return whether there is a record that is not loose."""
        return bool(self._sealed or self._open_runs)

    def _keep(self, run: Run, records: int, size: int) -> None:
        """Add *run* after the others, as a sealed or an open one."""
        first, offsets, payload = run
        self.memory_bytes += RUN_OVERHEAD_BYTES + len(offsets) + size
        if size >= KEPT_BYTES or records >= KEPT_RECORDS:
            self._seal()
            self._add_sealed(run)
            return
        tail = self._open_runs
        if tail is NO_RUNS:
            tail = self._open_runs = Runs()
        tail.append(first, offsets, payload)
        self._open_bytes += size
        self._open_records += records
        if (
            self._open_records >= FULL_RECORDS_MIN or self._open_bytes >= FULL_BYTES_MIN
        ) and self._open_runs_are_full():
            self._seal()

    def _add_sealed(self, run: HeldRun) -> None:
        if self._sealed is NO_SEALED_RUNS:
            self._sealed = SealedRuns()
        self._sealed.append(run)

    def _seal(self) -> None:
        tail = self._open_runs
        if tail:
            run = tail.joined()
            self.memory_bytes -= (len(tail) - 1) * (RUN_OVERHEAD_BYTES + OFFSET_BYTES)
            if isinstance(run, GappedRun):
                self.memory_bytes += len(run.positions)
            self._add_sealed(run)
            self._reset_open_runs()

    def _open_runs_are_full(self) -> bool:
        spread = self.id % SEAL_SPREAD
        return self._open_records >= SEAL_RECORDS - spread or self._open_bytes >= SEAL_BYTES - SPREAD_BYTES * spread

    # Loose records.

    def loose_are_full(self) -> bool:
        """Return whether there are enough loose records for a run. How many that is depends on the queue's id."""
        return len(self.loose) >= LOOSE_RECORDS_MAX - self.id % LOOSE_SPREAD

    def settle(self) -> int:
        """Join the loose records to a run; return as `append` does."""
        if not self.loose:
            return 0
        held = self.memory_bytes
        first = self._loose_first()
        run = self._loose_run(first, self.next_position)
        for position, tick in enumerate(self._loose_ticks(self.loose), first):
            if tick != self._tick:
                self.note_tick(position, tick)
        self._keep(run, len(self.loose), len(run.payload))
        self._drop_places(len(self.loose))
        return self.memory_bytes - held

    def _drop_places(self, count: int) -> None:
        """Release the places of the first *count* loose records, which were settled or truncated."""
        assert self._blocks is not None
        places = self.loose
        if count == len(places):
            self._last_first = self._newest_append()
            self.loose = NO_PLACES
            self.memory_bytes -= PLACES_OVERHEAD_BYTES
        else:
            self.loose = places[count:]
        self._blocks.release(places[:count])

    def _loose_payloads(self, places: Sequence[int]) -> list[bytes]:
        assert self._blocks is not None  # only `Queues` adds places
        return self._blocks.payloads(places)

    def _newest_loose_payload(self) -> bytes:
        assert self._blocks is not None
        return self._blocks.payload(self.loose[-1])

    def _loose_run(self, start: int, stop: int) -> Run:
        """Return the loose records with positions *start* … *stop* - 1, at least one."""
        first = self._loose_first()
        start = max(start, first)
        return Run.of(start, self._loose_payloads(self.loose[start - first : stop - first]))

    def _newest_append(self) -> int:
        """Return the first position of the last append, or -1 if it is unknown. A loose record is an append."""
        return self.next_position - 1 if self.loose else self._last_first

    # Dropping.

    def _drop_loose(self, count: int) -> None:
        """Drop the first *count* loose records: they are truncated."""
        if count:
            self.records -= count
            self.held_bytes -= sum(map(len, self._loose_payloads(self.loose[:count])))
            self._drop_places(count)

    def _drop_dead_runs(self) -> None:
        """Drop the runs that end before first_position; count the records before it in the oldest run that stays."""
        start, sealed, tail = self.first_position, self._sealed, self._open_runs
        while sealed and sealed.oldest().next_position <= start:
            self._forget(sealed.drop_oldest())
        while not sealed and tail and tail.oldest().next_position <= start:
            run = tail.drop_oldest()
            self._forget(run)
            self._open_bytes -= len(run.payload)
            self._open_records -= run.record_count
        runs = sealed or tail
        dead = runs.oldest().before(start) if runs else 0
        self.records -= dead - self._dead_records
        self._dead_records = dead

    def _forget(self, run: HeldRun) -> None:
        self.records -= run.record_count - self._dead_records
        self._dead_records = 0
        self.held_bytes -= len(run.payload)
        self.memory_bytes -= _memory_bytes(run)

    def _clear(self) -> None:
        self._sealed = NO_SEALED_RUNS
        self._reset_open_runs()
        self._reset_ticks()
        self.records = self.held_bytes = self._dead_records = 0
        self.memory_bytes = QUEUE_OVERHEAD_BYTES

    def _reset_open_runs(self) -> None:
        self._open_runs = NO_RUNS
        self._open_bytes = self._open_records = 0


def _memory_bytes(run: HeldRun) -> int:
    positions = len(run.positions) if isinstance(run, GappedRun) else 0
    return RUN_OVERHEAD_BYTES + len(run.offsets) + len(run.payload) + positions
