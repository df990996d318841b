"""One queue: its positions, and what log records do to it.

Log records are applied by position alone, whatever memory holds: a queue is empty when first_position == next_position.
Its records are in a `store`, its consumers in `consumers`. It knows itself which segments it needs, what its last
append was, and when its records were stored: the newest one has its time in `tick`, and once two of them have different
ones, `ticks` has an entry wherever the time changes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, KeysView, Sequence
from heapq import heappop, heappush
from struct import Struct

from mrecordlog_async.errors import RecordsOnDiskError
from mrecordlog_async.format.controls import ConsumerState, TableConsumer
from mrecordlog_async.format.gathered import GatheredIndex
from mrecordlog_async.format.stored_options import PLAIN, SEALED
from mrecordlog_async.format.table import LastAppendDigest, TableEntry
from mrecordlog_async.memory.consumers import NO_CONSUMERS, Consumers
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.runs import as_runs, cut_ends
from mrecordlog_async.memory.store import RetainedStore
from mrecordlog_async.memory.stores import Store
from mrecordlog_async.memory.times import (
    ENTRY_BYTES,
    NO_TICK,
    TimeIndex,
    begin_times,
    drop_times,
    memory_of_times,
    note_time,
)
from mrecordlog_async.model import OFFSET_BYTES, Run

QUEUE_OVERHEAD_BYTES = 500
"""Memory of an empty queue."""


class SegmentPins:
    """Counts, for each segment, the queues that have records in it.

    gathered: the index of each segment whose records may leave memory, or have left it. gathered_bytes: their memory.
    disk_only_bytes: payload bytes of the retained records that have left it. cuts: what a place with gaps has from a
    position of a queue on, records and bytes, where a truncate has left a part of it.
    """

    def __init__(self) -> None:
        self.gathered: dict[int, GatheredIndex] = {}
        self.gathered_bytes = 0
        self.disk_only_bytes = 0
        self.cuts: dict[tuple[int, int], tuple[int, int]] = {}
        self._queues: dict[int, int] = {}
        self._ids: dict[int, array[int]] = {}  # the queues that entered each segment, as long as it is not gathered
        self._oldest: list[int] = []  # a heap of every needed segment, and of some that were dropped
        self._in_heap: set[int] = set()  # each of them once, however often a segment is dropped and needed again

    def add(self, segment: int, queue_id: int) -> None:
        """Note that one more queue, which has not been there before, holds records in *segment*."""
        self._queues[segment] = self._queues.get(segment, 0) + 1
        ids = self._ids.get(segment)
        if ids is None:
            ids = self._ids[segment] = array("Q")
        ids.append(queue_id)
        if segment not in self._in_heap:
            self._in_heap.add(segment)
            heappush(self._oldest, segment)

    def drop(self, segment: int) -> None:
        """Note that one queue no longer needs *segment*."""
        left = self._queues[segment] - 1
        if left:
            self._queues[segment] = left
        else:
            del self._queues[segment]
            self._ids.pop(segment, None)
            if (index := self.gathered.pop(segment, None)) is not None:
                self.gathered_bytes -= index.memory_bytes

    @property
    def segments(self) -> KeysView[int]:
        """The segments that are needed, unsorted."""
        return self._queues.keys()

    def is_needed(self, segment: int) -> bool:
        """Return whether a queue has records in *segment*."""
        return segment in self._queues

    def queue_ids(self, segment: int) -> list[int]:
        """Return the ids of the queues that entered *segment*, ascending; some of them may have left it."""
        return sorted(set(self._ids.get(segment, ())))

    def add_gathered(self, index: GatheredIndex) -> None:
        """Note where the records of a segment are on the disk."""
        self.gathered[index.head.segment] = index
        self.gathered_bytes += index.memory_bytes
        self._ids.pop(index.head.segment, None)

    def by_segment(self) -> list[tuple[int, int]]:
        """Return each segment with retained records, and the number of queues that have some in it; oldest first."""
        return sorted(self._queues.items())

    def oldest(self) -> int | None:
        """Return the oldest segment that is needed, or None if nothing is retained.

        Called several times per batch, so its cost must not depend on the number of segments.
        """
        oldest = self._oldest
        while oldest and oldest[0] not in self._queues:
            self._in_heap.discard(heappop(oldest))
        return oldest[0] if oldest else None


ALONE = -2
"""Stands for the position of the last record: it is an append by itself."""

NO_SEGMENTS = bytearray()
"""Shared by all queues whose records are all in one segment, and always empty."""

_OLDER = Struct("<QQ")
"""A segment, and the position after its last record."""


class ReplayError(ValueError):
    """A log record does not fit the state that the log records before it left."""


class Queue:
    """State of one queue, from first_position to next_position. `Queues` owns it, and adds single records itself."""

    __slots__ = (
        "_older_segments",
        "_pins",
        "began",
        "consumers",
        "first_position",
        "id",
        "last_checksum",
        "last_checksum_of",
        "last_first",
        "memory_first",
        "name",
        "newest_segment",
        "next_position",
        "options",
        "store",
        "tick",
        "ticks",
    )

    def __init__(self, queue_id: int, name: str, pins: SegmentPins, store: Store | None = None) -> None:
        self.id = queue_id
        self.name = name
        self.first_position = 0
        self.next_position = 0
        self.began = 0  # no record was ever stored below it; 0 if unknown
        self.store: Store = store or RetainedStore(queue_id)
        self.memory_first = 0  # retained records before it are on the disk alone; 0 if there are none
        self._pins = pins
        self.last_first = -1  # first position of the append that ends at next_position; ALONE, or -1 if unknown
        self.last_checksum_of = -1  # the `last_first` that `last_checksum` belongs to
        self.last_checksum = 0
        self.tick = NO_TICK  # when the newest record was stored; NO_TICK if there is none
        self.ticks: TimeIndex | None = None  # of the records, once two of them have different ones
        self._older_segments = NO_SEGMENTS  # packed as `_OLDER`, which the cycle collector need not visit
        self.newest_segment: int | None = None  # with records up to next_position
        self.options = PLAIN
        self.consumers = NO_CONSUMERS

    def load(self, entry: TableEntry) -> None:
        """Take over what a segment's table has of this new queue: positions without records."""
        self.first_position, self.next_position, self.began = entry.first_position, entry.next_position, entry.began
        if entry.last_append is not None:
            self.last_first, self.last_checksum = entry.last_append
            self.last_checksum_of = self.last_first
        self.options = entry.options
        for name, state in entry.consumers:
            self.set_consumer(name, state)

    def table_entry(self) -> TableEntry:
        """Return what the next segment's table has to say about this queue."""
        first = self._newest_append()
        if first >= 0 and self.last_checksum_of != first:
            self._digest_last_append(first)
        has_consumers = self.consumers is not NO_CONSUMERS
        # A roll waits for the entries of all queues. Made by `tuple.__new__`, they take three quarters of the time.
        return tuple.__new__(
            TableEntry,
            (
                self.id,
                self.name,
                self.first_position,
                self.next_position,
                self.began,
                tuple.__new__(LastAppendDigest, (first, self.last_checksum)) if first >= 0 else None,
                self.options,
                tuple(map(TableConsumer._make, sorted(self.consumer_states()))) if has_consumers else (),
            ),
        )

    # Appending and truncating.

    def append(self, segment: int, run: Run, continues: bool = False, tick: int = NO_TICK) -> int:
        """Add *run*, which is stored in *segment*; return by how many bytes the memory in use grew.

        continues: it belongs to the same append as the run before it. tick: when it was stored. Raises ReplayError if a
        position is taken, or if there is no such append.
        """
        first, offsets, payload = run
        store, grown = self.store, 0
        records = len(offsets) // OFFSET_BYTES - 1
        if first < self.next_position:
            raise self._taken(first)
        if segment != self.newest_segment:
            self._enter(segment)
        if not continues:
            self.last_first = first
        elif first == self.next_position and self._newest_append() >= self.first_position and store.can_continue:
            self.last_first, self.last_checksum_of = self._newest_append(), -1
        else:
            raise ReplayError(f"queue {self.name!r}: position {first} continues an append that does not end there")
        if first != self.next_position and self.first_position == 0 == self.next_position:
            self.first_position = self.began = first
        if tick != self.tick:
            grown = self.note_tick(first, tick)
        self.next_position = first + records
        return grown + store.append(run, records, len(payload), continues)

    def _taken(self, position: int) -> ReplayError:
        return ReplayError(f"queue {self.name!r}: position {position} is taken, the next one is {self.next_position}")

    def truncate(self, position: int) -> int:
        """Drop positions up to and including *position*; return the number of records dropped."""
        if position < self.first_position:
            return 0
        store = self.store
        before = store.records
        last_first = self._newest_append()
        if self.first_position <= last_first <= position and self.last_checksum_of != last_first:
            self._digest_last_append(last_first)  # before its records are dropped: a repeat must still be recognized
        if self.consumers is not NO_CONSUMERS:
            self.consumers.truncate(self.first_position, position, self.count)
        if self.first_position < self.memory_first:
            self._drop_on_disk(position + 1)
        self.first_position = position + 1
        if self.first_position >= self.next_position:
            self.last_first = last_first if self.first_position == self.next_position else -1
            self.next_position = self.first_position
            self._clear()
        else:
            store.drop_before(self.first_position)
            self._drop_ticks()
        self._drop_dead_segments()
        return before - store.records

    def clear(self) -> None:
        """Drop everything, because the queue is deleted."""
        if self.first_position < self.memory_first:
            self._drop_on_disk(self.next_position)
        self._clear()
        self.first_position = self.next_position
        self._drop_dead_segments()

    def _clear(self) -> None:
        self.store.clear()
        self.tick, self.ticks = NO_TICK, None
        self.memory_first = 0

    # Reading.

    @property
    def memory_bytes(self) -> int:
        """Memory of the queue and its records."""
        ticks = self.ticks
        return QUEUE_OVERHEAD_BYTES + self.store.memory_bytes + (0 if ticks is None else memory_of_times(ticks))

    @property
    def records(self) -> int:
        """Number of retained records."""
        return self.store.records

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
        if first < min(last, self.memory_first):
            raise self.on_disk(first)
        return cut_ends(self.store.pieces(first, last, most, records_max), first, last)

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""
        if self.store.records and not self.has_gaps():
            return self.first_position  # without gaps, which is most often, no run has to be made
        for index, place in self.places(self.first_position, self.memory_first):
            return max(index.first_positions[place], self.first_position)
        return self.store.first_record()

    def held_end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""
        end = self.store.end()
        return end if end is not None else self.memory_first or None

    def live_bytes(self) -> int:
        """Return the payload bytes from first_position on."""
        return self.store.live_bytes()

    def has_gaps(self) -> bool:
        """Return whether positions without a record may lie between the first one and the next one."""
        return self.store.records != self.next_position - self.first_position

    def count(self, start: int, stop: int) -> int:
        """Return the number of retained records with positions *start* … *stop* - 1; see `amount`."""
        return self.amount(start, stop)[0]

    def amount(self, start: int, stop: int) -> tuple[int, int]:
        """Return the number of retained records with positions *start* … *stop* - 1, and their payload bytes.

        Of a place on the disk that is cut, all bytes count, and all records if its positions have gaps; but not where
        a truncate has cut it.
        """
        start, stop = max(start, self.first_position), min(stop, self.next_position)
        records = size = 0
        for index, place in self.places(start, stop):
            found = self._share(index, place, start, stop)
            records, size = records + found[0], size + found[1]
        for run in self.held(max(start, self.memory_first), stop):
            records, size = records + run.record_count, size + len(run.payload)
        return records, size

    # When records were stored. `stored_times` reads it.

    def note_tick(self, position: int, tick: int) -> int:
        """Note that the record at *position*, and those after it, were stored at *tick*; return as `append` does."""
        before, self.tick = self.tick, tick
        if before == NO_TICK:
            return 0
        grown = ENTRY_BYTES
        if self.ticks is None:
            self.ticks = begin_times(max(self.first_position, self.memory_first), before)
            grown += memory_of_times(self.ticks)
        note_time(self.ticks, position, tick, before)
        return grown

    def _drop_ticks(self) -> None:
        """Forget the times of the records that were truncated; some are retained."""
        if self.ticks is not None:
            # From the first record on, not from first_position: an entry without a record must not be found.
            first = self.memory_first or self.first_record()
            drop_times(self.ticks, self.first_position if first is None else first)

    # Records on the disk: those before memory_first, in the places of gathered segments.

    def places(self, start: int, stop: int) -> Iterator[tuple[GatheredIndex, int]]:
        """Yield the places on the disk that have any of positions *start* … *stop* - 1, oldest first.

        Each is an index and a number in it. Nothing may change meanwhile.
        """
        for index, places in self.places_by_segment(start, stop):
            for place in places:
                yield index, place

    def places_by_segment(self, start: int, stop: int) -> Iterator[tuple[GatheredIndex, range]]:
        """Yield what `places` does, with all numbers of an index at a time; there may be none."""
        stop = min(stop, self.memory_first)
        if start >= stop:
            return
        older = array("Q")  # in turn, a segment and the position after its last record
        older.frombytes(self._older_segments)
        at = bisect_right(older[1::2], start)
        for segment in [*older[2 * at :: 2], self.newest_segment]:
            index = self._pins.gathered.get(segment) if segment is not None else None
            if index is None:
                return  # what follows is in memory
            yield index, index.places(self.id, start, stop)

    def bounds_in(self, segment: int) -> tuple[int, int] | None:
        """Return the first position that may be retained in *segment*, and the one after the last; None without any."""
        start = self.first_position
        for older, end in _OLDER.iter_unpack(self._older_segments):
            if older == segment:
                return start, end
            start = max(start, end)
        return (start, self.next_position) if self.newest_segment == segment else None

    def seal(self) -> int:
        """Seal the tail of the store; return as `append` does."""
        held = self.memory_bytes
        self.store.seal()
        return self.memory_bytes - held

    def on_disk(self, position: int) -> RecordsOnDiskError:
        """Return the error for a read of *position* that must not wait."""
        return RecordsOnDiskError(self.name, position, self.memory_first)

    def leave(self, index: GatheredIndex, place: int) -> int:
        """Have the records of a place, which are on the disk, leave memory; return as `append` does.

        What was counted of them run by run is counted by place from then on: see `_share`.
        """
        end, store, held = index.next_positions[place], self.store, self.memory_bytes
        if end <= max(self.first_position, self.memory_first):
            return 0
        last_first = self._newest_append()
        if last_first < end and self.last_checksum_of != last_first:
            self._digest_last_append(last_first)  # a repeat of it must be recognized without a read
        # What is on the disk before this needs no look, but for a place that shares a run with memory.
        start = max(self.memory_first - 1, self.first_position)
        before = self._shares(start)
        of_cut = self._cut_in_memory()
        left = store.leave(end)
        if left is None:
            return 0
        if of_cut is not None:
            self._pins.cuts[self.id, self.first_position] = of_cut
        self.memory_first = end if left.following is None else min(left.following, end)
        if self.memory_first <= self.first_position:
            self.memory_first = 0
        after = self._shares(start)
        store.count(after[0] - before[0] - left.records, after[1] - before[1] - left.payload_bytes)
        self._pins.disk_only_bytes += after[1] - before[1]
        self._leave_ticks()
        return self.memory_bytes - held

    def _leave_ticks(self) -> None:
        """Forget the times of the records that left memory."""
        if not self.store.has_runs():
            self.tick, self.ticks = NO_TICK, None
        elif self.ticks is not None:
            drop_times(self.ticks, self.memory_first)

    def enter_gathered(self, index: GatheredIndex) -> None:
        """Take over what *index* has of this queue: records that are not in memory, of a segment before the others.

        Segments come oldest first, and all of them before the first append.
        """
        start, end = index.bounds(self.id)
        if start == end or index.next_positions[end - 1] <= self.first_position:
            return
        segment, older = index.head.segment, self.newest_segment
        if older is not None:
            if self._older_segments is NO_SEGMENTS:
                self._older_segments = bytearray()
            self._older_segments += _OLDER.pack(older, self.memory_first)
        self.newest_segment = segment
        self._pins.add(segment, self.id)
        self.memory_first = index.next_positions[end - 1]
        for place in range(start, end):
            records, size = self._share(index, place, self.first_position, self.memory_first)
            self.store.count(records, size)
            self._pins.disk_only_bytes += size

    def _drop_on_disk(self, first: int) -> None:
        """Take what a truncate to position *first* drops on the disk from the sums. Reads nothing."""
        for index, place in self.places(self.first_position, first):
            records, size = self._share(index, place, self.first_position, self.memory_first)
            records_left, bytes_left = self._share(index, place, first, self.memory_first)
            self.store.count(records_left - records, bytes_left - size)
            self._pins.disk_only_bytes -= size - bytes_left
        self._pins.cuts.pop((self.id, self.first_position), None)
        if first >= self.memory_first:
            self.memory_first = 0

    def cut_place(self, first: int) -> tuple[GatheredIndex, int] | None:
        """Return the place on the disk that a truncate to position *first* cuts, if only a read can count the rest."""
        for index, place in self.places(first, self.memory_first):
            is_cut = index.first_positions[place] < first and index.has_gaps(place)
            return (index, place) if is_cut and (self.id, first) not in self._pins.cuts else None
        return None

    def _cut_in_memory(self) -> tuple[int, int] | None:
        """Return what is left of the oldest place, if a truncate cut it, it has gaps, and its records are in memory."""
        segment = self.first_segment()
        index = self._pins.gathered.get(segment) if segment is not None else None
        if index is None or self.first_position < self.memory_first:
            return None
        for place in index.places(self.id, self.first_position, self.next_position):
            is_cut = index.first_positions[place] < self.first_position and index.has_gaps(place)
            return self.amount(self.first_position, index.next_positions[place]) if is_cut else None
        return None

    def note_cut(self, first: int, records: int, size: int) -> None:
        """Note what the place that `cut_place` returned has from position *first* on. Until then all of it counts."""
        index, place = next(self.places(first, self.memory_first))
        before = self._share(index, place, first, self.memory_first)
        self._pins.cuts[self.id, first] = records, size
        if first == self.first_position:
            after = self._share(index, place, first, self.memory_first)
            self.store.count(after[0] - before[0], after[1] - before[1])
            self._pins.disk_only_bytes += after[1] - before[1]

    def _shares(self, start: int) -> tuple[int, int]:
        """Return what the places on the disk that reach past *start* count for."""
        records = size = 0
        for index, place in self.places(start, self.memory_first):
            found = self._share(index, place, self.first_position, self.memory_first)
            records, size = records + found[0], size + found[1]
        return records, size

    def _share(self, index: GatheredIndex, place: int, start: int, stop: int) -> tuple[int, int]:
        """Return how many records of a place, and bytes, count as those on the disk at positions *start* … *stop* - 1.

        A run in memory may begin in the place and end after it: what they share counts as in memory.
        """
        first, end = index.first_positions[place], index.next_positions[place]
        stop = min(stop, self.memory_first)
        if start >= min(end, stop) or first >= stop:
            return 0, 0
        records, size = index.records[place], index.payload_bytes[place]
        if start > first:
            records, size = self._pins.cuts.get((self.id, start), (records, size))
        if end > self.memory_first:
            in_memory = self.store.before(end)
            records, size = records - in_memory[0], size - in_memory[1]
        if not index.has_gaps(place):
            records = min(end, stop) - max(first, start)
        return records, size

    # The last append.

    def last_append(self) -> LastAppendDigest | None:
        """Return the digest of the append that ends at the next position, or None if it is unknown.

        Computed when a truncate first reaches into it or a table is written, so that appends pay nothing for it. It
        outlives the records, so a repeat of the last call is recognized after they were truncated.
        """
        first = self._newest_append()
        if first < 0:
            return None
        if self.last_checksum_of != first:
            self._digest_last_append(first)
        return LastAppendDigest(first, self.last_checksum)

    def _newest_append(self) -> int:
        """Return the first position of the append that ends at the next position; -1 if it is unknown."""
        return self.next_position - 1 if self.last_first == ALONE else self.last_first

    def _digest_last_append(self, first: int) -> None:
        """Compute the checksum of the last append, which begins at *first*, while all of it is retained."""
        self.last_checksum_of, self.last_checksum = first, self.store.checksum(first, self.next_position)

    # Consumers.

    def set_consumer(self, name: str, state: ConsumerState) -> None:
        """Create a consumer, or move it. ReplayError if it would stand past the end of the queue."""
        if state.position > self.next_position:
            raise ReplayError(f"queue {self.name!r}: consumer {name!r} is at {state.position}, past its end")
        if self.consumers is NO_CONSUMERS:
            self.consumers = Consumers()
        self.consumers.set(name, state)

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer; ReplayError if it does not exist."""
        if name not in self.consumers:
            raise ReplayError(f"queue {self.name!r} has no consumer {name!r}")
        self.consumers.delete(name)

    def consumer(self, name: str) -> ConsumerState | None:
        """Return the state of a consumer, or None if it does not exist."""
        return self.consumers.states.get(name)

    def slowest_consumer(self) -> str:
        """Return the name of the consumer that is furthest behind; "" if there is none."""
        return self.consumers.slowest() if self.consumers is not NO_CONSUMERS else ""

    def consumer_states(self) -> Iterable[tuple[str, ConsumerState]]:
        """Return name and state of each consumer, unsorted."""
        return self.consumers.states.items()

    def is_sealed(self) -> bool:
        """Return whether the queue accepts no more records."""
        return bool(self.options.flags & SEALED)

    # Segments.

    def segments(self) -> list[int]:
        """Return the segments that hold records of this queue, oldest first."""
        newest = [] if self.newest_segment is None else [self.newest_segment]
        return [segment for segment, _ in _OLDER.iter_unpack(self._older_segments)] + newest

    def first_segment(self) -> int | None:
        """Return the oldest segment that holds records of this queue."""
        return _OLDER.unpack_from(self._older_segments)[0] if self._older_segments else self.newest_segment

    def _enter(self, segment: int) -> None:
        """Continue in *segment*.

        Only the boundary is noted, at the same cost whatever the queue holds: after a roll, every queue enters the new
        segment within moments. A run may span segments.
        """
        if self.newest_segment is not None:
            if self._older_segments is NO_SEGMENTS:
                self._older_segments = bytearray()
            self._older_segments += _OLDER.pack(self.newest_segment, self.next_position)
        self.newest_segment = segment
        self._pins.add(segment, self.id)

    def _drop_dead_segments(self) -> None:
        """Unpin the segments that hold no position from first_position on."""
        older, dead = self._older_segments, 0
        for segment, end in _OLDER.iter_unpack(older) if older else ():
            if end > self.first_position:
                break
            self._pins.drop(segment)
            dead += _OLDER.size
        if dead:
            self._older_segments = older[dead:] or NO_SEGMENTS
        if self.first_position >= self.next_position and self.newest_segment is not None:
            self._pins.drop(self.newest_segment)
            self.newest_segment = None


def same_payloads(runs: Sequence[Run], first_position: int, payloads: Sequence[bytes]) -> bool:
    """Return whether *runs* hold *payloads*, the first of which belongs at *first_position*, without a gap.

    Payloads before the first run are not compared.
    """
    if runs and sum(run.record_count for run in runs) != first_position + len(payloads) - runs[0].first_position:
        return False
    return all(
        payload == payloads[position - first_position]
        for run in runs
        for position, payload in zip(range(run.first_position, run.next_position), run.payloads(), strict=True)
    )
