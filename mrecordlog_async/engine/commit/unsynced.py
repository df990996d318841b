"""The changes that a crash of the machine may take, of a log whose policy does not sync each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import assert_never

from mrecordlog_async.format.controls import (
    ConsumerDelete,
    ConsumerRule,
    Create,
    Delete,
    Opened,
    SetConsumer,
    Truncate,
)
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.format.stored_options import SetOptions
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.storage.segment import LogEnd


class UnsyncedChanges:
    """Changes that a crash of the machine may take: per queue, the lowest position of an unsynced, acknowledged one.

    *end* is the journal's: its `durable_batch` is the last synced batch, after any kind of sync.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._first_positions: dict[int, int] = {}  # by queue id
        self._last_batch = 0  # the newest batch with such changes: once it is synced, all of them are

    def add(self, records: Iterable[LogRecord], end: LogEnd) -> None:
        """Note the changes of the batch that *end* names as the last one."""
        if end.durable_batch >= self._last_batch:
            self._first_positions.clear()
        self._last_batch = end.last_batch
        for record in records:
            match record:
                case Append():  # at the end of its queue, so past every position noted before
                    self._first_positions.setdefault(record.id, record.run.first_position)
                case Many():
                    # Without a Python statement per record: half the time of a loop.
                    deque(map(self._first_positions.setdefault, record.ids, record.positions), maxlen=0)
                case Truncate():
                    self._lower(record.id, record.position)
                case SetConsumer():
                    self._lower(record.id, record.state.position)
                case Create() | Delete() | ConsumerDelete() | ConsumerRule() | Opened() | SetOptions():
                    pass  # their batches are synced under every policy, or concern no position
                case _:
                    assert_never(record)

    def _lower(self, queue_id: int, position: int) -> None:
        self._first_positions[queue_id] = min(self._first_positions.get(queue_id, position), position)

    def by_name(self, end: LogEnd) -> dict[str, int]:
        """Return the lowest position of an unsynced change for each queue that has any. Deleted queues are left out."""
        if end.durable_batch >= self._last_batch:
            return {}
        found = ((self._queues.by_id(queue_id), position) for queue_id, position in self._first_positions.items())
        return {queue.name: position for queue, position in found if queue is not None}
