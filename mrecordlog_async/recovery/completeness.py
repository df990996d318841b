"""Whether a log that was read holds every record that it must: none is missing at either end of a queue."""

from __future__ import annotations

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.table import Table
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.segment import segment_name


def check_nothing_is_missing(recovered: RecoveredLog, first_table: Table) -> None:
    """Check that records of segments before those read are all truncated, and that every queue holds its end.

    Args:
        recovered: the log that was read.
        first_table: the table of the oldest segment that was read.

    Raises:
        CorruptionError: A queue lacks records.
    """
    name = segment_name(recovered.oldest_segment)
    _check_first_table(recovered, first_table, name)
    for queue in recovered.queues:
        _check_queue(queue, recovered.oldest_segment, name)


def _check_first_table(recovered: RecoveredLog, first_table: Table, name: str) -> None:
    """Raise CorruptionError if a queue needs records that only a segment before the oldest one can hold."""
    for entry in first_table.entries:
        queue, next_position = recovered.queues.by_id(entry.id), entry.next_position
        if queue is None or entry.first_position == next_position:
            continue
        if queue.first_position < next_position:
            raise CorruptionError(
                name,
                None,
                f"positions {queue.first_position} to {next_position - 1} of queue {entry.name!r} are missing: "
                "a segment file was removed",
            )


def _check_queue(queue: Queue, oldest: int, name: str) -> None:
    first_segment = queue.first_segment()
    if first_segment is not None and first_segment < oldest:
        raise CorruptionError(
            name, None, f"it is named as the oldest live segment, but queue {queue.name!r} has records before it"
        )
    if queue.first_position < queue.next_position and queue.held_end() != queue.next_position:
        raise CorruptionError(name, None, f"position {queue.next_position - 1} of queue {queue.name!r} is missing")
