"""Replay a log for its positions alone: what each queue holds and where it is stored, without a payload.

A `PositionStore` keeps places instead of runs: 56 bytes for up to `PLACE_BYTES` of payloads in one segment. So a log of
any size is replayed in little memory, with every check that a replay with payloads makes. `segment_reader` reads the
records of places later.

A truncate may reach into a place. How many records are left of it is unknown until it is read again (`is_cut`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.runs import checksum_of
from mrecordlog_async.memory.store import NO_RECORDS
from mrecordlog_async.memory.stores import Left
from mrecordlog_async.model import Run

PLACE_BYTES = 1 << 18
PLACE_RECORDS = 1 << 14
"""Maximum size of a place; at most this much is reread to count what a truncate left."""

UNDIGESTED_BYTES_MAX = 1 << 22
"""The last append of each queue is kept until its checksum is asked for, or until all of them hold this much."""

POSITIONS_STOP = 1 << 64


class Place(NamedTuple):
    """Records of one queue in one segment: on the disk from first_position to next_position - 1.

    offset, due_batch: where the first batch begins that holds any of them, and its number. records, bytes: all that
    were stored, even those that are truncated by now.
    """

    segment: int
    offset: int
    due_batch: int
    first_position: int
    next_position: int
    records: int
    bytes: int


_FIELDS = len(Place._fields)
_SEGMENT, (_FIRST, _NEXT, _RECORDS, _BYTES) = 0, range(3, _FIELDS)


class PositionStore:
    """The records of one queue on the disk. `records` and `held_bytes` count a place that a truncate cut in full."""

    newest = NO_RECORDS
    memory_bytes = 0

    __slots__ = (
        "_checksum",
        "_first",
        "_places",
        "_stores",
        "_undigested",
        "held_bytes",
        "records",
    )

    def __init__(self, stores: PositionStores) -> None:
        self._stores = stores
        self.records = 0
        self.held_bytes = 0
        self._first = 0  # the first position that no truncate dropped
        self._places = array("Q")  # the fields of each place in a row, oldest first: objects would take five times that
        self._undigested: list[Run] = []  # the runs of the last append, until its checksum is computed
        self._checksum = 0

    # What log records do.

    def append(self, run: Run, records: int, size: int, continues: bool) -> int:
        """Note where *run* is stored, and keep the runs of the last append for its checksum."""
        stores, rows = self._stores, self._places
        if not continues:
            # Only the last append of a queue is ever asked for.
            stores.undigested_bytes -= sum(len(older.payload) for older in self._undigested)
            self._undigested.clear()
        self._undigested.append(run)
        stores.note_undigested(self, size)
        self.count(records, size)
        if (
            rows
            and rows[_SEGMENT - _FIELDS] == stores.segment
            and rows[_BYTES - _FIELDS] < PLACE_BYTES
            and rows[_RECORDS - _FIELDS] < PLACE_RECORDS
        ):
            rows[_NEXT - _FIELDS] = run.first_position + records
            rows[_RECORDS - _FIELDS] += records
            rows[_BYTES - _FIELDS] += size
        else:
            first = run.first_position
            rows.extend((stores.segment, stores.offset, stores.batch, first, first + records, records, size))
        return 0

    def append_one(self, position: int, payload: bytes) -> int:
        """Append a run of one record."""
        return self.append(Run.of(position, (payload,)), 1, len(payload), False)

    @property
    def can_continue(self) -> bool:
        """True if the last append may get another run: all of an append is in one batch."""
        return bool(self._undigested)

    def drop_before(self, position: int) -> None:
        """Drop the places that end before *position*; one that it cuts is counted in full."""
        rows, dead = self._places, 0
        while dead < len(rows) and rows[dead + _NEXT] <= position:
            self.count(-rows[dead + _RECORDS], -rows[dead + _BYTES])
            dead += _FIELDS
        del rows[:dead]
        self._first = position

    def clear(self) -> None:
        """Drop everything."""
        del self._places[:]
        self.records = self.held_bytes = 0

    def checksum(self, first: int, stop: int) -> int:
        """Return the checksum of the last append."""
        self.digest()
        return self._checksum

    def digest(self) -> None:
        """Compute the checksum of the last append and drop its runs."""
        if self._undigested:
            self._checksum = checksum_of(self._undigested)
            self._undigested = []

    def count(self, records: int, size: int) -> None:
        """Count records, fewer than 0 if they are dropped: of a place, or of a gathered file."""
        self.records += records
        self.held_bytes += size

    # What is known without reading the disk.

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record; too low by a gap in a cut place until its recount."""
        return max(self._places[_FIRST], self._first) if self._places else None

    def end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""
        return self._places[_NEXT - _FIELDS] if self._places else None

    def live_bytes(self) -> int:
        """Return the payload bytes that are held."""
        return self.held_bytes

    def has_runs(self) -> bool:
        """Return whether there is any record."""
        return bool(self._places)

    def places(self, start: int = 0, stop: int = POSITIONS_STOP) -> Iterator[Place]:
        """Yield the places that may hold retained records with positions *start* … *stop* - 1, oldest first."""
        rows = self._places[:]  # fixed at the first step: what is replayed meanwhile does not matter
        for at in range(0, len(rows) if start < stop else 0, _FIELDS):
            if rows[at + _NEXT] > start and rows[at + _FIRST] < stop:
                yield Place._make(rows[at : at + _FIELDS])

    def is_cut(self) -> bool:
        """Return whether a truncate reached into the oldest place: `records` then counts too many."""
        return bool(self._places) and self._places[_FIRST] < self._first

    def recount(self, first: int, records: int, size: int) -> None:
        """Set what is left of the oldest place, which was cut: its first record is at position *first*."""
        rows = self._places
        self.count(records - rows[_RECORDS], size - rows[_BYTES])
        rows[_FIRST], rows[_RECORDS], rows[_BYTES] = first, records, size

    # What memory has of it: nothing.

    def pieces(self, first: int, last: int, most: int | None = None, records_max: int | None = None) -> list[HeldRun]:
        """Return nothing."""
        return []

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield nothing."""
        return iter(())

    def seal(self) -> None:
        """Do nothing: there is no tail."""

    def before(self, position: int) -> tuple[int, int]:
        """Never called: nothing is in memory."""
        raise AssertionError("a store of positions has no pieces")

    def leave(self, stop: int) -> Left | None:
        """Never called: nothing is in memory."""
        raise AssertionError("a store of positions has no pieces")


class PositionStores:
    """Makes the stores of a log's queues that keep positions alone, and knows the batch that is being replayed.

    segment: where it is. offset: where it begins there. undigested_bytes: payloads kept for checksums.
    """

    def __init__(self) -> None:
        self.segment = 0
        self.batch = 0
        self.offset = 0
        self.undigested_bytes = 0
        self._undigested: set[PositionStore] = set()

    def new_store(self, queue_id: int) -> PositionStore:
        """Return the store of a new queue."""
        return PositionStore(self)

    def enter_segment(self, segment: int) -> None:
        """Note that what is appended next is in *segment*."""
        self.segment = segment

    def begin_batch(self, batch: int, offset: int) -> None:
        """Note that what is appended next is in *batch*, which begins at *offset* of its segment."""
        # Only between batches: an append does not go on in the next one.
        if self.undigested_bytes > UNDIGESTED_BYTES_MAX:
            for store in self._undigested:
                store.digest()
            self._undigested.clear()
            self.undigested_bytes = 0
        self.batch, self.offset = batch, offset

    def note_undigested(self, store: PositionStore, size: int) -> None:
        """Remember that *store* keeps *size* more bytes of its last append."""
        self._undigested.add(store)
        self.undigested_bytes += size


def position_store(queue: Queue) -> PositionStore:
    """Return the store of *queue*, which was replayed for its positions."""
    store = queue.store
    assert isinstance(store, PositionStore), "made by PositionStores"
    return store
