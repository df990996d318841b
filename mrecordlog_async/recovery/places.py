"""Replay a log for its positions alone: what each queue holds and where it is stored, without a payload.

A `PlacedQueue` keeps places instead of runs: 56 bytes for up to `PLACE_BYTES` of payloads in one segment. So a log of
any size is replayed in little memory, with every check that a replay with payloads makes. `place_reader` reads the
records of places later.

A truncate may reach into a place. How many records are left of it is unknown until it is read again (`is_cut`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from mrecordlog_async.format.parse import Batch
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.memory.loose import Blocks
from mrecordlog_async.memory.queue import Queue, SegmentPins, checksum_of
from mrecordlog_async.memory.queues import Applied, Queues
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import OFFSET_BYTES, Run
from mrecordlog_async.recovery.replay import Replay

PLACE_BYTES = 1 << 18
PLACE_RECORDS = 1 << 14
"""Maximum size of a place; at most this much is reread to count what a truncate left."""

UNDIGESTED_BYTES_MAX = 1 << 24
"""The last append of each queue is kept until its checksum is asked for, or until all of them hold this much."""


class Place(NamedTuple):
    """Records of one queue in one segment.

    offset, due_batch: where the first batch begins that holds any of them, and its number. records, bytes: all that
    were stored, also those that are truncated by now.
    """

    segment: int
    offset: int
    due_batch: int
    first_position: int
    next_position: int
    records: int
    bytes: int


_FIELDS = len(Place._fields)
_FIRST, _NEXT, _RECORDS, _BYTES = range(3, _FIELDS)


class PlacedQueue(Queue):
    """A queue whose records stay on the disk. `records` and `held_bytes` count a place that a truncate cut in full."""

    __slots__ = ("_owner", "_places", "_undigested")

    def __init__(
        self,
        queue_id: int,
        name: str,
        pins: SegmentPins,
        first_position: int = 0,
        next_position: int = 0,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__(queue_id, name, pins, first_position, next_position, blocks)
        self._owner: PlacedQueues | None = None
        self._places = array("Q")  # the fields of each place in a row, oldest first: objects would take five times that
        self._undigested: list[Run] = []  # the runs of the last append, until its checksum is computed

    def own(self, owner: PlacedQueues) -> None:
        """Belong to *owner*, which knows the batch that is being replayed."""
        self._owner = owner

    def append(self, segment: int, run: Run, continues: bool = False, tick: int = NO_TICK) -> int:
        """Note where *run* is stored, and when; see `Queue.append`."""
        held = self.memory_bytes
        first, offsets, payload = run
        if first < self.next_position:
            raise self._taken(first)
        self._keep_last(run, continues)
        if segment != self.newest_segment:
            self._enter(segment)
        if first != self.next_position and self.first_position == 0 == self.next_position:
            self.first_position = self.began = first
        if tick != self._tick:
            self.note_tick(first, tick)
        records, size = len(offsets) // OFFSET_BYTES - 1, len(payload)
        self.next_position = first + records
        self.records += records
        self.held_bytes += size
        self._note(segment, first, records, size)
        return self.memory_bytes - held

    def digest(self) -> None:
        """Compute the checksum of the last append and drop its runs."""
        if self._undigested:
            self._last_checksum_of, self._last_checksum = self._last_first, checksum_of(self._undigested)
            self._undigested = []

    def held_end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""
        return self._places[_NEXT - _FIELDS] if self._places else None

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record; too low by a gap in a cut place until its recount."""
        return max(self._places[_FIRST], self.first_position) if self._places else None

    def live_bytes(self) -> int:
        """Return the payload bytes that are held."""
        return self.held_bytes

    def places(self, start: int | None = None, stop: int | None = None) -> Iterator[Place]:
        """Yield the places that may hold retained records with positions *start* … *stop* - 1, oldest first."""
        first = self.first_position if start is None else max(start, self.first_position)
        last = self.next_position if stop is None else min(stop, self.next_position)
        rows = self._places[:]  # fixed at the first step: what is replayed meanwhile does not matter
        for at in range(0, len(rows) if first < last else 0, _FIELDS):
            if rows[at + _NEXT] > first and rows[at + _FIRST] < last:
                yield Place._make(rows[at : at + _FIELDS])

    def is_cut(self) -> bool:
        """Return whether a truncate reached into the oldest place: `records` then counts too many."""
        return bool(self._places) and self._places[_FIRST] < self.first_position

    def recount(self, first: int, records: int, size: int) -> None:
        """Set what is left of the oldest place, which was cut: its first record is at position *first*."""
        rows = self._places
        self.records += records - rows[_RECORDS]
        self.held_bytes += size - rows[_BYTES]
        rows[_FIRST], rows[_RECORDS], rows[_BYTES] = first, records, size

    def _keep_last(self, run: Run, continues: bool) -> None:
        """Keep the runs of the last append for its checksum. They are all in one batch."""
        assert self._owner is not None
        first = run.first_position
        if not continues:
            self._last_first = first
            self._owner.undigested_bytes -= sum(len(older.payload) for older in self._undigested)
            self._undigested = [run]
        elif first == self.next_position and self._last_first >= self.first_position and self._undigested:
            self._last_checksum_of = -1
            self._undigested.append(run)
        else:
            raise self._continues_nothing(first)
        self._owner.note_undigested(self, len(run.payload))

    def _note(self, segment: int, first: int, records: int, size: int) -> None:
        assert self._owner is not None
        rows = self._places
        if (
            rows
            and rows[-_FIELDS] == segment
            and rows[_BYTES - _FIELDS] < PLACE_BYTES
            and rows[_RECORDS - _FIELDS] < PLACE_RECORDS
        ):
            rows[_NEXT - _FIELDS] = self.next_position
            rows[_RECORDS - _FIELDS] += records
            rows[_BYTES - _FIELDS] += size
        else:
            place = self._owner.batch_offset, self._owner.batch
            rows.extend((segment, *place, first, self.next_position, records, size))

    def _digest_last_append(self) -> None:
        self.digest()

    def _has_runs(self) -> bool:
        return bool(self._places)

    def _clear(self) -> None:
        super()._clear()
        del self._places[:]

    def _drop_dead_runs(self) -> None:
        rows, dead = self._places, 0
        while dead < len(rows) and rows[dead + _NEXT] <= self.first_position:
            self.records -= rows[dead + _RECORDS]
            self.held_bytes -= rows[dead + _BYTES]
            dead += _FIELDS
        del rows[:dead]


