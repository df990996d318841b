"""The reading side of an open log: following a queue, and numbers about the log. Nothing here changes the log."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from mrecordlog_async.batches import check_start
from mrecordlog_async.engine.readers.subscribers import QueueWatch
from mrecordlog_async.engine.readers.tail import Tail
from mrecordlog_async.engine.running import RunningLog
from mrecordlog_async.format.header import public_log_id
from mrecordlog_async.memory.reads import QueueReader, position_of
from mrecordlog_async.metrics import Counters, Histogram, SegmentPin
from mrecordlog_async.model import ResourceUsage, Start
from mrecordlog_async.names import check_new_name


class LiveReader(RunningLog, QueueReader):
    """Reads of a log that is open. Those of `QueueReader` never wait; `tail` and `wait_for` do."""

    # Following a queue.

    def tail(self, queue: str, start: Start | None = None) -> Tail:
        """Return the records of *queue* from *start* on, and those that come, as an iterator that also gives batches.

            async for position, payload in log.tail("orders"): ...
            async for batch in log.tail("orders").batches(max_records=500): ...

        Args:
            queue: The queue.
            start: The first position to yield, or a time (see `position_at`). None and a truncated position start with
                the first retained record.

        Returns:
            The tail. It yields each record once it is durable under the persist policy, and ends when the queue is
            deleted or the log closes, and after the last record of a sealed queue or a drained log. A wait that is
            cancelled does not end it.

        Raises:
            QueueNotFoundError: No queue has this name.
            ValueError: *start* is not a position, or a time that has no time zone or is in the future.
        """
        found = self._queue(queue)
        position = position_of(found, start)
        return Tail(self._watch(found.id), found.first_position if position is None else check_start(position))

    async def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*.

        Args:
            queue: The queue.
            position: The position to wait for; truncated records count.

        Returns:
            True once the queue's next position is past *position*; False if the queue was deleted, is sealed before
            that position, or the log closed or is drained.

        Raises:
            QueueNotFoundError: No queue has this name.
            LogFailedError: The log failed.
            ValueError: *position* is not one at which a tail can start.
        """
        check_start(position)
        return await self._watch(self._queue(queue).id).reach(position)

    def _watch(self, queue_id: int) -> QueueWatch:
        return QueueWatch(self._queues, queue_id, self._changes, self._is_closing, lambda: self._writer.failure)

    # Numbers.

    def resource_usage(self) -> ResourceUsage:
        """Return the bytes, queues and segments in use, with their limits."""
        journal, limits = self._opened.journal, self.limits
        return ResourceUsage(
            memory_bytes=self._queues.memory_bytes,
            memory_limit_bytes=limits.memory_bytes,
            disk_bytes=journal.disk_bytes,
            disk_written_bytes=journal.written_bytes,
            disk_limit_bytes=limits.disk_bytes,
            pending_bytes=self._admission.pending_bytes,
            pending_limit_bytes=limits.pending_bytes,
            queues=len(self._queues),
            queues_limit=limits.queues,
            segments=len(journal.older) + 1,
        )

    @property
    def segments(self) -> range:
        """Numbers of the segments on the disk, oldest first. The last one is being written."""
        journal = self._opened.journal
        older, current = journal.older[:1], journal.end.segment
        return range(older[0][0] if older else current, current + 1)

    @property
    def pending_records(self) -> int:
        """Number of records that wait to be stored. Counted when read, so that appends pay nothing for it."""
        return self._writer.pending_records + self._admission.pending_records()

    @property
    def public_id(self) -> str:
        """A stable name of this log, derived from its id. Moving the log keeps it, and snapshots share it."""
        return public_log_id(self._opened.log_id)

    def pin(self) -> SegmentPin | None:
        """Return the queue that keeps the oldest segment on the disk.

        Scans every queue if another one keeps it than at the last call: 100,000 queues take 14 ms.

        Returns:
            The queue and the segments it keeps, or None if no queue needs a segment older than the current one.
        """
        found = None
        for found in self.pin_in_steps():  # noqa: B007  # the last one counts
            pass
        return found

    def pin_in_steps(self) -> Iterator[SegmentPin | None]:
        """Do what `pin` does, a thousand queues at a time, so that other work can run between two steps.

        Yields:
            None after each step, then the result of `pin`.
        """
        yield from self._oldest_pin.find_in_steps(self.segments)

    def pinned_segments(self) -> list[tuple[int, int]]:
        """Return the segments that hold retained records, each with the number of queues that have some in it.

        Others between the first of them and the current one stay only because segments are deleted in order.
        """
        return self._queues.pins.by_segment()

    def stats(self) -> Counters:
        """Return a copy of the counters since the log was opened; it no longer changes."""
        self._writer.count_stored()
        return self._counters.snapshot()

    @property
    def under_way_seconds(self) -> float:
        """How long the work that the log's thread does now, such as a commit, has taken in system calls; 0 without any.

        A disk that hangs shows here, and not in the histograms, which count what has come back.
        """
        return self._disk_watch.under_way_seconds()

    @property
    def waiting_seconds(self) -> float:
        """How long the oldest unfinished call has waited; 0 without one."""
        since = self._writer.oldest_since()
        return 0.0 if since is None else max(perf_counter() - since, 0.0)

    def recent_times(self) -> dict[str, Histogram]:
        """Return the histograms `append_seconds`, `commit_seconds` and `sync_seconds` of the last minute alone."""
        self._writer.count_stored()
        return self._disk_watch.recent()

    # Checks before every read.

    def _check_name(self, queue: object) -> None:
        """Raise QueueNameError if *queue* is invalid. Only for unknown names: an existing queue's name passes."""
        check_new_name(queue, self.limits.name_bytes)

    def _check_readable(self) -> None:
        self._check_not_closed()
