"""Reads of the queues that a log holds in memory. Nothing here waits, and returned values never change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mrecordlog_async.batches import check_bounds, check_limit
from mrecordlog_async.errors import LogClosedError, QueueNotFoundError
from mrecordlog_async.format.stored_options import PLAIN
from mrecordlog_async.memory.cutting import first_records
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import oldest_tick, position_at, tick_at, times_of
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import QueueSummary, Start, Times, tick_of_time, time_of_tick
from mrecordlog_async.names import check_name


class QueueLookup:
    """Finds the queues of a log by name, until the log is closed.

    Attributes:
        queues: The queues of the log. A log that is read again replaces them.
        closed: Makes the error of every later read; None while the log may be read.
    """

    __slots__ = ("_check_unknown", "closed", "queues")

    def __init__(self, queues: Queues, check_unknown: Callable[[object], None] = check_name) -> None:
        """*check_unknown* raises QueueNameError for a name that no queue has, and that none may have."""
        self.queues = queues
        self.closed: Callable[[], LogClosedError] | None = None
        self._check_unknown = check_unknown

    def check_readable(self) -> None:
        """Raise LogClosedError if the log may no longer be read."""
        if self.closed is not None:
            raise self.closed()

    def check_name(self, name: object) -> None:
        """Raise QueueNameError if *name* is one that no queue may have. Only for names that no queue has yet."""
        self._check_unknown(name)

    def get(self, name: object) -> Queue | None:
        """Return the queue called *name*, or None if no queue is."""
        if self.closed is not None:
            raise self.closed()
        return self.queues.get(name) if isinstance(name, str) else None

    def find(self, name: str) -> Queue:
        """Return the queue called *name*.

        Raises:
            QueueNotFoundError: No queue has this name.
            QueueNameError: No queue may have this name.
            LogClosedError: The log is closed.
        """
        if self.closed is not None:
            raise self.closed()
        queue = self.queues.get(name) if isinstance(name, str) else None
        if queue is None:
            self._check_unknown(name)
            raise QueueNotFoundError(name)
        return queue

    def summaries(self) -> dict[str, QueueSummary]:
        """Return the positions and sizes of every queue, by name in order."""
        self.check_readable()
        return {queue.name: summarize(queue) for queue in sorted(self.queues, key=lambda queue: queue.name)}


def held_between(queue: Queue, start: Start | None, stop: int | None, limit: int | None) -> list[HeldRun]:
    """Return what *queue* holds at positions *start* … *stop* - 1, at most *limit* records, as it is kept."""
    first = position_of(queue, start)
    check_bounds(first, stop)
    if limit is None:
        return queue.held(first, stop)
    return first_records(queue, first, stop, check_limit(limit))


def position_of(queue: Queue, start: Start | None) -> int | None:
    """Return the position that *start* means in *queue*."""
    return position_at(queue, tick_of_time(start)) if isinstance(start, datetime) else start


def time_at(queue: Queue, position: int) -> datetime | None:
    """Return when the record of *queue* at *position* was stored, or None if none is retained there."""
    check_bounds(position, None)
    return time_of_tick(tick_at(queue, position)) if queue.held(position, position + 1) else None


def times_between(queue: Queue, start: int | None, stop: int | None) -> Times:
    """Return when the records of *queue* with positions *start* … *stop* - 1 were stored, all at once."""
    first = queue.first_position if start is None else max(start, queue.first_position)
    end = queue.next_position if stop is None else min(stop, queue.next_position)
    return times_of(queue, first, end) if first < end else Times.none()


def fingerprint(queue: Queue) -> int:
    """Return a number that is another one once `summarize` returns something else.

    Both positions only rise while the queue lives, so their sum rises with each of them; whatever else a summary has
    changes with them, but for the seal. After the queue is recreated its id is another one.
    """
    sealed = queue.options is not PLAIN and queue.is_sealed()
    return queue.id << 66 | (queue.first_position + queue.next_position) << 1 | sealed


def summarize(queue: Queue) -> QueueSummary:
    """Return the positions and sizes of *queue*."""
    return QueueSummary(
        queue=queue.name,
        id=queue.id,
        first_position=queue.first_position,
        next_position=queue.next_position,
        records=queue.records,
        bytes=queue.live_bytes(),
        first_segment=queue.first_segment(),
        began=queue.began,
        sealed=queue.is_sealed(),
        oldest_time=time_of_tick(tick) if (tick := oldest_tick(queue)) != NO_TICK else None,
    )
