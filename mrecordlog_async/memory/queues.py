"""All queues of a log, and how log records change them: the same for a batch just synced and for one read at open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mrecordlog_async.format.record import (
    TABLE_BYTES,
    Append,
    Create,
    Delete,
    LogRecord,
    Table,
    TableEntry,
    Truncate,
    entry_bytes,
)
from mrecordlog_async.memory.queue import Queue, ReplayError
from mrecordlog_async.memory.retention import SegmentPins
from mrecordlog_async.model import OFFSET_BYTES, Run

NO_RUN = Run(-1, b"", b"")

DELETED_REMEMBERED = 10_000
"""This many deleted queues are remembered, each with its next position."""


class Applied(NamedTuple):
    """What a batch changed: records and payload bytes added, and the records that each truncate and delete dropped."""

    records: int
    payload_bytes: int
    dropped: list[int]


class Queues:
    """The queues by name and id, the id of the next one, and the sums that limits need. The log's writer owns it."""

    def __init__(self, next_queue_id: int) -> None:
        self.next_queue_id = next_queue_id
        self.version = 0  # incremented with every batch
        self.pins = SegmentPins()
        self.memory_bytes = 0
        self.table_bytes = TABLE_BYTES
        self.deleted: dict[int, int] = {}  # id of a deleted queue → its next position; only the latest deletions
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}

    @classmethod
    def from_table(cls, table: Table) -> Queues:
        """Return the queues of a segment's table: positions without records."""
        queues = cls(table.next_queue_id)
        for entry in table.entries:
            queues._add(Queue(entry.id, entry.name, queues.pins, entry.first_position, entry.next_position))
        return queues

    def table(self) -> Table:
        """Return the table that the next segment starts with."""
        entries = (
            TableEntry(queue.id, queue.name, queue.first_position, queue.next_position)
            for queue in self._by_id.values()
        )
        return Table(self.next_queue_id, tuple(entries))

    def get(self, name: str) -> Queue | None:
        """Return the queue called *name*, or None if it does not exist."""
        return self._by_name.get(name)

    def by_id(self, queue_id: int) -> Queue | None:
        """Return the queue with this incarnation id, or None."""
        return self._by_id.get(queue_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_id.values())

    def unsorted_names(self) -> Iterable[str]:
        """Return a view of all names."""
        return self._by_name

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._by_name)

    def apply(self, segment: int, record: LogRecord) -> int:
        """Apply *record*, which is stored in *segment*; return the number of records it dropped.

        Raises ReplayError if it does not fit: the queue is unknown or exists already, or the position is taken.
        """
        if type(record) is Append:
            self.memory_bytes += self._known(record.id).append(segment, record.run)
            return 0
        if type(record) is Truncate:
            queue = self._known(record.id)
            before = queue.memory_bytes
            dropped = queue.truncate(record.position)
            self.memory_bytes += queue.memory_bytes - before
            return dropped
        if type(record) is Create:
            return self._create(record)
        assert type(record) is Delete
        return self._delete(record)

    def apply_all(self, segment: int, records: Iterable[LogRecord]) -> Applied:
        """Apply the records of one batch in order."""
        self.version += 1
        by_id, dropped = self._by_id, []
        appended = size = last_id = 0
        last = NO_RUN
        for record in records:
            if type(record) is Append:  # most are appends, so the queue is called directly
                queue_id, run = record
                goes_on = queue_id == last_id and last.leads_to(run)
                self.memory_bytes += (by_id.get(queue_id) or self._known(queue_id)).append(segment, run, goes_on)
                _, offsets, payload = run
                appended += len(offsets) // OFFSET_BYTES - 1
                size += len(payload)
                last_id, last = queue_id, run
            else:
                last = NO_RUN  # the next run starts an append
                count = self.apply(segment, record)
                if type(record) is not Create:
                    dropped.append(count)
        return Applied(appended, size, dropped)

    def _known(self, queue_id: int) -> Queue:
        queue = self._by_id.get(queue_id)
        if queue is None:
            raise ReplayError(f"a log record names queue id {queue_id}, which does not exist")
        return queue

    def _create(self, record: Create) -> int:
        if record.id < self.next_queue_id or record.name in self._by_name:
            raise ReplayError(f"queue {record.name!r} with id {record.id} is created a second time")
        self.next_queue_id = record.id + 1
        self._add(Queue(record.id, record.name, self.pins))
        return 0

    def _delete(self, record: Delete) -> int:
        queue = self._known(record.id)
        dropped = queue.records
        self.memory_bytes -= queue.memory_bytes
        self.table_bytes -= entry_bytes(queue.name)
        del self._by_id[queue.id]
        del self._by_name[queue.name]
        self._remember(queue)
        queue.clear()
        return dropped

    def _remember(self, queue: Queue) -> None:
        self.deleted[queue.id] = queue.next_position
        if len(self.deleted) > DELETED_REMEMBERED:
            del self.deleted[next(iter(self.deleted))]

    def _add(self, queue: Queue) -> None:
        self._by_id[queue.id] = queue
        self._by_name[queue.name] = queue
        self.memory_bytes += queue.memory_bytes
        self.table_bytes += entry_bytes(queue.name)
