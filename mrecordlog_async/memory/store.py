"""The place of one queue's records. `RetainedStore`: in memory, as sealed runs, open ones, and loose records.

Runs arrive as batches made them. A large run is kept as it is: it is **sealed**. Small runs stay **open** and are
joined into one sealed run once they hold 32 to 64 KiB or 500 to 1,000 records. So a retained record costs its payload
and four bytes, plus four or eight where neighbouring positions have gaps. Truncating drops whole runs from the left,
so its cost does not depend on the length of the queue.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain

from mrecordlog_async.memory.gapped import GappedRun, HeldRun
from mrecordlog_async.memory.loose import NO_PLACES, Blocks
from mrecordlog_async.memory.pieces import (
    NO_RUNS,
    Runs,
    RunSizes,
    as_runs,
    checksum_of,
    checksum_of_one,
    cut_ends,
)
from mrecordlog_async.memory.stores import Left, Store
from mrecordlog_async.model import OFFSET_BYTES, Record, Run

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

LOOSE_RECORDS_MAX = 512
LOOSE_SPREAD = 256
"""Loose records are settled when there are this many, or up to `LOOSE_SPREAD` - 1 fewer: the queue's id decides."""

LOOSE_RECORDS_LEAST = LOOSE_RECORDS_MAX - LOOSE_SPREAD + 1
"""With fewer, no queue's are settled for their number. More than `KEPT_RECORDS`, so that they become a sealed run."""

PLACES_OVERHEAD_BYTES = 120
"""Memory of the array of a queue's places in addition to its items."""


