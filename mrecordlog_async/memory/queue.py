"""One queue: its positions, and what log records do to it.

Log records are applied by position alone, whatever memory holds: a queue is empty when first_position == next_position.
Its records are in `store`, its consumers in `consumers`. In addition, it knows which segments it needs, and its
last append.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from crc32c import crc32c

from mrecordlog_async.format.record import ConsumerState
from mrecordlog_async.format.stored_options import SEALED, StoredOptions
from mrecordlog_async.format.table import LastAppendDigest, TableConsumer, TableEntry
from mrecordlog_async.memory.consumers import NO_CONSUMERS, Consumers
from mrecordlog_async.memory.loose import NO_PLACES, Blocks
from mrecordlog_async.memory.store import PLACES_OVERHEAD_BYTES, RetainedRecords
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import OFFSET_BYTES, Run


class SegmentPins:
    """Counts, for each segment, the queues that have records in it."""

    def __init__(self) -> None:
        self._queues: dict[int, int] = {}
        self._oldest: list[int] = []  # a heap of every needed segment, and of some that were dropped
        self._in_heap: set[int] = set()  # each of them once, however often a segment is dropped and needed again

    def add(self, segment: int) -> None:
        """Note that one more queue holds records in *segment*."""
        self._queues[segment] = self._queues.get(segment, 0) + 1
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


NO_SEGMENTS = array("Q")
"""Shared by all queues whose records are all in one segment, and always empty."""


class ReplayError(ValueError):
    """A log record does not fit the state that the log records before it left."""


class Queue(RetainedRecords):
    """State of one queue. `Queues` owns it."""

    __slots__ = (
        "_last_checksum",
        "_last_checksum_of",
        "_older_segments",
        "_pins",
        "began",
        "consumers",
        "name",
        "newest_segment",
        "options",
    )

    def __init__(
        self,
        queue_id: int,
        name: str,
        pins: SegmentPins,
        first_position: int = 0,
        next_position: int = 0,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__(queue_id, first_position, next_position, blocks)
        self.name = name
        self.began = 0  # no record was ever stored below it; 0 if unknown
        self._pins = pins
        self._last_checksum_of = -1  # the `_last_first` that `_last_checksum` belongs to
        self._last_checksum = 0
        self._older_segments = NO_SEGMENTS  # in turn: a segment, and the position after its last record
        self.newest_segment: int | None = None  # with records up to next_position
        self.options: StoredOptions | None = None
        self.consumers = NO_CONSUMERS

    @classmethod
    def from_table(cls, entry: TableEntry, pins: SegmentPins, blocks: Blocks | None = None) -> Queue:
        """Return a queue as a segment's table has it: positions without records."""
        queue = cls(entry.id, entry.name, pins, entry.first_position, entry.next_position, blocks)
        queue.began = entry.began
        if entry.last_append is not None:
            queue._last_first, queue._last_checksum = entry.last_append
            queue._last_checksum_of = queue._last_first
        queue.options = entry.options
        for name, state in entry.consumers:
            queue.set_consumer(name, state)
        return queue

    def table_entry(self) -> TableEntry:
        """Return what the next segment's table has to say about this queue."""
        first = self._newest_append()
        if first >= 0 and self._last_checksum_of != first:
            self._digest_last_append()
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
                tuple.__new__(LastAppendDigest, (first, self._last_checksum)) if first >= 0 else None,
                self.options,
                tuple(map(TableConsumer._make, sorted(self.consumer_states()))) if has_consumers else (),
            ),
        )

    def append(self, segment: int, run: Run, continues: bool = False, tick: int = NO_TICK) -> int:
        """Add *run*, which is stored in *segment*; return by how many bytes the memory in use grew.

        continues: it belongs to the same append as the run before it. tick: when it was stored. Raises ReplayError if a
        position is taken, or if there is no such append.
        """
        first, offsets, payload = run
        held = self.memory_bytes
        records, size = len(offsets) // OFFSET_BYTES - 1, len(payload)
        if first < self.next_position:
            raise self._taken(first)
        if self.loose:
            self.settle()  # they come before this run
        if segment != self.newest_segment:
            self._enter(segment)
        if not continues:
            self._last_first = first
        elif first == self.next_position and self._last_first >= self.first_position:
            self._last_checksum_of = -1
        else:
            raise self._continues_nothing(first)
        if first != self.next_position and self.first_position == 0 == self.next_position:
            self.first_position = self.began = first
        if tick != self._tick:
            self.note_tick(first, tick)
        self.next_position = first + records
        self.records += records
        self.held_bytes += size
        self._keep(run, records, size)
        return self.memory_bytes - held

    def begin_loose(self, segment: int, position: int) -> int:
        """Get ready for a loose record at *position*, which is stored in *segment*; return as `append` does."""
        held = self.memory_bytes
        if position < self.next_position:
            raise self._taken(position)
        if segment != self.newest_segment:
            self._enter(segment)
        if position != self.next_position:
            self.settle()
            if self.first_position == 0 == self.next_position:
                self.first_position = self.began = position
            self.next_position = position
        if self.loose is NO_PLACES:
            self.loose = array("Q")
            self.memory_bytes += PLACES_OVERHEAD_BYTES
        return self.memory_bytes - held

    def _taken(self, position: int) -> ReplayError:
        return ReplayError(f"queue {self.name!r}: position {position} is taken, the next one is {self.next_position}")

    def _continues_nothing(self, position: int) -> ReplayError:
        return ReplayError(f"queue {self.name!r}: position {position} continues an append that does not end there")

    def truncate(self, position: int) -> int:
        """Drop positions up to and including *position*; return the number of records dropped."""
        if position < self.first_position:
            return 0
        before = self.records
        last_first = self._newest_append()
        if self.first_position <= last_first <= position and self._last_checksum_of != last_first:
            self._digest_last_append()  # before its records are dropped: a repeat must still be recognized
        if self.consumers is not NO_CONSUMERS:
            self.consumers.truncate(self.first_position, position, self.count)
        self.first_position = position + 1
        if self.first_position >= self.next_position:
            self._drop_loose(len(self.loose))
            if self.first_position > self.next_position:
                self._last_first = -1
            self.next_position = self.first_position
            self._clear()
        else:
            self._drop_loose(max(self.first_position - self._loose_first(), 0))
            self._drop_dead_runs()
            self._drop_ticks()
        self._drop_dead_segments()
        return before - self.records

    def clear(self) -> None:
        """Drop everything, because the queue is deleted."""
        self._drop_loose(len(self.loose))
        self._clear()
        self.first_position = self.next_position
        self._drop_dead_segments()

    # The last append.

    def last_append(self) -> LastAppend | None:
        """Return the digest of the last append, or None if it is unknown.

        Computed when a truncate first reaches into it or a table is written, so that appends pay nothing for it.
        """
        first = self._newest_append()
        if first < 0:
            return None
        if self._last_checksum_of != first:
            self._digest_last_append()
        return LastAppend(first, self.next_position - first, self._last_checksum)

    def _digest_last_append(self) -> None:
        """Compute the checksum of the last append while all of it is retained."""
        first = self._newest_append()
        if self.loose:
            self._last_checksum_of, self._last_checksum = first, checksum_of_one(self._newest_loose_payload())
            return
        newest = (self._open_runs or self._sealed).newest()
        # Usually the append is the newest run as a whole, which needs no search.
        runs = (
            [newest] if newest.first_position == first and type(newest) is Run else self.runs(first, self.next_position)
        )
        self._last_checksum_of, self._last_checksum = first, checksum_of(runs)

    # Consumers.

    def set_consumer(self, name: str, state: ConsumerState) -> None:
        """Create a consumer, or move it. ReplayError if it would stand past the end of the queue."""
        if state.position > self.next_position:
            raise ReplayError(f"queue {self.name!r}: consumer {name!r} stands at {state.position}, past its end")
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
        return self.consumers.get(name, self.first_position)

    def consumer_states(self) -> Iterator[tuple[str, ConsumerState]]:
        """Yield name and state of each consumer, unsorted."""
        for name in self.consumers:
            state = self.consumer(name)
            assert state is not None, "its name was just read"
            yield name, state

    def count(self, start: int, stop: int) -> int:
        """Return the number of retained records with positions *start* … *stop* - 1."""
        return sum(run.record_count for run in self.held(start, stop))

    def is_sealed(self) -> bool:
        """Return whether the queue accepts no more records."""
        return self.options is not None and bool(self.options.flags & SEALED)

    # Segments.

    def segments(self) -> list[int]:
        """Return the segments that hold records of this queue, oldest first."""
        newest = [] if self.newest_segment is None else [self.newest_segment]
        return self._older_segments[::2].tolist() + newest

    def first_segment(self) -> int | None:
        """Return the oldest segment that holds records of this queue."""
        return self._older_segments[0] if self._older_segments else self.newest_segment

    def _enter(self, segment: int) -> None:
        """Continue in *segment*.

        Only the boundary is noted, at the same cost whatever the queue holds: after a roll, every queue enters the new
        segment within moments. A run may span segments.
        """
        if self.newest_segment is not None:
            if self._older_segments is NO_SEGMENTS:
                self._older_segments = array("Q")
            self._older_segments.extend((self.newest_segment, self.next_position))
        self.newest_segment = segment
        self._pins.add(segment)

    def _drop_dead_segments(self) -> None:
        """Unpin the segments that hold no position from first_position on."""
        older, dead = self._older_segments, 0
        while dead < len(older) and older[dead + 1] <= self.first_position:
            self._pins.drop(older[dead])
            dead += 2
        if dead:
            self._older_segments = older[dead:] if dead < len(older) else NO_SEGMENTS
        if self.first_position >= self.next_position and self.newest_segment is not None:
            self._pins.drop(self.newest_segment)
            self.newest_segment = None