class PlacedQueues(Queues):
    """All queues of a log, with places instead of records.

    batch, batch_offset: the batch that is being replayed. undigested_bytes: payloads kept for checksums.
    """

    queue_type = PlacedQueue
    keeps_loose = False  # their payloads are not kept

    def __init__(self, next_queue_id: int) -> None:
        super().__init__(next_queue_id)
        self.batch = 0
        self.batch_offset = 0
        self.undigested_bytes = 0
        self._undigested: dict[int, PlacedQueue] = {}

    def note_undigested(self, queue: PlacedQueue, size: int) -> None:
        """Remember that *queue* keeps *size* more bytes of its last append."""
        self._undigested[queue.id] = queue
        self.undigested_bytes += size

    def apply_all(self, segment: int, records: list[LogRecord], tick: int = NO_TICK) -> Applied:  # type: ignore[override]  # a batch's records are a list
        """Apply the records of one batch in order."""
        applied = super().apply_all(segment, records, tick)
        # Only after the batch: an append does not go on in the next one.
        if self.undigested_bytes > UNDIGESTED_BYTES_MAX:
            for queue in self._undigested.values():
                queue.digest()
            self._undigested.clear()
            self.undigested_bytes = 0
        return applied

    def _add(self, queue: Queue) -> None:
        super()._add(queue)
        assert isinstance(queue, PlacedQueue), "made by queue_type"
        queue.own(self)


class PlacedReplay(Replay):
    """A replay that keeps places."""

    queues_type = PlacedQueues

    def add(self, name: str, segment: int, batch: Batch) -> None:
        """Apply a batch."""
        assert isinstance(self.queues, PlacedQueues), "made by queues_type"
        self.queues.batch, self.queues.batch_offset = batch.commit.batch, batch.commit.batch_offset
        super().add(name, segment, batch)
