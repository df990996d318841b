"""`RecordLogClient`: the HTTP service from asyncio code, with the method names of `MultiRecordLog`.

    from mrecordlog_async.client import RecordLogClient

    async with RecordLogClient("http://127.0.0.1:8080") as client:
        async with client.producer("orders", create=True) as producer:
            await producer.append_record(b"two coffees")  # stored once, even if the connection breaks
        async for position, payload in client.range("orders"):
            print(position, payload)

Reads and appends of many records travel as runs, so single records are touched only where they are handed out. What is
retried and when is in `retry`, connections and deadlines are in `transport`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType

import msgspec

from mrecordlog_async.client.append import send_append
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.read import read_page
from mrecordlog_async.client.responses import decoded
from mrecordlog_async.client.retry import OutcomeUnknownError, Repeat
from mrecordlog_async.client.transport import Payload, Transport, copied, path_of
from mrecordlog_async.errors import PositionInPastError, QueueNotFoundError
from mrecordlog_async.model import QueueSummary, Record, Run
from mrecordlog_async.protocol.schemas import (
    QueueResponse,
    QueuesResponse,
    StatsResponse,
    TruncateRequest,
    TruncateResponse,
)

WAIT_SECONDS = 30


class RecordLogClient:
    """Call one service from asyncio code. Use it as `async with`, or call `close` at the end.

    The client belongs to one event loop; many tasks may call its methods at once. Each call is retried while the
    service cannot be reached, is recovering or is full, for `retry_seconds` at most. Errors are those of the log.

    Args:
        url: `http://host:port` or `unix:/path/to/socket`.
        token: Bearer token, if the service requires one. Without TLS it is sent in the clear.
        retry_seconds: How long each call is retried.
        timeout_seconds: Longest silence within one request.
        response_seconds: Longest time for one request with its whole response.
        connections: Calls in progress at once; further calls wait. Each tail has one more connection of its own.

    Raises:
        QueueNotFoundError: The queue does not exist; raised by every method that names one, `queue_exists` aside.
        ServiceError: The service refused for a reason that the log itself does not have, such as a missing token.
        ServiceUnreachableError: No attempt succeeded within `retry_seconds`.
        OutcomeUnknownError: The response to a change was lost, and it is unknown whether the change was made.
        LogFailedError: The log of the service has failed; it can be read, and must be restarted to store records.
        LogClosedError: This client is closed.
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
    ) -> None:
        self.url = url
        self._transport = Transport(
            url,
            token=token,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            response_seconds=response_seconds,
            connections=connections,
        )

    async def __aenter__(self) -> RecordLogClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Later calls, and calls waiting for another attempt, raise LogClosedError."""
        await self._transport.close()

    # Changes.

    async def create_queue(self, queue: str, *, exist_ok: bool = False) -> bool:
        """Create *queue* and wait until that is durable.

        Args:
            queue: Its name.
            exist_ok: Accept a queue that exists already. The request is then sent again after a lost response, which
                otherwise raises OutcomeUnknownError.

        Returns:
            True if the queue was created, False if it existed.

        Raises:
            QueueExistsError: The queue exists, and *exist_ok* is false.
            QueueNameError: The name is not valid.
            LogFullError: The log holds as many queues as it may, or the disk is full.
        """
        query = {"exist_ok": "1"} if exist_ok else {}
        repeat = Repeat.FREELY if exist_ok else Repeat.NEVER
        reply = await self._transport.send("PUT", path_of(queue), query=query, repeat=repeat)
        return reply.status == 201

    async def delete_queue(self, queue: str, *, queue_id: int | None = None) -> None:
        """Delete *queue* and all its records.

        Args:
            queue: Its name.
            queue_id: Delete only this incarnation (`queue_summary(queue).id`). Such a call is sent again after a lost
                response. Without an id a lost response raises OutcomeUnknownError, because a second request could
                delete a queue that was created in between.

        Raises:
            QueueNotFoundError: The queue does not exist, or is another incarnation.
        """
        if queue_id is None:
            await self._transport.send("DELETE", path_of(queue), repeat=Repeat.NEVER)
            return
        try:
            await self._transport.send("DELETE", path_of(queue), query={"id": str(queue_id)}, repeat=Repeat.RECOGNIZED)
        except OutcomeUnknownError as error:
            # After a lost response: the queue of this id does not exist, which is what was asked for.
            if not isinstance(error.__cause__, QueueNotFoundError):
                raise

    async def append_record(self, queue: str, position: int | None, payload: Payload) -> int | None:
        """Append *payload* to *queue* and wait until it is stored.

        Without a position, a lost response raises OutcomeUnknownError, because sending the record again could store it
        twice. With a position it is sent again; if that is refused, the call raises OutcomeUnknownError too, because
        the first attempt may have been stored. `producer` assigns positions itself.

        Args:
            queue: Its name.
            position: Position of the record, at least the next position; None assigns the next one.
            payload: The record; it may be empty.

        Returns:
            The position, or None if exactly this record was stored at *position* before.

        Raises:
            PositionInPastError: Another record has this position.
            RecordTooLargeError: The record exceeds a limit of the service.
            LogFullError: The log has no room within `retry_seconds`; truncate queues.
        """
        response, _ = await send_append(self._transport, queue, position, [copied(payload)])
        return None if response.duplicate else response.position

    async def append_records(self, queue: str, position: int | None, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads* to *queue*, all or none, and wait until they are stored.

        Args:
            queue: Its name.
            position: Position of the first record; None assigns the next one. Lost responses are handled as in
                `append_record`.
            payloads: The records; they get consecutive positions.

        Returns:
            The last position, or None if the records were stored before or *payloads* is empty.

        Raises:
            PositionInPastError: Other records have these positions.
            RecordTooLargeError: A record, or all together, exceed a limit of the service.
            LogFullError: The log has no room within `retry_seconds`; truncate queues.
        """
        records = [copied(payload) for payload in payloads]
        response, _ = await send_append(self._transport, queue, position, records)
        return None if response.duplicate else response.position

    async def append_new(self, queue: str, position: int, payloads: Iterable[Payload]) -> int:
        """Append *payloads* at *position*, for a queue with this one writer.

        Unlike in `append_records`, records stored before the first attempt are an error even if they are the same.
        Only an attempt that follows a lost response counts as a repeat.

        Args:
            queue: Its name.
            position: Position of the first record, which no other writer may have taken.
            payloads: The records, at least one.

        Returns:
            The last position.

        Raises:
            PositionInPastError: Another writer stored records at these positions.
        """
        records = [copied(payload) for payload in payloads]
        response, repeated = await send_append(self._transport, queue, position, records)
        last = position + len(records) - 1
        if response.duplicate and not repeated:
            raise PositionInPastError(queue, position, last + 1)
        return last

    async def truncate(self, queue: str, position: int, *, queue_id: int | None = None) -> int:
        """Drop the records of *queue* up to and including *position*, and wait until that is durable.

        Args:
            queue: Its name.
            position: The last position to drop; it must have been assigned.
            queue_id: Truncate only this incarnation of the queue.

        Returns:
            The number of records dropped.

        Raises:
            QueueNotFoundError: The queue does not exist, or is another incarnation.
            ServiceError: The position has not been assigned yet (code `ahead`).
        """
        body = msgspec.json.encode(TruncateRequest(position, queue_id))
        reply = await self._transport.send(
            "POST", path_of(queue, "truncate"), body=body, content_type="application/json"
        )
        return decoded(reply, TruncateResponse).dropped

    def producer(self, queue: str, *, create: bool = False) -> Producer:
        """Return a producer for *queue*: appends by one writer, each stored once even if it must be sent again.

        Args:
            queue: Its name.
            create: Create the queue on `async with` if it does not exist.
        """
        return Producer(self, queue, create=create)

    # Reads.

    async def range(self, queue: str, start: int | None = None, stop: int | None = None) -> AsyncIterator[Record]:
        """Yield the records of *queue* from *start* to *stop* - 1.

        Args:
            queue: Its name.
            start: First position; None starts at the first retained record.
            stop: Position after the last one wanted; None ends at the last record that exists when the call starts.

        Raises:
            QueueNotFoundError: The queue does not exist, or was deleted and recreated during the read.
        """
        async for run in self.runs(queue, start, stop):
            for record in run.records():
                yield record

    def iter_from(self, queue: str, position: int) -> AsyncIterator[Record]:
        """Yield the records of *queue* from *position* on."""
        return self.range(queue, position)

    async def runs(self, queue: str, start: int | None = None, stop: int | None = None) -> AsyncIterator[Run]:
        """Yield what `range` does as whole runs, which is faster for many small records."""
        summary = await self.queue_summary(queue)
        position = summary.first_position if start is None else start
        end = summary.next_position if stop is None else min(stop, summary.next_position)
        while position < end:
            runs, position, queue_id = await read_page(self._transport, queue, position, end)
            if queue_id != summary.id:
                raise QueueNotFoundError(queue)  # deleted and created again while we read
            if not runs:
                return
            for run in runs:
                yield run

    async def tail(self, queue: str, start: int | None = None) -> AsyncGenerator[Record, None]:
        """Yield the records of *queue* from *start* on and wait for more, until the queue is deleted.

        The tail survives restarts of the service. Records that are truncated before it reaches them are skipped.

        Args:
            queue: Its name.
            start: First position; None starts at the first retained record.
        """
        summary = await self.queue_summary(queue)
        position = summary.first_position if start is None else start
        while True:
            try:
                runs, position, queue_id = await read_page(
                    self._transport, queue, position, None, wait_seconds=WAIT_SECONDS
                )
            except QueueNotFoundError:
                return
            if queue_id != summary.id:
                return
            for run in runs:
                for record in run.records():
                    yield record

    async def queue_exists(self, queue: str) -> bool:
        """Return whether *queue* exists."""
        try:
            await self.queue_summary(queue)
        except QueueNotFoundError:
            return False
        return True

    async def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return list(await self.summary())

    async def summary(self) -> dict[str, QueueSummary]:
        """Return positions and sizes of every queue, by name."""
        reply = await self._transport.send("GET", "/v1/queues")
        return {one.queue: _summary(one) for one in decoded(reply, QueuesResponse).queues}

    async def queue_summary(self, queue: str) -> QueueSummary:
        """Return positions and sizes of one queue."""
        reply = await self._transport.send("GET", path_of(queue))
        return _summary(decoded(reply, QueueResponse))

    async def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated."""
        return (await self.queue_summary(queue)).first_position

    async def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets."""
        return (await self.queue_summary(queue)).next_position

    async def last_position(self, queue: str) -> int | None:
        """Return the last position assigned in *queue*, None if there never was a record."""
        following = await self.next_position(queue)
        return following - 1 if following else None

    async def last_record(self, queue: str) -> Record | None:
        """Return the newest retained record of *queue*, None if it holds none."""
        summary = await self.queue_summary(queue)
        if not summary.records:
            return None
        async for record in self.range(queue, summary.next_position - 1):
            return record
        return None

    async def stats(self) -> StatsResponse:
        """Return what the service has counted and what it holds."""
        return decoded(await self._transport.send("GET", "/v1/stats"), StatsResponse)

    async def wait_ready(self) -> None:
        """Wait until the service stores records.

        Raises:
            ServiceUnreachableError: It is not ready after `retry_seconds`.
        """
        await self._transport.send("GET", "/readyz")


def _summary(response: QueueResponse) -> QueueSummary:
    return QueueSummary(
        response.queue,
        response.id,
        response.first_position,
        response.next_position,
        response.records,
        response.bytes,
        response.first_segment,
    )
