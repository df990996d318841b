"""The client's methods for consumers, queue options and seals."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote
from uuid import UUID

import msgspec

from mrecordlog_async.batches import check_position, check_start, owner_uuid
from mrecordlog_async.client.consumer import Consumer, ConsumerCalls
from mrecordlog_async.client.reads import Reads, page_of
from mrecordlog_async.client.retry import Repeat
from mrecordlog_async.client.tail import Page
from mrecordlog_async.client.transport import path_of
from mrecordlog_async.errors import (
    ConsumerFencedError,
    ConsumerNotFoundError,
    PositionAheadError,
    PositionTruncatedError,
    QueueNotFoundError,
)
from mrecordlog_async.model import ConsumerSummary, Start
from mrecordlog_async.names import check_consumer_name
from mrecordlog_async.options import QueueOptions, check_type
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.consumer_schemas import (
    AcknowledgeRequest,
    AttachRequest,
    AttachResponse,
    ConsumerCreateRequest,
    ConsumerCreateResponse,
    ConsumerPositionResponse,
    ConsumerResponse,
    ConsumersResponse,
    SealRequest,
    SealResponse,
    SeekRequest,
)
from mrecordlog_async.protocol.responses import ServiceError, decoded

JSON = "application/json"

QUEUES_AT_ONCE = 1_000
"""The consumers of this many queues are asked for in one request."""


class Consumers(Reads):
    """The methods of `RecordLogClient` for consumers and options of queues."""

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = True,
        start: Start | None = None,
        owner: UUID | str | None = None,
        take_over: bool = False,
    ) -> Consumer:
        """Return the holder of *consumer*: `async with client.consumer("orders", "billing") as c`. See `Consumer`.

        Args:
            queue: The queue.
            consumer: The name.
            create: Create it if it does not exist.
            start: Where it begins if it is created: the first position that it has not acknowledged, moved into what
                the queue retains, or a time (see `position_at`); None for the first retained record.
            owner: A UUID that alone may attach to the consumer from now on; None for a consumer without an owner.
            take_over: Attach even if the consumer has another owner.

        Returns:
            The consumer. Entering it raises QueueNotFoundError, ConsumerNotFoundError or ConsumerOwnedError.

        Raises:
            ValueError: *owner* is not a UUID.
        """
        request = AttachRequest(create, None, None if owner is None else str(owner_uuid(owner)), take_over)
        base = _path_of(queue, consumer)
        return Consumer(
            queue,
            consumer,
            ConsumerCalls(
                partial(self._attach, base, queue, start, request),
                partial(self._read, base, queue),
                partial(self._acknowledge, base),
                partial(self._seek, base, queue),
            ),
        )

    async def create_consumer(
        self, queue: str, consumer: str, *, start: Start | None = None, exist_ok: bool = False
    ) -> bool:
        """Create *consumer* on *queue*, or on all queues that match a pattern with `*`. Durable under every policy.

        Args:
            queue: The queue, or a pattern.
            consumer: Its name.
            start: The first position that it has not acknowledged, moved into what the queue retains, or a time, which
                a pattern does not have; None for the first retained record.
            exist_ok: Return False instead of raising if the consumer, or the rule for the pattern, already exists. The
                request is then sent again after a lost response.

        Returns:
            True if the consumer, or the rule, was created.

        Raises:
            ConsumerExistsError: The consumer exists, and *exist_ok* is False.
            ConsumerNameError: The name is invalid.
            LogFullError: The limit on consumers is reached, or there is no space.
        """
        reply = await self._transport.send(
            "PUT",
            _path_of(queue, consumer),
            query={"exist_ok": "1"} if exist_ok else {},
            body=msgspec.json.encode(ConsumerCreateRequest(await self._start_of(queue, start))),
            content_type=JSON,
            repeat=Repeat.FREELY if exist_ok else Repeat.NEVER,
        )
        return decoded(reply, ConsumerCreateResponse).created

    async def delete_consumer(self, queue: str, consumer: str) -> None:
        """Delete *consumer* of *queue*, or with a pattern the rule, and the consumer of every queue that matches.

        If there is no rule for a pattern, but a queue of exactly that name has the consumer, it is deleted there.

        Args:
            queue: The queue, or the pattern that was passed to `create_consumer`.
            consumer: The name.

        Raises:
            ConsumerNotFoundError: The queue has no such consumer, or there is no rule for the pattern.
        """
        await self._transport.send("DELETE", _path_of(queue, consumer), repeat=Repeat.NEVER)

    async def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand.

        Args:
            queue: Its name.

        Returns:
            The summaries by name, in order.
        """
        reply = await self._transport.send("GET", path_of(queue, "consumers"))
        return {one.consumer: _summary(one) for one in decoded(reply, ConsumersResponse).consumers}

    async def all_consumers(self) -> list[ConsumerSummary]:
        """Return where the consumers of all queues stand, by queue and name."""
        found: list[ConsumerSummary] = []
        query = {"limit": str(QUEUES_AT_ONCE)}
        while True:
            page = decoded(await self._transport.send("GET", "/v1/consumers", query=query), ConsumersResponse)
            found += map(_summary, page.consumers)
            if page.next is None:
                return found
            query["after"] = page.next

    async def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        reply = await self._transport.send("GET", "/v1/consumers", query={"limit": "1"})
        return [(rule.pattern, rule.consumer) for rule in decoded(reply, ConsumersResponse).rules]

    async def seek_consumer(self, queue: str, consumer: str, position: Start) -> int:
        """Have *consumer* continue at *position*, as an operator: its present holder is fenced off.

        Args:
            queue: The queue.
            consumer: The name.
            position: From the first retained position up to the next one, or a time.

        Returns:
            The position.

        Raises:
            PositionAheadError: The position is past the next one.
            PositionTruncatedError: The position was truncated.
            ConsumerNotFoundError: The queue has no such consumer.
        """
        return await self._seek(_path_of(queue, consumer), queue, None, position)

    async def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*. Whether it is sealed is in its summary.

        Args:
            queue: Its name.
        """
        reply = await self._transport.send("GET", path_of(queue, "options"))
        return decoded(reply, QueueOptions)

    async def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace all options of *queue*; a sealed queue stays sealed. Durable under every policy.

        Args:
            queue: Its name.
            options: The new options.

        Raises:
            QueueOptionsError: The options contradict what the queue holds.
        """
        await self._transport.send("PUT", path_of(queue, "options"), body=encoded_options(options), content_type=JSON)

    async def seal_queue(self, queue: str, *, queue_id: int | None = None) -> int:
        """Seal *queue* for good: later appends raise QueueSealedError, and readers end after its last record.

        Args:
            queue: Its name.
            queue_id: Seal it only if it is still this incarnation. Without it, a call that is sent again after a lost
                response may seal a queue that was created in between.

        Returns:
            Its next position, which stays as it is.

        Raises:
            QueueSealedError: The queue is already sealed.
        """
        body = msgspec.json.encode(SealRequest(queue_id))
        reply = await self._transport.send(
            "POST", path_of(queue, "seal"), body=body, content_type=JSON, repeat=Repeat.RECOGNIZED
        )
        return decoded(reply, SealResponse).next_position

    async def _start_of(self, queue: str, start: Start | None) -> int | None:
        return None if start is None else check_start(await self._position_of(queue, start))

    async def _attach(self, base: str, queue: str, start: Start | None, request: AttachRequest) -> AttachResponse:
        request = msgspec.structs.replace(request, start=await self._start_of(queue, start))
        # Sent again after a lost response: the holder of the first attempt, if there was one, is fenced off.
        reply = await self._post(f"{base}/attach", request)
        return decoded(reply, AttachResponse)

    async def _read(
        self,
        base: str,
        queue: str,
        holder: AttachResponse,
        position: int,
        records: int | None,
        size: int,
        wait_seconds: int,
    ) -> Page:
        query = {"epoch": str(holder.epoch), "start": str(position), "max_bytes": str(size)}
        if records is not None:
            query["max_records"] = str(records)
        if wait_seconds:
            query["wait"] = str(wait_seconds)
        try:
            reply = await self._transport.send(
                "GET", f"{base}/records", query=query, accept=wire.CONTENT_TYPE, wait_seconds=wait_seconds
            )
        except (ConsumerFencedError, ConsumerNotFoundError):
            # The request names the queue, not the incarnation: of a recreated queue nobody has been the holder yet.
            if (await self.queue_summary(queue)).id != holder.id:
                raise QueueNotFoundError(queue) from None
            raise
        except ServiceError as error:
            _raise_of_position(queue, position, error)
        return page_of(reply)

    async def _acknowledge(self, base: str, holder: AttachResponse, position: int) -> int:
        check_position(position)
        try:
            reply = await self._post(f"{base}/acknowledge", AcknowledgeRequest(position, holder.epoch, holder.id))
        except ServiceError as error:
            _raise_of_position(holder.queue, position, error)
        return decoded(reply, ConsumerPositionResponse).position

    async def _seek(self, base: str, queue: str, holder: AttachResponse | None, start: Start) -> int:
        position = check_start(await self._position_of(queue, start))
        request = SeekRequest(position, holder.epoch, holder.id) if holder is not None else SeekRequest(position)
        try:
            reply = await self._post(f"{base}/seek", request)
        except ServiceError as error:
            _raise_of_position(queue, position, error)
        return decoded(reply, ConsumerPositionResponse).position

    async def _post(self, path: str, request: msgspec.Struct) -> Any:
        return await self._transport.send("POST", path, body=msgspec.json.encode(request), content_type=JSON)


def encoded_options(options: QueueOptions) -> bytes:
    """Return *options* as a JSON body; raise TypeError for anything else."""
    check_type("options", options, QueueOptions)
    return msgspec.json.encode(options)


def _summary(one: ConsumerResponse) -> ConsumerSummary:
    return ConsumerSummary(**msgspec.structs.asdict(one))


def _path_of(queue: str, consumer: str) -> str:
    check_consumer_name(consumer)  # as `path_of` does
    name = quote(consumer, safe="")
    return path_of(queue, "consumers", name.replace(".", "%2E") if name in (".", "..") else name)


def _raise_of_position(queue: str, position: int, error: ServiceError) -> NoReturn:
    """Raise what the log raises for a position that is not there."""
    next_position, first = error.problem.get("next_position"), error.problem.get("first_position")
    if error.code == "ahead" and isinstance(next_position, int):
        raise PositionAheadError(queue, position, next_position) from None
    if error.code == "truncated" and isinstance(first, int):
        raise PositionTruncatedError(queue, position, first) from None
    raise error
