"""Which acknowledged changes are not synced yet: what a crash of the machine may take under the weaker policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mrecordlog_async.format.record import Consumer, LogRecord, Truncate
from mrecordlog_async.format.runs import Append, Many
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.recovery.recovered import LogEnd


class UnsyncedChanges:
    """For each queue, the lowest position that an acknowledged, unsynced change concerns. Owned by the writer.

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
            if type(record) is Append:  # at the end of its queue, so past every position noted before
                self._first_positions.setdefault(record.id, record.run.first_position)
            elif type(record) is Truncate:
                self._lower(record.id, record.position)
            elif type(record) is Consumer:
                self._lower(record.id, record.state.position)
            elif type(record) is Many:
                # Without a Python statement per record: half the time of a loop.
                deque(map(self._first_positions.setdefault, record.ids, record.positions), maxlen=0)

    def _lower(self, queue_id: int, position: int) -> None:
        self._first_positions[queue_id] = min(self._first_positions.get(queue_id, position), position)

    def by_name(self, end: LogEnd) -> dict[str, int]:
        """Return the lowest position of an unsynced change for each queue that has any. Deleted queues are left out."""
        if end.durable_batch >= self._last_batch:
            return {}
        found = ((self._queues.by_id(queue_id), position) for queue_id, position in self._first_positions.items())
        return {queue.name: position for queue, position in found if queue is not None}
