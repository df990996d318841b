"""Reads from the queues that a log holds in memory: the same for `MultiRecordLog` and `ReadOnlyLog`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain

from mrecordlog_async.batches import check_limit
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.memory.cutting import first_records
from mrecordlog_async.memory.pieces import HeldRun, as_runs
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.searches import first_in_steps
from mrecordlog_async.memory.times import NO_TICK, tick_of_time
from mrecordlog_async.model import QueueSummary, Record, Run, Start, Times, time_of_tick
from mrecordlog_async.names import check_name

Extent = tuple[int, int, int, int]
"""Id, `began`, first position and next position of a queue, as `QueueSummary` describes them."""


class QueueReader:
    """Reads from memory. Nothing here waits, and returned values never change."""

    _queues: Queues

    def range(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records of *queue* with positions *start* … *stop* - 1.

        What is yielded is fixed at the call: later appends and truncates do not change it.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all.
            limit: At most this many records, the first ones; None for all.

        Raises:
            QueueNotFoundError: No queue has this name.
            TypeError: A position is not an int.
            ValueError: *limit* is negative, or a time has no time zone or is in the future.
        """
        return chain.from_iterable(run.records() for run in self._held(queue, start, stop, limit))

    def iter_from(self, queue: str, position: int) -> Iterator[Record]:
        """Yield the records of *queue* from *position* on; see `range`."""
        return self.range(queue, position)

    def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Sequence[Run]:
        """Return the records that `range` yields as runs, of which only the first and the last one are cut.

        Runs between positions with gaps are made during iteration.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all.
            limit: At most this many records, the first ones; None for all.

        Returns:
            A sequence that is fixed at the call.

        Raises:
            QueueNotFoundError: No queue has this name.
            TypeError: A position is not an int.
            ValueError: *limit* is negative, or a time has no time zone or is in the future.
        """
        return as_runs(self._held(queue, start, stop, limit))

    def held(
        self,
        queue: str,
        start: Start | None = None,
        stop: int | None = None,
        *,
        most: int | None = None,
        records_max: int | None = None,
    ) -> list[HeldRun]:
        """Return what `runs` returns in the form it is kept: records with gaps between them in one piece.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all.
            most: Return at most this many pieces, the first ones. A caller that must not block an event loop calls
                again from the next position of the last piece, until nothing is returned.
            records_max: No more records than this are wanted. Pieces are returned as they are kept, so there may be
                more in them, but nothing is joined beyond it.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        found = self._queue(queue)
        return found.held(position_of(found, start), stop, most, records_max)

    def time_of(self, queue: str, position: int) -> datetime | None:
        """Return when the record of *queue* at *position* was stored, as the machine's clock was then.

        It is the time of the batch that the record was stored in, rounded down to 0.1 s. A restart does not change it.

        Args:
            queue: The queue.
            position: Position of the record.

        Returns:
            The time in UTC; None if no record is retained at this position.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        found = self._queue(queue)
        check_bounds(position, None)
        return time_of_tick(found.tick_at(position)) if found.held(position, position + 1) else None

    def position_at(self, queue: str, time: datetime) -> int:
        """Return the position of the first retained record of *queue* that was stored at *time* or later.

        *time* is rounded down to 0.1 s, as the times of records are: no record that was stored since is missed. Every
        record before the position was stored earlier, even if the machine's clock went back. In a queue where it did,
        the search visits every change of the time.

        Args:
            queue: The queue.
            time: A time with a time zone, not in the future: up to a minute ahead of this machine's clock is allowed.

        Returns:
            The position; the next position if every record is older.

        Raises:
            QueueNotFoundError: No queue has this name.
            ValueError: *time* has no time zone, or is in the future.
        """
        return self._queue(queue).position_at(tick_of_time(time))

    def times(self, queue: str, start: int | None = None, stop: int | None = None) -> Times:
        """Return when the records of *queue* with positions *start* … *stop* - 1 were stored, all at once.

        Args:
            queue: The queue.
            start: First position; None for the first retained one.
            stop: Position after the last one; None for all.

        Returns:
            Where the time changes along these positions; nothing if none of them is retained.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        found = self._queue(queue)
        first = found.first_position if start is None else max(start, found.first_position)
        end = found.next_position if stop is None else min(stop, found.next_position)
        return found.times(first, end) if first < end else Times.none()

    def _held(self, queue: str, start: Start | None, stop: int | None, limit: int | None) -> list[HeldRun]:
        found = self._queue(queue)
        first = position_of(found, start)
        check_bounds(first, stop)
        if limit is None:
            return found.held(first, stop)
        return first_records(found, first, stop, check_limit(limit))

    def queue_exists(self, queue: str) -> bool:
        """Return whether a queue of this name exists."""
        self._check_readable()
        return isinstance(queue, str) and self._queues.get(queue) is not None

    @property
    def version(self) -> int:
        """A number that is different after every change that a reader can see."""
        return self._queues.version

    def names(self) -> tuple[tuple[int, int], Iterable[str]]:
        """Return the names of all queues, unsorted, for lists that are too long to sort in one turn of the event loop.

        Returns:
            A value that is different once the set of names has changed, and the names. Copy them before anything else
            runs: they are a view.
        """
        self._check_readable()
        return (self._queues.next_queue_id, len(self._queues)), self._queues.unsorted_names()

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        self._check_readable()
        return self._queues.names()

    def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated: its next position if it is empty.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return self._queue(queue).first_position

    def last_position(self, queue: str) -> int | None:
        """Return the position before the next one, even if it is truncated; None if that is 0.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return self._queue(queue).next_position - 1 if self._queue(queue).next_position else None

    def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return self._queue(queue).next_position

    def last_record(self, queue: str) -> Record | None:
        """Return the newest retained record of *queue*, or None if it is empty.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return self._queue(queue).last_record()

    def queue_summary(self, queue: str) -> QueueSummary:
        """Return the positions and sizes of one queue.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return summarize(self._queue(queue))

    def extent(self, queue: str) -> Extent | None:
        """Return the id and the positions of one queue, in a tenth of the time of a summary; None if it is missing."""
        self._check_readable()
        found = self._queues.get(queue)
        return None if found is None else (found.id, found.began, found.first_position, found.next_position)

    def fingerprints(self, queues: Sequence[str]) -> dict[str, int]:
        """Return a number for each of *queues* that exists, in this order; it is another one once its summary is.

        It takes a tenth of the time of the summaries.
        """
        self._check_readable()
        found = zip(queues, map(self._queues.get, queues), strict=True)
        return {name: fingerprint(queue) for name, queue in found if queue is not None}

    def summary(self) -> dict[str, QueueSummary]:
        """Return the positions and sizes of every queue, by name in order."""
        self._check_readable()
        return {queue.name: summarize(queue) for queue in sorted(self._queues, key=lambda queue: queue.name)}

    def next_positions(self) -> dict[int, int]:
        """Return the next position of every queue, by id."""
        self._check_readable()
        return {queue.id: queue.next_position for queue in self._queues}

    def ranked_in_steps(self, order: str, most: int, prefix: str = "") -> Iterator[list[str]]:
        """Find the queues that come first in an order, a thousand at a time, so that other work can run in between.

        Args:
            order: "bytes" or "records" for the queues that hold most, "segment" for those that keep the oldest one,
                "age" for those with the oldest records.
            most: So many queues at most.
            prefix: Only queues whose names begin with it.

        Yields:
            The names found so far, after each step. The last list is the result.
        """
        self._check_readable()
        queues = (queue for queue in self._queues if queue.name.startswith(prefix)) if prefix else self._queues
        for found in first_in_steps(queues, order, most):
            yield [queue.name for queue in found]

    def deleted_end(self, queue_id: int) -> int | None:
        """Return the next position that a deleted queue had, or None if it is unknown.

        Args:
            queue_id: The incarnation (see `QueueSummary.id`). The last 10,000 deletions since the open are known.
        """
        return self._queues.deleted.get(queue_id)

    def _check_readable(self) -> None:
        """Raise LogClosedError if the log may no longer be read."""

    def _check_name(self, queue: object) -> None:
        check_name(queue)

    def _queue(self, name: str) -> Queue:
        self._check_readable()
        queue = self._queues.get(name) if isinstance(name, str) else None
        if queue is None:
            self._check_name(name)
            raise QueueNotFoundError(name)
        return queue


def position_of(queue: Queue, start: Start | None) -> int | None:
    """Return the position that *start* means in *queue*."""
    return queue.position_at(tick_of_time(start)) if isinstance(start, datetime) else start


def check_bounds(start: object, stop: object) -> None:
    """Raise TypeError unless both are ints or None."""
    for position in (start, stop):
        if position is not None and not isinstance(position, int):
            raise TypeError(f"positions are ints or None, not {type(position).__name__} ({position!r})")


def is_there(log: QueueReader, queue: str, queue_id: int) -> bool:
    """Return whether *queue* exists and is still the incarnation *queue_id*."""
    found = log.extent(queue)
    return found is not None and found[0] == queue_id


def fingerprint(queue: Queue) -> int:
    """Return a number that is another one once `summarize` returns something else.

    Both positions only rise while the queue lives, so their sum rises with each of them; whatever else a summary has
    changes with them, but for the seal. After the queue is recreated its id is another one.
    """
    sealed = queue.options is not None and queue.is_sealed()
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
        oldest_time=time_of_tick(tick) if (tick := queue.oldest_tick()) != NO_TICK else None,
    )
