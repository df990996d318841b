"""`RecordLogClient`: the HTTP service from asyncio code, with the method names of `MultiRecordLog`.

    from mrecordlog_async.client import RecordLogClient

    async with RecordLogClient("http://127.0.0.1:8080") as client:
        async with client.producer("orders", create=True) as producer:
            await producer.append_record(b"two coffees")  # stored once, even if the connection breaks
        async for position, payload in client.range("orders"):
            print(position, payload)

Reads and appends of many records travel as runs, so single records are touched only where they are handed out. What is
sent is in `protocol.calls`, what is retried and when in `protocol.attempts`; connections and deadlines are in
`transport`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, overload
from uuid import UUID

from mrecordlog_async.batches import check_bounds, owner_uuid
from mrecordlog_async.client import reads
from mrecordlog_async.client.consumer import ClientConsumer
from mrecordlog_async.client.options import ClientOptions
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.client.tail import ClientTail
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.errors import QueueNameError, QueueNotFoundError
from mrecordlog_async.model import (
    ConsumerSummary,
    QueueSummary,
    Record,
    Run,
    Start,
    Times,
    check_idle,
    check_position,
    check_start,
    copy_payload,
    copy_payloads,
    json_payload,
)
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol import bulk_calls, calls
from mrecordlog_async.protocol.attempts import ServiceUnreachableError
from mrecordlog_async.protocol.calls import Order, Page, PageRequest
from mrecordlog_async.protocol.consumer_schemas import AttachRequest
from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.protocol.schemas import StatsResponse
from mrecordlog_async.record_log import Payload
from mrecordlog_async.servers.names import Endpoint, shown_url
from mrecordlog_async.support.coroutine_mark import coroutine_function


class RecordLogClient:
    """Call one service from asyncio code. Use it as `async with`, or call `close` at the end.

    The client belongs to one event loop; many tasks may call its methods at once. Each call is retried while the
    service cannot be reached, is recovering or is full, for `retry_seconds` at most. It raises the same errors as the
    log. A change that is cancelled may be made or not: repeat an append with its position.

    Args:
        url: `http://host:port`, `https://host:port` or `unix:/path/to/socket`; with the path below which an application
            serves the log, if there is one: `http://host:port/wal`.
        token: Bearer token, if the service requires one. Without TLS it is sent in the clear.
        retry_seconds: How long each call is retried.
        timeout_seconds: Longest silence within one request.
        response_seconds: Longest time for one request with its whole response.
        connections: Calls in progress at once; further calls wait. Each tail uses one more connection.
        log_id: The log that is meant (`id` of `log_info`): every call is refused with ServiceError, code `other_log`,
            if another log responds at the address. None for whichever responds.

    Raises:
        ValueError: *url* is not the URL of a service, *token* holds a line break, there is a token and the URL has a
            user name, or *connections* is below 1; raised at once.
        QueueNotFoundError: The queue does not exist; raised by every method that names one, except `queue_exists` and
            those that create it.
        ServiceError: The service refused for a reason that the log itself does not have, such as a missing token; see
            its `code`.
        ServiceUnreachableError: No attempt succeeded within `retry_seconds`.
        OutcomeUnknownError: The response to a change was lost, and it is unknown whether the change was made.
        LogFailedError: The log of the service has failed, and was not started again in time; it can be read.
        LogClosedError: This client is closed, or the call was made on another event loop than its first one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_seconds: float = 30.0,
        timeout_seconds: float = 60.0,
        response_seconds: float = 300.0,
        connections: int = 128,
        log_id: str | None = None,
    ) -> None:
        options = ClientOptions(
            Endpoint(url), token, retry_seconds, timeout_seconds, response_seconds, connections, log_id
        )
        self.sender = Sender(Transport(options), retry_seconds)

    @classmethod
    def over(cls, sender: Sender) -> RecordLogClient:
        """Return a client that sends with *sender*."""
        client = cls.__new__(cls)
        client.sender = sender
        return client

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self.sender.transport.options.place.url

    def __repr__(self) -> str:
        return f"<RecordLogClient {shown_url(self.url)!r}>"

    async def __aenter__(self) -> RecordLogClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Later calls, and calls that wait for another attempt, raise LogClosedError."""
        await self.sender.transport.close()

    # The service.

    async def log_info(self) -> LogResponse:
        """Return which log the service has: its id and name, its openings, and how far it has come."""
        return await self.sender.send(calls.log_info())

    async def stats(self) -> StatsResponse:
        """Return the statistics of the service and its log.

        Returns:
            Resources in use with their limits, counters since the log was opened, and durations in seconds.
        """
        return await self.sender.send(calls.stats())

    async def wait_ready(self) -> None:
        """Wait until the service stores records.

        Raises:
            ServiceUnreachableError: It is not ready after `retry_seconds`.
        """
        try:
            await self.sender.send(calls.ready())
        except ServiceUnreachableError as error:
            # What a service that is not ready responds looks like a proxy's error; but this request changes nothing.
            raise ServiceUnreachableError(error.address, error.seconds, error.reason) from error.__cause__

    # Queues.

    async def create_queue(self, queue: str, *, exist_ok: bool = False, options: QueueOptions | None = None) -> bool:
        """Create *queue* and wait until that is durable.

        Args:
            queue: Its name.
            exist_ok: Accept a queue that exists already. The request is then sent again after a lost response, which
                otherwise raises OutcomeUnknownError.
            options: Its options, if it is created.

        Returns:
            True if the queue was created, False if it existed.

        Raises:
            QueueExistsError: The queue exists, and *exist_ok* is false.
            QueueNameError: The name is not valid.
            LogFullError: The log holds as many queues as it may, or the disk is full.
        """
        return await self.sender.send(calls.create_queue(queue, exist_ok=exist_ok, options=options))

    async def create_queues(
        self, names: Iterable[str], *, exist_ok: bool = False, options: QueueOptions | None = None
    ) -> int:
        """Create queues in one step, all or none, and wait until that is durable.

        Args:
            names: The names, as many as the service accepts in one request. One that is given twice counts once.
            exist_ok: Leave queues that already exist as they are. The request is then sent again after a lost response,
                and the result may be lower than what was created; otherwise OutcomeUnknownError is raised.
            options: The options of those that are created.

        Returns:
            The number of queues that were created.

        Raises:
            QueueExistsError: A queue exists, and *exist_ok* is false. No queue was created.
            QueueNameError: A name is not valid.
            LogFullError: The log would hold more queues than it may, or the disk is full. No queue was created.
        """
        return await self.sender.send(bulk_calls.create_queues(names, exist_ok=exist_ok, options=options))

    async def delete_queue(self, queue: str, *, queue_id: int | None = None, past_consumers: bool = False) -> None:
        """Delete *queue* and all its records.

        Args:
            queue: Its name.
            queue_id: Delete only this incarnation (`queue_summary(queue).id`). Such a call is sent again after a lost
                response. Without an id a lost response raises OutcomeUnknownError, because a second request could
                delete a queue that was created in between.
            past_consumers: Delete it even if a consumer has not acknowledged all records.

        Raises:
            QueueNotFoundError: The queue does not exist, or is another incarnation.
            ConsumerBehindError: A consumer has not acknowledged all records, and *past_consumers* is false.
        """
        await self.sender.send(calls.delete_queue(queue, queue_id=queue_id, past_consumers=past_consumers))

    async def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*. Whether it is sealed is in its summary."""
        return await self.sender.send(calls.queue_options(queue))

    async def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace all options of *queue*, as `MultiRecordLog.configure_queue` does."""
        await self.sender.send(calls.configure_queue(queue, options))

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
        return await self.sender.send(calls.seal_queue(queue, queue_id=queue_id))

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Drop the records of *queue* up to and including *position*; durable as the policy of the service says.

        Args:
            queue: Its name.
            position: The last position to drop; it must have been assigned.
            queue_id: Truncate only this incarnation of the queue (`queue_summary(queue).id`, or that of a batch).
                Without it, a call that is sent again after a lost response may truncate a queue that was created in
                between.
            past_consumers: Truncate even what a consumer has not acknowledged.

        Returns:
            The number of records dropped.

        Raises:
            QueueNotFoundError: The queue does not exist, or is another incarnation.
            ConsumerBehindError: A consumer has not acknowledged the records, and *past_consumers* is false.
            ServiceError: The position has not been assigned yet (code `ahead`).
        """
        call = calls.truncate(queue, position, queue_id=queue_id, past_consumers=past_consumers)
        return await self.sender.send(call)

    async def queue_exists(self, queue: str) -> bool:
        """Return whether *queue* exists."""
        try:
            await self.queue_summary(queue)
        except (QueueNameError, QueueNotFoundError):
            return False
        return True

    async def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return list(await self.summary())

    async def summary(self, *, order: Order | None = None, limit: int | None = None) -> dict[str, QueueSummary]:
        """Return positions and sizes of every queue, or of the first ones in an order.

        Args:
            order: "bytes" or "records" for the queues that hold most, "segment" for those that keep the oldest segment,
                "age" for those with the oldest records; needs a limit. None sorts by name.
            limit: At most this many queues.

        Returns:
            The summaries by name, in this order.
        """
        return await self.sender.send(calls.summary(order=order, limit=limit))

    async def queue_summary(self, queue: str) -> QueueSummary:
        """Return positions and sizes of *queue*."""
        return await self.sender.send(calls.queue_summary(queue))

    async def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated."""
        return (await self.queue_summary(queue)).first_position

    async def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets."""
        return (await self.queue_summary(queue)).next_position

    async def last_position(self, queue: str) -> int | None:
        """Return the last position assigned in *queue*; None if it never had a record."""
        next_position = await self.next_position(queue)
        return next_position - 1 if next_position else None

    # Appends. As those of the log, they copy what is not `bytes` when they are called: a caller may reuse its buffer.

    @overload
    def append(self, queue: str, payload: Payload, *, create: bool = False) -> Coroutine[Any, Any, int]: ...

    @overload
    def append(
        self, queue: str, payload: Payload, position: int | None, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]: ...

    @coroutine_function
    def append(
        self, queue: str, payload: Payload, position: int | None = None, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue* and wait until it is stored.

        Without a position, a lost response raises OutcomeUnknownError, because sending the record again could store it
        twice. With a position it is sent again; if that is refused, the call raises OutcomeUnknownError too, because
        the first attempt may have been stored. `producer` assigns positions itself.

        Args:
            queue: Its name.
            payload: The record; it may be empty.
            position: Position of the record, at least the next position; None assigns the next one.
            create: Create the queue if it does not exist.

        Returns:
            The position, or None if exactly this record was stored at *position* before. Never None without a position.

        Raises:
            QueueNotFoundError: The queue does not exist, and *create* is false.
            PositionInPastError: Another record has this position.
            RecordTooLargeError: The record exceeds a limit of the service.
            LogFullError: The log has no room within `retry_seconds`; truncate queues.
        """
        return self.append_record(queue, position, payload, create=create)

    @coroutine_function
    def append_json(self, queue: str, value: object, *, create: bool = False) -> Coroutine[Any, Any, int]:
        """Append *value* to *queue* as JSON, as `MultiRecordLog.append_json` does; return the record's position."""
        return self.append_record(queue, None, json_payload(value), create=create)

    @overload
    def append_record(
        self, queue: str, position: None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int]: ...

    @overload
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]: ...

    @coroutine_function
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue*: `append` with the position before the payload, as in Quickwit's crate.

        Arguments, result and errors are those of `append`.
        """
        record, checked = copy_payload(payload), None if position is None else check_position(position)
        return self._append(queue, checked, [record], create)

    @coroutine_function
    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload], *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payloads* to *queue*, all or none, and wait until they are stored.

        Args:
            queue: Its name.
            position: Position of the first record; None assigns the next one. Lost responses are handled as in
                `append`.
            payloads: The records; they get consecutive positions.
            create: Create the queue if it does not exist.

        Returns:
            The last position, or None if the records were stored before or *payloads* is empty.

        Raises:
            QueueNotFoundError: The queue does not exist, and *create* is false.
            PositionInPastError: Other records have these positions.
            RecordTooLargeError: A record, or all together, exceed a limit of the service.
            LogFullError: The log has no room within `retry_seconds`; truncate queues.
        """
        records = copy_payloads(payloads)
        return self._append(queue, None if position is None else check_position(position), records, create)

    async def _append(self, queue: str, position: int | None, records: list[bytes], create: bool) -> int | None:
        response = await self.sender.send(calls.append(queue, position, records, create=create))
        return None if response.duplicate else response.position

    async def append_new(self, queue: str, position: int, payloads: Iterable[Payload]) -> int:
        """Append *payloads* at *position*, for a queue with this one writer.

        Unlike in `append_records`, records that are already stored there are an error, even if they are the same: only
        an attempt that follows a lost response counts as a repeat. Otherwise another producer stored them, or a proxy
        sent the request twice; no response shows which.

        Args:
            queue: Its name.
            position: Position of the first record, which no other writer may have taken.
            payloads: The records, at least one.

        Returns:
            The last position.

        Raises:
            PositionInPastError: Another writer stored other records at these positions; these were not stored.
            OutcomeUnknownError: These records may have been stored.
        """
        return await self.sender.send(calls.append_new(queue, position, copy_payloads(payloads)))

    def producer(self, queue: str, *, create: bool = False) -> Producer:
        """Return a producer for *queue*: appends by one writer, each stored once even if it must be sent again.

        Args:
            queue: Its name.
            create: Create the queue on `async with` if it does not exist.

        Returns:
            The producer; use it as `async with`. A queue may have one producer at a time.
        """
        return Producer(self.sender, queue, create=create)

    # Reads.

    async def range(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records of *queue* from *start* to *stop* - 1.

        Args:
            queue: Its name.
            start: First position, or a time (see `position_at`); None starts at the first retained record.
            stop: Position after the last one wanted; None ends at the last record that exists when the call starts.
            limit: At most this many records, the first ones; None for all.

        Yields:
            Records in the order of their positions.

        Raises:
            QueueNotFoundError: The queue does not exist, or was deleted and recreated during the read.
            ValueError: *limit* is negative, or a time has no time zone.
        """
        async for run in self.runs(queue, start, stop, limit=limit):
            for record in run.records():
                yield record

    async def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Run]:
        """Yield the records that `range` yields as whole runs, which is faster for many small records.

        The arguments and errors are those of `range`.

        Yields:
            Runs of consecutive positions, in their order.
        """
        async for runs, _ in self.timed_runs(queue, start, stop, limit=limit):
            for run in runs:
                yield run

    def timed_runs(
        self,
        queue: str,
        start: Start | None = None,
        stop: int | None = None,
        *,
        limit: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[tuple[list[Run], Times]]:
        """Yield what `runs` yields, page by page, together with the times when the records were stored.

        The other arguments and errors are those of `range`.

        Args:
            follow: Wait for more, until the queue is deleted, or sealed and read; *stop* and *limit* are not used then.

        Yields:
            Runs, at least one, and their times.

        Raises:
            ServiceError: The log was restored to an older state than what *follow* has read (code `ahead`).
        """
        if not follow:
            return reads.timed_runs(self.sender, queue, start, stop, limit=limit)
        return reads.followed(self.tail(queue, max(start, 0) if isinstance(start, int) else start))

    def tail(self, queue: str, start: Start | None = None) -> ClientTail:
        """Follow *queue* from *start*: iterate over its records, or take batches, and wait for more.

        The tail survives restarts of the service, and calls that are cancelled. Records that are truncated before it
        reaches them are skipped. It ends when the queue is deleted, and after the last record of a sealed queue. If the
        log is restored to an older state than what the tail has read, it raises ServiceError with the code `ahead`. It
        looks every 30 s while no record comes: it misses records that have taken all those positions by then.

        Args:
            queue: Its name.
            start: First position, or a time (see `position_at`); None starts at the first retained record.

        Returns:
            An iterator over the records in the order of their positions. The first one raises QueueNotFoundError if the
            queue does not exist.
        """

        async def begin(end: float | None) -> QueueSummary:
            summary = await self.sender.send(calls.queue_summary(queue).until(end))
            if not isinstance(start, datetime) or tail.position is not None:
                return summary
            return replace(summary, first_position=await self.position_at(queue, start))

        async def fetch(request: PageRequest) -> Page:
            return await reads.read_page(self.sender, queue, request)

        first = None if start is None or isinstance(start, datetime) else check_start(start)
        tail = ClientTail(self.sender, queue, first, begin, fetch)
        return tail

    async def position_at(self, queue: str, time: datetime) -> int:
        """Return the position of the first retained record of *queue* that was stored at *time* or later.

        As `MultiRecordLog.position_at` does, but a time in the future raises ServiceError.
        """
        return await self.sender.send(calls.position_at(queue, time))

    async def time_of(self, queue: str, position: int) -> datetime | None:
        """Return when the record of *queue* at *position* was stored, in UTC, to 0.1 s; None if it is not retained."""
        check_bounds(position, None)
        async for runs, times in self.timed_runs(queue, position, position + 1):
            return times.time_at(position) if runs[0].first_position == position else None
        return None

    async def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*; return False if the queue is deleted, or sealed before.

        Truncated records count. Raises as `MultiRecordLog.wait_for` does.
        """
        return await reads.wait_for(self.sender, queue, position)

    # Consumers.

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = True,
        start: Start | None = None,
        owner: UUID | str | None = None,
        take_over: bool = False,
        if_idle_for: float | None = None,
    ) -> ClientConsumer:
        """Return the holder of *consumer*: `async with client.consumer("orders", "billing") as c`.

        Args:
            queue: The queue.
            consumer: The name.
            create: Create it if it does not exist.
            start: Where it begins if it is created: the first position that it has not acknowledged, moved into what
                the queue retains, or a time (see `position_at`); None for the first retained record.
            owner: A UUID that alone may attach to the consumer from now on; None for a consumer without an owner.
            take_over: Attach even if the consumer has another owner.
            if_idle_for: Attach only if the holder was not seen for this many seconds, or there is none: for workers
                that take over from one that died. None attaches whatever the holder does.

        Returns:
            The consumer. Entering it raises QueueNotFoundError, ConsumerNotFoundError, ConsumerOwnedError, or
            ConsumerHeldError if the holder was seen within *if_idle_for*.

        Raises:
            ValueError: *owner* is not a UUID, or *if_idle_for* is not a number of seconds.
        """
        owned = None if owner is None else str(owner_uuid(owner))
        idle = None if if_idle_for is None else check_idle(if_idle_for)  # JSON would send NaN as null: no condition
        request = AttachRequest(create, None, owned, take_over, idle)
        return ClientConsumer(self.sender, queue, consumer, start=start, request=request)

    async def create_consumer(
        self, queue: str, consumer: str, *, start: Start | None = None, exist_ok: bool = False
    ) -> bool:
        """Create *consumer* on *queue*, or on all queues that match a pattern with `*`, as the log does.

        With *exist_ok*, the request is sent again after a lost response. *start* may not be a time for a pattern. For
        the rest see `MultiRecordLog.create_consumer`.
        """
        position = None if start is None else check_start(await reads.position_of(self.sender, queue, start))
        return await self.sender.send(calls.create_consumer(queue, consumer, start=position, exist_ok=exist_ok))

    async def delete_consumer(self, queue: str, consumer: str) -> None:
        """Delete *consumer* of *queue*, or a rule and its consumers, as `MultiRecordLog.delete_consumer` does."""
        await self.sender.send(calls.delete_consumer(queue, consumer))

    async def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand, by name in order."""
        return await self.sender.send(calls.consumers(queue))

    async def all_consumers(self) -> list[ConsumerSummary]:
        """Return where the consumers of all queues stand, by queue and name."""
        found: list[ConsumerSummary] = []
        page = await self.sender.send(calls.all_consumers())
        while page.next is not None:
            found += map(calls.consumer_summary_of, page.consumers)
            page = await self.sender.send(calls.all_consumers(page.next))
        return [*found, *map(calls.consumer_summary_of, page.consumers)]

    async def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        page = await self.sender.send(calls.all_consumers(limit=1))
        return [(rule.pattern, rule.consumer) for rule in page.rules]

    async def wait_acknowledged(
        self, queue: str, position: int, consumer: str, *, timeout: float | None = None
    ) -> None:
        """Wait until *consumer* has acknowledged the record at *position*; see `MultiRecordLog.wait_acknowledged`.

        The arguments and errors are those of the log.
        """
        await reads.wait_acknowledged(self.sender, queue, position, consumer, timeout)

    async def seek_consumer(self, queue: str, consumer: str, position: Start) -> int:
        """Have *consumer* continue at *position*, as an operator: its present holder is fenced off.

        The arguments, the result and the errors are those of `ClientConsumer.seek`.
        """
        wanted = check_start(await reads.position_of(self.sender, queue, position))
        return await self.sender.send(calls.seek(queue, consumer, wanted, None))
