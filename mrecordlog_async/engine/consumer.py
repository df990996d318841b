"""`Consumer`: the holder of a durable position on one queue. Entering `log.consumer(queue, name)` attaches it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS, Batches, BatchLimits, last_position
from mrecordlog_async.engine.consuming import Attaching, ConsumerChanges
from mrecordlog_async.engine.intake.controls import Attached
from mrecordlog_async.engine.readers.tail import QueueWatch, Tail
from mrecordlog_async.model import Batch, Record, Start
from mrecordlog_async.support.coroutine_mark import coroutine_function

_NOT_ATTACHED = "the consumer is not attached: use it inside `async with log.consumer(…) as c`"


class Consumer(AsyncIterator[Record]):
    """A durable position on one queue: everything before it is acknowledged. One holder at a time.

        async with log.consumer("orders", "billing") as c:
            async for batch in c.batches():
                deliver(batch)
                await c.acknowledge(batch)

    Delivery is at least once: what was not acknowledged is handed out again after the consumer is entered the next
    time. Entering takes a new epoch, and every call of an older holder raises ConsumerFencedError from then on.

    Cancelling a call, even by `asyncio.wait_for` or `asyncio.timeout`, loses nothing. (On Python 3.11, do not put one
    `asyncio.wait_for` into another: it may drop a batch that arrives as it is cancelled.) An acknowledgement that is
    cancelled may be stored or not; acknowledging again is harmless.

    Attributes:
        queue: Name of the queue.
        consumer: Its name.
    """

    def __init__(self, queue: str, consumer: str, changes: ConsumerChanges, attaching: Attaching) -> None:
        """Use `log.consumer`."""
        self.queue = queue
        self.consumer = consumer
        self._changes = changes
        self._attaching = attaching
        self._attached: Attached | None = None
        self._watch: QueueWatch | None = None
        self._tail: Tail | None = None
        self._acknowledged = 0  # where the consumer is, as far as this holder knows

    async def __aenter__(self) -> Self:
        if self._attached is not None:
            raise RuntimeError(f"the consumer {self.consumer!r} is entered already: make another one to enter it twice")
        attached = await self._changes.attach(self.queue, self.consumer, self._attaching)
        self._attached = attached
        self._watch = self._changes.watch(self.consumer, attached)
        self._tail = Tail(self._watch, attached.position)
        self._acknowledged = attached.position
        return self

    async def __aexit__(self, *_: object) -> None:
        self._attached = self._watch = self._tail = None

    @property
    def epoch(self) -> int:
        """Number of this holder."""
        return self._holder().epoch

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue. The consumer ends when that is deleted."""
        return self._holder().queue_id

    @property
    def position(self) -> int:
        """The lowest position that may be handed out next."""
        return self._reader().position

    @coroutine_function
    def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
        timeout: float | None = None,
    ) -> Coroutine[Any, Any, Batch | None]:
        """Return the next records together, as soon as a limit is reached or *max_wait* after the first one.

        The arguments are those of `Tail.batch`.

        Returns:
            At least one record, or after *timeout* an empty batch; None once no more can come: the queue is sealed or
            drained and all is read, the queue was deleted, or the log closes.

        Raises:
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            ValueError: A limit is below 1, or a time is negative.
            LogFailedError: The log failed, and everything is read.
        """
        # The coroutine of the tail itself: another one around it would cost a thousand small records 2 %.
        return self._reader().batch(max_records=max_records, max_bytes=max_bytes, max_wait=max_wait, timeout=timeout)

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> AsyncIterator[Batch]:
        """Iterate over batches until no more can come; the arguments and errors are those of `batch`."""
        return Batches(self.batch, BatchLimits(max_records, max_bytes, max_wait))  # checked by each `batch`

    def available(self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES) -> AsyncIterator[Batch]:
        """Iterate over batches of the records that are there when the first is asked for; see `Tail.available`."""
        return self._reader().available(max_records=max_records, max_bytes=max_bytes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        tail, watch = self._reader(), self._watch
        assert watch is not None
        watch.queue()  # raises for a holder that was fenced since the last record
        return await tail.__anext__()

    async def acknowledge(self, done: Batch | Record | int) -> int:
        """Acknowledge everything up to and including *done*: it is not handed out again, and may be removed.

        Never goes back: acknowledging something before the consumer's position changes and writes nothing. Many
        acknowledgements at once are stored together with appends. Durable as the persist policy says.

        Args:
            done: A batch, a record, or a position. An empty batch acknowledges nothing.

        Returns:
            The consumer's position: the first one that it has not acknowledged.

        Raises:
            PositionAheadError: The position has not been assigned yet.
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            QueueNotFoundError: The queue was deleted.
            LogFullError: The disk is full, and the acknowledgement frees nothing.
        """
        holder = self._holder()
        position = last_position(done, holder.queue_id)
        if isinstance(done, Batch) and position < 0:
            return self._acknowledged
        self._acknowledged = await self._changes.acknowledge(
            self.queue, self.consumer, position, holder.queue_id, holder.epoch
        )
        return self._acknowledged

    async def seek(self, position: Start) -> int:
        """Continue at *position*, forward or back, durably; return it: the first one that is not acknowledged.

        Cancelling stops the waiting, not the move: this holder continues where it was, but the stored position may be
        the new one. Seek again, to there or elsewhere.

        Args:
            position: From the first retained position up to the next one, or a time (see `position_at`).

        Raises:
            PositionAheadError: The position is past the next one.
            PositionTruncatedError: The position was truncated.
            ValueError: It is a time in the future.
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            QueueNotFoundError: The queue was deleted.
            LogFullError: The disk is full, and the move frees nothing.
        """
        holder = self._holder()
        found = await self._changes.seek(self.queue, self.consumer, position, holder.queue_id, holder.epoch)
        assert self._watch is not None
        self._tail = Tail(self._watch, found)
        self._acknowledged = found
        return found

    def _holder(self) -> Attached:
        if self._attached is None:
            raise RuntimeError(_NOT_ATTACHED)
        return self._attached

    def _reader(self) -> Tail:
        if self._tail is None:
            raise RuntimeError(_NOT_ATTACHED)
        return self._tail
