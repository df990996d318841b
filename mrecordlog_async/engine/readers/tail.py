"""`Tail`: the records of one queue from a position on, as they arrive, one by one or in batches.

A `BatchCollector` is a place in a queue, the core of tails and consumers:

1. Wait until a record at or after its position is retained. Gaps and truncated records are passed over.
2. Collect until a limit is reached, or until some time after the first record.
3. Take the records and move the position.

Nothing is awaited between 3 and the return, and nothing is moved before: a call that is cancelled, even by `wait_for`,
loses no record. A reader that never has to wait gives the event loop a turn every `TURN_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf
from time import perf_counter

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS, AvailableBatches, Batches, BatchLimits
from mrecordlog_async.engine.readers.subscribers import Changes
from mrecordlog_async.engine.spilling.disk_reads import Ahead, DiskReads
from mrecordlog_async.errors import LogClosedError, LogFailedError
from mrecordlog_async.memory.cutting import Head, head_of
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import Batch, Record

TURN_SECONDS = 0.002
"""A turn costs 5 to 8 µs, a tenth of the time in which a thousand small records are read. So not every call has one."""


class QueueWatch:
    """One incarnation of a queue, watched by a tail or a long poll: its state now, and a wait for its next change.

    disk: reads the records that are not in memory. check: raises if the queue may not be read any more, as by a holder
    of a consumer once another one has attached.
    """

    def __init__(
        self,
        queues: Queues,
        queue_id: int,
        changes: Changes,
        is_closing: Callable[[], bool],
        failure: Callable[[], BaseException | None],
        disk: DiskReads,
        check: Callable[[Queue], None] | None = None,
    ) -> None:
        self.queue_id = queue_id
        self._queues = queues
        self._changes = changes
        self._is_closing = is_closing
        self._failure = failure
        self.disk = disk
        self.waits: Callable[[], AbstractContextManager[None]] = nullcontext
        self._check = check

    def queue(self) -> Queue | None:
        """Return the queue, or None if it is deleted or its readers end: then nothing of it is handed out any more."""
        return self.present() if self._changes.handing_out else None

    def present(self) -> Queue | None:
        """Return the queue, or None if it is deleted or the log closes. Readers that end still collect a last batch."""
        queue = None if self._is_closing() else self._queues.by_id(self.queue_id)
        if queue is not None and self._check is not None:
            self._check(queue)
        return queue

    def is_ending(self) -> bool:
        """Return whether readers are to end, because the log closes or the application that holds it ends."""
        return not self._changes.handing_out or self._is_closing()

    def is_complete(self, queue: Queue) -> bool:
        """Return whether *queue* gets no more records: it is sealed, or it or the whole log is being drained."""
        return self._changes.ended or queue.is_sealed() or queue.name in self._changes.ended_queues

    async def reach(self, position: int) -> bool:
        """Wait until *position* has been assigned; return False if it will not be."""
        while (queue := self.queue()) is not None:
            if queue.next_position > position:
                return True
            if self.is_complete(queue):
                return False
            await self.change()
        return False

    async def change(self, deadline: float | None = None) -> None:
        """Wait until the queue changes or the log ends; raise LogFailedError if it failed.

        TimeoutError: nothing did until *deadline*, by the clock of the event loop.
        """
        failure = self._failure()
        if failure is not None:
            raise LogFailedError(str(failure)) from failure
        with self.waits():
            if deadline is None:
                await self._changes.wait(self.queue_id)
            else:
                async with asyncio.timeout_at(deadline):
                    await self._changes.wait(self.queue_id)


class Tail(AsyncIterator[Record]):
    """Result of `log.tail`: iterate over it, or take batches. Both continue where the other one stopped.

    Cancelling a call, even by `asyncio.wait_for` or `asyncio.timeout`, loses nothing and does not end the tail. It ends
    when the queue is deleted or the log closes, and after the last record of a queue that is sealed or of a log that is
    drained. Records that are truncated before they are handed out are skipped.
    """

    def __init__(self, watch: QueueWatch, position: int, find: Callable[[], Awaitable[int]] | None = None) -> None:
        """Use `log.tail`. *find* returns the first position, which is not before *position*, once it is wanted."""
        self._watch = watch
        self._collector = BatchCollector(watch, position, find)
        self._ahead = Ahead([])
        self._queue: Queue  # of `_ahead`
        self._closed = False

    @property
    def position(self) -> int:
        """The lowest position that may be handed out next."""
        return self._collector.position

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Record:
        collector = self._collector
        while True:
            for record in self._ahead.records:
                position = record[0]
                # Otherwise it was truncated or deleted since, or another task took it.
                if position >= self._queue.first_position and position >= collector.position:
                    if self._watch.is_ending():
                        break
                    collector.position = position + 1
                    return record
            self._ahead.forget()
            queue = None if self._closed else await collector.wait()
            if queue is None:
                raise StopAsyncIteration
            # A run at a time: records truncated meanwhile are not handed out, and not kept in memory for long.
            try:
                self._queue, self._ahead = queue, await self._watch.disk.ahead(queue, collector.position)
            except LogClosedError:
                if not self._watch.is_ending():  # this runs on another event loop
                    raise
                # Otherwise the log closes while this reads from the disk: `wait` says so.

    async def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
        timeout: float | None = None,
    ) -> Batch | None:
        """Return the next records together, as soon as a limit is reached or *max_wait* after the first one.

        Cancelling the call loses nothing: the next one returns the same records.

        Args:
            max_records: At most this many records.
            max_bytes: At most this many payload bytes, but at least one record.
            max_wait: Seconds to wait for more records after the first one; 0 returns what is there, None waits until
                another limit is reached.
            timeout: Seconds after which the call returns what is there, even without a record; None waits for the
                first one without limit.

        Returns:
            At least one record, or after *timeout* an empty batch; None once the tail has ended.

        Raises:
            ValueError: A limit is below 1, or a time is negative.
            LogFailedError: The log failed.
        """
        limits = BatchLimits.checked(max_records, max_bytes, max_wait, timeout)
        if self._closed:
            return None
        self._ahead.forget()  # the collector stands after the last one that was handed out
        # A full batch at hand needs none of the coroutines that wait: 3 of 8 µs.
        batch = self._collector.take_full(limits)
        return batch if batch is not None else await self._collector.collect(limits)

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> AsyncIterator[Batch]:
        """Iterate over batches until the tail ends; the arguments are those of `batch`."""
        return Batches(self.batch, BatchLimits.checked(max_records, max_bytes, max_wait))

    def available(self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES) -> AsyncIterator[Batch]:
        """Iterate over batches of the records that are there when the first is asked for, and wait for no others.

            async for batch in tail.available(): ...

        The last batch may have newer records too. Afterwards the tail can be used as before.

        Args:
            max_records: At most this many records in a batch.
            max_bytes: At most this many payload bytes in a batch, but at least one record.
        """
        return AvailableBatches(self.batch, BatchLimits.checked(max_records, max_bytes, 0), self._end)

    async def _end(self) -> int:
        queue = self._watch.queue()
        return 0 if queue is None else queue.next_position

    async def aclose(self) -> None:
        """End the tail. Not needed for one that is no longer used: it keeps nothing open."""
        self._closed = True
        self._ahead.forget()


class BatchCollector:
    """A place in one incarnation of a queue. position: everything before it was handed out, or is skipped."""

    def __init__(self, watch: QueueWatch, position: int, find: Callable[[], Awaitable[int]] | None = None) -> None:
        self.position = position
        self._watch = watch
        self._find = find  # until the first position is known
        self._rested = -inf  # when the event loop last ran others before this reader

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue."""
        return self._watch.queue_id

    async def wait(self, deadline: float | None = None) -> Queue | None:
        """Wait for a record at or after the position; return its queue, or None if no such record will come.

        Raises:
            TimeoutError: None came until *deadline*, by the clock of the event loop.
            LogFailedError: The log failed, and every record is handed out.
        """
        rested = False
        if self._find is not None:
            position = await self._find()
            self.position, self._find = max(self.position, position), None
        while (queue := self._watch.queue()) is not None:
            end = queue.held_end()
            if end is not None and end > self.position:
                if rested or perf_counter() - self._rested < TURN_SECONDS:
                    return queue
                await asyncio.sleep(0)  # others get a turn, however much there is to read
            elif self._watch.is_complete(queue):
                return None
            else:
                await self._watch.change(deadline)
            rested = True
            self._rested = perf_counter()
        return None

    def take_full(self, limits: BatchLimits) -> Batch | None:
        """Return a batch that reaches one of *limits* if the records are there and no turn is due; move past them."""
        is_turn = perf_counter() - self._rested < TURN_SECONDS and self._find is None
        queue = self._watch.queue() if is_turn else None
        if queue is None or max(self.position, queue.first_position) < queue.memory_first:
            return None
        head = head_of(queue, self.position, limits.records, limits.bytes)
        if not head.is_full:
            return None
        self.position = head.stop
        return head.batch(queue)

    async def collect(self, limits: BatchLimits) -> Batch | None:
        """Wait for records, collect them until one of *limits* is reached, and move past them; None at the end.

        Raises:
            LogFailedError: The log failed, and every record is handed out.
        """
        if limits.timeout is None:
            return await self._collect(limits, None)
        try:
            return await self._collect(limits, asyncio.get_running_loop().time() + limits.timeout)
        except TimeoutError:
            queue = self._watch.queue()
            return None if queue is None else Batch.empty(queue.name, queue.id, self.position)

    async def _collect(self, limits: BatchLimits, deadline: float | None) -> Batch | None:
        """Do what `collect` does; raise TimeoutError if there was no record until *deadline*."""
        while (queue := await self.wait(deadline)) is not None:
            if max(self.position, queue.first_position) < queue.memory_first:
                batch = await self._collect_from_disk(queue, limits)
                if batch is not None:
                    return batch
                continue
            head = head_of(queue, self.position, limits.records, limits.bytes)
            if not head.is_full and not self._watch.is_complete(queue):
                await self._wait_until_full(_Counted(head), limits, deadline)
                if self._watch.present() is None or max(self.position, queue.first_position) < queue.memory_first:
                    continue
                head = head_of(queue, self.position, limits.records, limits.bytes)
            if head.runs:
                self.position = head.stop
                return head.batch(queue)
            # Everything was truncated while it was collected.
        return None

    async def _collect_from_disk(self, queue: Queue, limits: BatchLimits) -> Batch | None:
        """Return a batch that begins on the disk, without waiting for more than there is; None to look again."""
        position = self.position
        try:
            head = await self._watch.disk.head(queue, position, limits.records, limits.bytes)
        except LogClosedError:
            if not self._watch.is_ending():  # this runs on another event loop
                raise
            return None  # the next look finds that the log has ended
        if head is None or self.position != position or self._watch.queue() is not queue:
            return None  # or another task has moved the position meanwhile
        self.position = head.stop
        return head.batch(queue)

    async def _wait_until_full(self, counted: _Counted, limits: BatchLimits, deadline: float | None) -> None:
        """Wait until a limit is reached, no more can come, or the time is up."""
        if limits.seconds is not None:
            full = asyncio.get_running_loop().time() + limits.seconds
            deadline = full if deadline is None else min(full, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    await self._watch.change()
                    queue = self._watch.queue()
                    if queue is None or self._watch.is_complete(queue) or counted.is_full(queue, limits):
                        return
        except TimeoutError:
            return
        except LogFailedError:  # the next call raises it: what is stored comes first
            return


class _Counted:
    """Counts what a batch would hold: each record once, however often the queue changes meanwhile."""

    def __init__(self, head: Head) -> None:
        self._start = self._position = head.start
        self._records = self._bytes = 0
        self._count(head)

    def is_full(self, queue: Queue, limits: BatchLimits) -> bool:
        """Count what was added to *queue*; return whether a limit is reached."""
        if queue.first_position > self._start:  # some of what was counted may be truncated
            self._start = self._position = queue.first_position
            self._records = self._bytes = 0
        if max(self._position, queue.first_position) < queue.memory_first:
            return True  # some of it has left memory: it is read from the disk
        head = head_of(queue, self._position, limits.records - self._records, limits.bytes - self._bytes)
        self._count(head)
        return head.is_full

    def _count(self, head: Head) -> None:
        if head.runs:
            batch = Batch("", 0, head.runs, head.start, head.stop)
            self._records += len(batch)
            self._bytes += batch.bytes
            self._position = head.stop