class LastAppend(NamedTuple):
    """The last append of a queue: its positions, and a checksum (CRC-32C) of all its lengths and payloads.

    It outlives the records, so a repeat of the last call is recognized after they were truncated. The runs that a long
    call was split into are one append.
    """

    first_position: int
    records: int
    checksum: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> LastAppend:
        """Digest *runs*, which have no gap between them, as if they were one run."""
        first = runs[0].first_position
        return cls(first, runs[-1].next_position - first, checksum_of(runs))


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


def checksum_of(runs: Iterable[Run]) -> int:
    """Return the CRC-32C of the lengths and payloads of *runs*. It does not depend on how records are cut into runs."""
    checksum = 0
    for run in runs:
        checksum = crc32c(_packed_lengths(run.offsets), checksum)
    for run in runs:
        checksum = crc32c(run.payload, checksum)
    return checksum


def checksum_of_one(payload: bytes) -> int:
    """Return what `checksum_of` returns for a run of one record."""
    return crc32c(payload, crc32c(len(payload).to_bytes(OFFSET_BYTES, "little")))


def _packed_lengths(offsets: bytes) -> bytes:
    """Return the lengths between *offsets* as int32."""
    # One subtraction of long integers computes all of them: offsets ascend, so no difference borrows from the next one.
    lengths = int.from_bytes(offsets[OFFSET_BYTES:], "little") - int.from_bytes(offsets[:-OFFSET_BYTES], "little")
    return lengths.to_bytes(len(offsets) - OFFSET_BYTES, "little")
