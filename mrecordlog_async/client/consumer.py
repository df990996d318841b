"""`ClientConsumer`: the holder of a durable position on one queue of a service. Entering it attaches it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

import msgspec

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS, Batches, BatchLimits, last_position
from mrecordlog_async.client.reads import position_of
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.client.tail import ClientTail
from mrecordlog_async.errors import ConsumerFencedError, ConsumerNotFoundError, QueueNotFoundError
from mrecordlog_async.model import Batch, Record, Start, check_start
from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.calls import Page, PageRequest
from mrecordlog_async.protocol.consumer_schemas import AttachRequest, AttachResponse


class ClientConsumer(AsyncIterator[Record]):
    """A durable position on one queue of a service: everything before it is acknowledged. One holder at a time.

        async with client.consumer("orders", "billing") as c:
            async for batch in c.batches():
                deliver(batch)
                await c.acknowledge(batch)

    Delivery is at least once: what was not acknowledged is handed out again after the consumer is entered the next
    time. Entering takes a new epoch, and every call of an older holder raises ConsumerFencedError from then on; `async
    for record` first hands out what it has received. A consumer survives restarts of the service. Cancelling a call,
    even by `asyncio.wait_for`, loses nothing. (On Python 3.11, do not put one `asyncio.wait_for` into another: it may
    drop a batch that arrives as it is cancelled.)

    Attributes:
        queue: Name of the queue.
        consumer: Its name.
    """

    def __init__(
        self, sender: Sender, queue: str, consumer: str, *, start: Start | None, request: AttachRequest
    ) -> None:
        """Use `RecordLogClient.consumer`. start: where it begins if it is created."""
        calls.consumer_path(queue, consumer)  # raises for what cannot be a name
        self.queue = queue
        self.consumer = consumer
        self._sender = sender
        self._check = sender.transport.usage_check()
        self._start = start
        self._request = request
        self._attached: AttachResponse | None = None
        self._tail: ClientTail | None = None
        self._acknowledged = 0  # where the consumer is, as far as this holder knows

    async def __aenter__(self) -> Self:
        if self._attached is not None:
            raise RuntimeError(f"the consumer {self.consumer!r} is entered already: make another one to enter it twice")
        self._check()
        start = None if self._start is None else check_start(await position_of(self._sender, self.queue, self._start))
        request = msgspec.structs.replace(self._request, start=start)
        self._attached = attached = await self._sender.send(calls.attach(self.queue, self.consumer, request))
        self._follow(attached, attached.position)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._attached = self._tail = None

    @property
    def epoch(self) -> int:
        """Number of this holder."""
        return self._holder().epoch

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue. The consumer ends when that is deleted."""
        return self._holder().id

    @property
    def position(self) -> int:
        """The lowest position that may be handed out next."""
        position = self.reader().position
        assert position is not None, "a consumer begins at a position"
        return position

    async def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
        timeout: float | None = None,
    ) -> Batch | None:
        """Return the next records together, as soon as a limit is reached or *max_wait* after the first one.

        The arguments are those of `ClientTail.batch`.

        Returns:
            At least one record, or after *timeout* an empty batch; None once no more can come: the queue is sealed and
            read, or was deleted.

        Raises:
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            PositionAheadError: The log was restored, and is at older positions than this holder: enter again.
            ValueError: A limit is below 1, or a time is negative.
        """
        return await self.reader().batch(
            max_records=max_records, max_bytes=max_bytes, max_wait=max_wait, timeout=timeout
        )

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> AsyncIterator[Batch]:
        """Iterate over batches until no more can come; the arguments and errors are those of `batch`."""
        return Batches(self.batch, BatchLimits.checked(max_records, max_bytes, max_wait))

    def available(self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES) -> AsyncIterator[Batch]:
        """Iterate over batches of the records that are there when the first is asked for; see `Tail.available`."""
        return self.reader().available(max_records=max_records, max_bytes=max_bytes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        return await anext(self.reader())

    async def acknowledge(self, done: Batch | Record | int) -> int:
        """Acknowledge everything up to and including *done*: it is not handed out again, and may be removed.

        Never goes back: acknowledging something before the consumer's position changes nothing.

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
        self._check()
        position = last_position(done, holder.id)
        if isinstance(done, Batch) and position < 0:
            return self._acknowledged
        self._acknowledged = await self._sender.send(calls.acknowledge(holder, position))
        return self._acknowledged

    async def seek(self, position: Start) -> int:
        """Continue at *position*, forward or back, durably; return it: the first one that is not acknowledged.

        Cancelling, or an error of the connection, stops the waiting, not the move: this holder goes on where it
        was, but the stored position may be the new one. Seek again, to there or elsewhere.

        Args:
            position: From the first retained position up to the next one, or a time (see `position_at`).

        Raises:
            PositionAheadError: The position is past the next one.
            PositionTruncatedError: The position was truncated.
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            QueueNotFoundError: The queue was deleted.
        """
        holder = self._holder()
        self._check()
        wanted = check_start(await position_of(self._sender, self.queue, position))
        found = await self._sender.send(calls.seek(self.queue, self.consumer, wanted, holder))
        self._follow(holder, found)
        return found

    def _follow(self, holder: AttachResponse, position: int) -> None:
        self._acknowledged = position

        async def fetch(request: PageRequest) -> Page:
            return await self._read(holder, request)

        self._tail = ClientTail(self._sender, self.queue, position, None, fetch, queue_id=holder.id)

    async def _read(self, holder: AttachResponse, request: PageRequest) -> Page:
        try:
            return await self._sender.send(calls.read_as_holder(holder, request))
        except (ConsumerFencedError, ConsumerNotFoundError):
            # The request names the queue, not the incarnation: of a recreated queue nobody has been the holder yet.
            if (await self._sender.send(calls.queue_summary(self.queue).until(request.end))).id != holder.id:
                raise QueueNotFoundError(self.queue) from None
            raise

    def _holder(self) -> AttachResponse:
        if self._attached is None:
            raise RuntimeError("the consumer is not attached: use it inside `async with client.consumer(…) as c`")
        return self._attached

    def reader(self) -> ClientTail:
        """Return what reads the records now: a consumer that is entered or moved reads with another tail."""
        self._holder()
        assert self._tail is not None
        return self._tail