class RetainedStore:
    """The records of one queue in memory. Readers get runs, which never change."""

    __slots__ = (
        "_blocks",
        "_dead_records",
        "_id",
        "_open_bytes",
        "_open_records",
        "_open_runs",
        "_runs",
        "held_bytes",
        "loose",
        "loose_first",
        "records",
    )

    can_continue = True

    def __init__(self, queue_id: int, blocks: Blocks | None = None) -> None:
        self._id = queue_id
        self._blocks = blocks
        self.records = 0
        self.held_bytes = 0
        self.loose = NO_PLACES
        self.loose_first = 0
        self._runs = NO_RUNS
        self._open_runs = 0  # the last runs, which are to be joined; the others are sealed
        self._open_bytes = 0
        self._open_records = 0
        self._dead_records = 0  # records of the oldest run that are truncated

    # Reading. The runs come first, then the loose records.

    def pieces(self, first: int, last: int, most: int | None = None, records_max: int | None = None) -> list[HeldRun]:
        """Return what memory has of positions *first* … *last* - 1; see `Store.pieces`."""
        if first >= last:
            return []
        # Asking the shared empty runs takes a quarter of a read of few records.
        found = self._runs.between(first, last, most) if self._runs is not NO_RUNS else []
        if self.loose and (most is None or len(found) < most):
            loose = max(first, self.loose_first)
            if last > loose:
                found.append(self._loose_run(loose, last if records_max is None else min(last, loose + records_max)))
        return found

    def head(self, first: int, last: int) -> list[HeldRun]:
        """Return the oldest part of what `pieces` returns; see `Store.head`."""
        runs = self._runs
        is_sealed = runs.ended_by(first) < len(runs) - self._open_runs
        found = runs.between(first, last, 1 if is_sealed else None)
        if not found and self.loose and first < last:
            found = [self._loose_run(first, last)]
        return found

    def dense(self, start: int, stop: int, bytes_max: int) -> list[Run] | None:
        """Return the runs of positions *start* … *stop* - 1 if each has a record; see `Store.dense`."""
        loose = max(start, self.loose_first) if self.loose else stop
        found = self.pieces(start, min(stop, loose))
        if loose < stop:
            before = sum([len(run[2]) for run in found])
            if found and type(found[0]) is Run:
                before -= found[0].bytes_before(max(start - found[0][0], 0))
            places = self.loose[loose - self.loose_first :][: stop - loose]
            if self._blocks is None or self._blocks.count_within(places, bytes_max - before) < len(places):
                return None
            found.append(self._loose_run(loose, stop))
        if not found or GappedRun in map(type, found) or found[0][0] > start or found[-1].next_position < stop:
            return None
        records = sum([len(run[1]) for run in found]) // OFFSET_BYTES - len(found)
        if records != found[-1].next_position - found[0][0]:
            return None
        return found  # type: ignore[return-value]  # all are Runs

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield the runs from *start* on; see `Store.runs_from`."""
        runs = self._runs.starting_at(start)
        return chain(runs, self._loose_runs(start, records_max, bytes_max)) if self.loose else runs

    def _loose_runs(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        first = self.loose_first
        if self.loose and start < first + len(self.loose):
            assert self._blocks is not None
            start = max(start, first)
            places = self.loose[start - first : start - first + records_max]
            yield self._loose_run(start, start + max(self._blocks.count_within(places, bytes_max), 1))

    def last_record(self) -> Record | None:
        """Return the newest retained record."""
        if self.loose:
            return Record(self.loose_first + len(self.loose) - 1, self._newest_loose_payload())
        if not self._runs:
            return None
        run = self._runs.newest()
        start, stop = run.ends()[-2:]
        return Record(run.next_position - 1, run.payload[start:stop])

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""
        if not self._runs:
            return self.loose_first if self.loose else None
        oldest = self._runs.oldest()
        dead = self._dead_records
        return oldest.first_position + (oldest.distance(dead) if isinstance(oldest, GappedRun) else dead)

    def end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""
        if self.loose:
            return self.loose_first + len(self.loose)
        return self._runs.end() if self._runs else None

    def live_bytes(self) -> int:
        """Return the payload bytes of the retained records."""
        if not self._dead_records:
            return self.held_bytes
        oldest = self._runs.oldest()
        return self.held_bytes - memoryview(oldest.offsets).cast("i")[self._dead_records]

    def has_runs(self) -> bool:
        """Return whether there is a record that is not loose."""
        return bool(self._runs)

    def checksum(self, first: int, stop: int) -> int:
        """Return the checksum of the last append; see `Store.checksum`. A loose record is an append."""
        if self.loose:
            return checksum_of_one(self._newest_loose_payload())
        newest = self._runs.newest()
        # Usually the append is the newest run as a whole, which needs no search.
        if newest.first_position == first and type(newest) is Run:
            return checksum_of([newest])
        return checksum_of(as_runs(cut_ends(self.pieces(first, stop), first, stop)))

    # Adding.

    def append(self, run: Run, records: int, size: int, continues: bool) -> int:
        """Add *run* after the others, as a sealed or an open one; see `Store.append`."""
        first, offsets, payload = run
        self.records += records
        self.held_bytes += size
        grown = RUN_OVERHEAD_BYTES + len(offsets) + size
        if self._runs is NO_RUNS:
            self._runs = Runs()
        if size >= KEPT_BYTES or records >= KEPT_RECORDS:
            if self._open_runs:
                grown += self.seal()
            self._runs.append_large(run)
            return grown
        self._runs.append(first, offsets, payload)
        self._open_runs += 1
        self._open_bytes += size
        self._open_records += records
        if (
            self._open_records >= FULL_RECORDS_MIN or self._open_bytes >= FULL_BYTES_MIN
        ) and self._open_runs_are_full():
            grown += self.seal()
        return grown

    def seal(self) -> int:
        """Join the open runs to one; return by how many bytes the memory in use grew, which is seldom above 0."""
        if not self._open_runs:
            return 0
        grown = 0
        if self._open_runs > 1:
            run = self._runs.join_newest(self._open_runs)
            grown = -(self._open_runs - 1) * (RUN_OVERHEAD_BYTES + OFFSET_BYTES)
            if isinstance(run, GappedRun):
                grown += len(run.positions)
        self._open_runs = self._open_bytes = self._open_records = 0
        return grown

    def _open_runs_are_full(self) -> bool:
        spread = self._id % SEAL_SPREAD
        return self._open_records >= SEAL_RECORDS - spread or self._open_bytes >= SEAL_BYTES - SPREAD_BYTES * spread

    # Loose records. `Queues` adds their places itself.

    def begin_loose(self, position: int) -> int:
        """Get ready for a loose record at *position*; see `Store.begin_loose`."""
        self.loose, self.loose_first = array("Q"), position
        return PLACES_OVERHEAD_BYTES

    def loose_are_full(self) -> bool:
        """Return whether there are enough loose records for a run. How many that is depends on the queue's id."""
        return len(self.loose) >= LOOSE_RECORDS_MAX - self._id % LOOSE_SPREAD

    def loose_ticks(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return when loose records were stored; see `Store.loose_ticks`."""
        return self._blocks.ticks(self.loose[start:stop]) if self._blocks is not None else []

    def settle(self) -> int:
        """Join the loose records to a run."""
        count, first = len(self.loose), self.loose_first
        run = self._loose_run(first, first + count)
        size = len(run.payload)
        # They are counted already.
        self.records -= count
        self.held_bytes -= size
        grown = self.append(run, count, size, False)
        # After a roll all queues are settled, and most of them have too few records for a sealed run.
        self._runs.rest()
        return grown + self._drop_places(count)

    def _drop_places(self, count: int) -> int:
        """Release the places of the first *count* loose records, which were settled or truncated."""
        assert self._blocks is not None
        places, grown = self.loose, 0
        if count == len(places):
            self.loose = NO_PLACES
            grown = -PLACES_OVERHEAD_BYTES
        else:
            self.loose = places[count:]
            self.loose_first += count
        self._blocks.release(places[:count])
        return grown

    def _newest_loose_payload(self) -> bytes:
        assert self._blocks is not None
        return self._blocks.payload(self.loose[-1])

    def _loose_run(self, start: int, stop: int) -> Run:
        """Return the loose records with positions *start* … *stop* - 1, at least one."""
        first = self.loose_first
        start = max(start, first)
        assert self._blocks is not None  # only `Queues` adds places
        return self._blocks.joined(start, self.loose[start - first : stop - first])

    # Dropping.

    def drop_before(self, position: int) -> int:
        """Drop loose records before *position*, and runs that end there; see `Store.drop_before`."""
        count = min(position - self.loose_first, len(self.loose)) if self.loose else 0
        grown = self._drop_loose(count) if count > 0 else 0
        return grown + self._drop_dead_runs(position)

    def clear(self) -> None:
        """Drop everything. Its cost does not depend on what there was, except for loose records."""
        if self.loose:
            self._drop_places(len(self.loose))
        self._runs = NO_RUNS
        self._open_runs = self._open_bytes = self._open_records = 0
        self.records = self.held_bytes = self._dead_records = 0

    def _drop_loose(self, count: int) -> int:
        """Drop the first *count* loose records: they are truncated."""
        self.records -= count
        assert self._blocks is not None
        self.held_bytes -= self._blocks.size(self.loose[:count])
        return self._drop_places(count)

    def _drop_dead_runs(self, start: int) -> int:
        """Drop the runs that end before *start*; count the records before it in the oldest run that stays."""
        runs, grown = self._runs, 0
        oldest = runs.oldest() if runs else None
        if oldest is not None and oldest.next_position <= start:
            grown = -self._drop_runs(runs.ended_by(start))
            oldest = runs.oldest() if runs else None
        before = oldest.before(start) if oldest is not None else 0
        self.records -= before - self._dead_records
        self._dead_records = before
        return grown

    def _drop_runs(self, count: int) -> int:
        """Drop the first *count* runs; return their memory."""
        opened = count - (len(self._runs) - self._open_runs)
        if opened > 0:  # open ones, too
            sealed = self._runs.remove_oldest(count - opened)
            removed = self._runs.remove_oldest(opened)
            self._open_runs -= opened
            self._open_records -= removed.records
            self._open_bytes -= removed.payload_bytes
            removed = RunSizes(*map(sum, zip(sealed, removed, strict=True)))
        else:
            removed = self._runs.remove_oldest(count)
        self.records -= removed.records - self._dead_records
        self._dead_records = 0
        self.held_bytes -= removed.payload_bytes
        return _memory_of(removed)

    # Leaving.

    def before(self, position: int) -> tuple[int, int]:
        """Return how much of the oldest piece is before *position*; see `Store.before`."""
        oldest = self._runs.oldest()
        records = oldest.before(position)
        return records, memoryview(oldest.offsets).cast("i")[records]

    def leave(self, stop: int) -> Left:
        """Drop the sealed runs that end at or before *stop*; see `Store.leave`."""
        runs, dead = self._runs, self._dead_records
        count = min(runs.ended_by(stop), len(runs) - self._open_runs)
        if not count:
            return Left(0, 0, 0, None)
        removed = runs.remove_oldest(count)
        self._dead_records = 0
        following = runs.oldest().first_position if runs else self.loose_first if self.loose else None
        return Left(-_memory_of(removed), removed.records - dead, removed.payload_bytes, following)


class RetainedStores:
    """Makes stores that keep all records in memory."""

    keeps_loose = True

    def new_store(self, queue_id: int, blocks: Blocks) -> Store:
        """Return the store of a new queue."""
        return RetainedStore(queue_id, blocks)

    def enter_segment(self, segment: int) -> None:
        """Do nothing: it does not matter where records are on the disk."""

    def begin_batch(self, batch: int, offset: int) -> None:
        """Do nothing: it does not matter where records are on the disk."""


def _memory_of(runs: RunSizes) -> int:
    return runs.runs * RUN_OVERHEAD_BYTES + runs.payload_bytes + runs.other_bytes
