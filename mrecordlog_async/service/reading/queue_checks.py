"""Checks of a request against its queue: it exists, is the intended incarnation, and holds these positions.

Every route that takes an id or a position checks it here, so that each problem has one wording.
"""

from __future__ import annotations

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.bulk_schemas import QueueStatus
from mrecordlog_async.protocol.problems import ProblemError, too_large
from mrecordlog_async.service.options import ServiceOptions


def summary_of(log: MultiRecordLog, queue: str) -> QueueSummary | None:
    """Return the summary of *queue*, None if it does not exist."""
    return log.queue_summary(queue) if log.queue_exists(queue) else None


def status_of(summary: QueueSummary | None, queue_id: int | None) -> QueueStatus:
    """Return whether the queue exists and is the requested incarnation."""
    if summary is None:
        return QueueStatus.MISSING
    return QueueStatus.OK if queue_id in (None, summary.id) else QueueStatus.RECREATED


def check_id(summary: QueueSummary, queue_id: int | None) -> None:
    """Raise the 404 problem if the queue is not the incarnation *queue_id*; None allows any."""
    if status_of(summary, queue_id) is not QueueStatus.OK:
        detail = f"queue {summary.queue!r} was recreated: its id is now {summary.id}, not {queue_id}; list it again"
        raise ProblemError(404, "queue_recreated", detail, queue=summary.queue, id=summary.id)


def misses(summary: QueueSummary, start: int) -> bool:
    """Return whether records from *start* on were truncated. Positions before the queue's first record do not count."""
    return max(start, summary.began) < summary.first_position


def check_start(summary: QueueSummary, start: int) -> None:
    """Raise the 410 problem if records from *start* on were truncated."""
    if misses(summary, start):
        detail = f"queue {summary.queue!r}: records before {summary.first_position} are truncated; start there"
        first = summary.first_position
        raise ProblemError(410, "truncated", detail, queue=summary.queue, first_position=first)


def check_assigned(summary: QueueSummary, position: int) -> None:
    """Raise the 409 problem if the queue has not assigned *position* yet."""
    next_position = summary.next_position
    if position >= next_position:
        detail = (
            f"queue {summary.queue!r}: position {position} has not been assigned yet; the next one is {next_position}"
        )
        raise ProblemError(409, "ahead", detail, queue=summary.queue, next_position=next_position)


def check_entries(count: int, options: ServiceOptions) -> None:
    """Raise the 413 problem if a request names more queues or ranges than it may."""
    if count > options.entries:
        raise too_large(count, options.entries, "entries in one request")
