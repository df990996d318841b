"""`RecordLogClient`: the service from asyncio code, with the method names of `MultiRecordLog`.

    async with RecordLogClient("http://127.0.0.1:8080") as client:
        await client.create_queue("orders", exist_ok=True)
        async with client.producer("orders") as producer:
            await producer.append_record(b"...")              # stored once, whatever happens to the connection
        async for position, payload in client.range("orders"):
            ...

Reads and appends travel as runs, so no record is touched on the way but where it is handed out. Errors are those of
the log; what only a service can do wrong is `ServiceError`. Connections, deadlines and tries: `transport`, `retrying`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType

import msgspec

from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.responses import Reply, ServiceError, decoded
from mrecordlog_async.client.retry import OutcomeUnknownError, Repeat
from mrecordlog_async.client.transport import Payload, Transport, copied, path_of
from mrecordlog_async.errors import PositionInPastError, QueueNotFoundError
from mrecordlog_async.model import QueueSummary, Record, Run
from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.protocol.schemas import (
    AppendResponse,
    QueueResponse,
    QueuesResponse,
    StatsResponse,
    TruncateRequest,
    TruncateResponse,
)

PAGE_BYTES = 8 * 1024 * 1024
WAIT_SECONDS = 30
OCTET_STREAM = "application/octet-stream"


class RecordLogClient:
    """A client of one service. Belongs to one event loop; its methods may be called from many tasks at once.

    url: `http://host:port`, `unix:/path/to/socket`. token: where the service wants one; without TLS it is sent in the
    clear. retry_seconds: how long each call goes on trying when the service cannot be reached, is recovering or is
    full. timeout_seconds: the longest silence within a request. response_seconds: the longest time for one request and
    its whole answer. connections: calls that are under way at once; each tail has one more connection of its own.
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
        """Close all connections; later calls, and those that were about to try again, raise LogClosedError."""
        await self._transport.close()

    # Changes.

    async def create_queue(self, queue: str, *, exist_ok: bool = False) -> bool:
        """Create *queue*. True if it was made. Without *exist_ok* a lost answer raises OutcomeUnknownError."""
        query = {"exist_ok": "1"} if exist_ok else {}
        repeat = Repeat.FREELY if exist_ok else Repeat.NEVER
        reply = await self._transport.send("PUT", path_of(queue), query=query, repeat=repeat)
        return reply.status == 201

    async def delete_queue(self, queue: str, *, queue_id: int | None = None) -> None:
        """Delete *queue* and all it holds.

        queue_id: only if the queue is still this incarnation (see `queue_summary`), else QueueNotFoundError. Such a
        call is sent again when its answer was lost; without the id a lost answer raises OutcomeUnknownError, as the
        second request could delete a queue that somebody created in between.
        """
        if queue_id is None:
            await self._transport.send("DELETE", path_of(queue), repeat=Repeat.NEVER)
            return
        try:
            await self._transport.send("DELETE", path_of(queue), query={"id": str(queue_id)}, repeat=Repeat.RECOGNIZED)
        except OutcomeUnknownError as error:
            # After a lost answer: the queue of this id does not exist, which is what was asked for.
            if not isinstance(error.__cause__, QueueNotFoundError):
                raise

    async def append_record(self, queue: str, position: int | None, payload: Payload) -> int | None:
        """Append *payload* and return its position, None when it was already there.

        A lost answer: without a position the call raises OutcomeUnknownError, as sending again could store it twice.
        With one it is sent again; a refusal then raises OutcomeUnknownError too, as the first try may have been stored.
        """
        answer, _ = await self._append(queue, position, 1, copied(payload), OCTET_STREAM)
        return None if answer.duplicate else answer.position

    async def append_records(self, queue: str, position: int | None, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none; return the last position, None for a repeat or nothing to append."""
        records = [copied(payload) for payload in payloads]
        answer, _ = await self._append(queue, position, len(records), *_body_of(records, queue))
        return None if answer.duplicate else answer.position

    async def append_new(self, queue: str, position: int, payloads: Iterable[Payload]) -> int:
        """Append *payloads*, at least one, at *position*, which nobody else may have taken; return the last position.

        As `append_records`, but what was there before the first try raises PositionInPastError, also where the content
        is the same. Only a try that follows a lost answer passes for a repeat.
        """
        records = [copied(payload) for payload in payloads]
        answer, repeated = await self._append(queue, position, len(records), *_body_of(records, queue))
        last = position + len(records) - 1
        if answer.duplicate and not repeated:
            raise PositionInPastError(queue, position, last + 1)
        return last

    async def truncate(self, queue: str, position: int, *, queue_id: int | None = None) -> int:
        """Drop the records up to and including *position*, which must have been assigned; return how many went."""
        body = msgspec.json.encode(TruncateRequest(position, queue_id))
        reply = await self._transport.send(
            "POST", path_of(queue, "truncate"), body=body, content_type="application/json"
        )
        return decoded(reply, TruncateResponse).dropped

    def producer(self, queue: str, *, create: bool = False) -> Producer:
        """Return a producer for *queue*: appends by one writer, each stored once however often it must be sent."""
        return Producer(self, queue, create=create)

    # Reads.

    async def range(self, queue: str, start: int | None = None, stop: int | None = None) -> AsyncIterator[Record]:
        """Yield the records of *queue* at *start* … *stop* - 1; None means from the first, to the last there is now."""
        async for run in self.runs(queue, start, stop):
            for record in run.each():
                yield record

    def iter_from(self, queue: str, position: int) -> AsyncIterator[Record]:
        """Yield the records of *queue* from *position* on."""
        return self.range(queue, position)

    async def runs(self, queue: str, start: int | None = None, stop: int | None = None) -> AsyncIterator[Run]:
        """Yield the same as `range` as whole runs."""
        summary = await self.queue_summary(queue)
        position = summary.first_position if start is None else start
        end = summary.next_position if stop is None else min(stop, summary.next_position)
        while position < end:
            runs, position, queue_id = await self._page(queue, position, end)
            if queue_id != summary.id:
                raise QueueNotFoundError(queue)  # deleted and created again while we read
            if not runs:
                return
            for run in runs:
                yield run

    async def tail(self, queue: str, start: int | None = None) -> AsyncGenerator[Record, None]:
        """Yield the records from *start* on and wait for more; ends when the queue is deleted.

        It goes on through restarts of the service, and behind records that were truncated before it came to them.
        """
        summary = await self.queue_summary(queue)
        position = summary.first_position if start is None else start
        while True:
            try:
                runs, position, queue_id = await self._page(queue, position, None, wait_seconds=WAIT_SECONDS)
            except QueueNotFoundError:
                return
            if queue_id != summary.id:
                return
            for run in runs:
                for record in run.each():
                    yield record

    async def queue_exists(self, queue: str) -> bool:
        """Tell whether there is a queue of this name."""
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
        """Return the lowest position that is not truncated."""
        return (await self.queue_summary(queue)).first_position

    async def next_position(self, queue: str) -> int:
        """Return the position that the next record gets."""
        return (await self.queue_summary(queue)).next_position

    async def last_position(self, queue: str) -> int | None:
        """Return the position before the next one; None if nothing was ever appended."""
        following = await self.next_position(queue)
        return following - 1 if following else None

    async def last_record(self, queue: str) -> Record | None:
        """Return the newest retained record."""
        summary = await self.queue_summary(queue)
        if not summary.records:
            return None
        async for record in self.range(queue, summary.next_position - 1):
            return record
        return None

    async def stats(self) -> StatsResponse:
        """Return the numbers of the service."""
        return decoded(await self._transport.send("GET", "/v1/stats"), StatsResponse)

    async def wait_ready(self) -> None:
        """Wait until the service takes records; ServiceUnreachableError after retry_seconds."""
        await self._transport.send("GET", "/readyz")

    # The wire.

    async def _page(
        self, queue: str, position: int, stop: int | None, *, wait_seconds: int = 0
    ) -> tuple[list[Run], int, int]:
        """Return runs from *position* on, where to go on, and the queue's id."""
        query = {"start": str(position), "max_bytes": str(PAGE_BYTES)}
        if stop is not None:
            query["stop"] = str(stop)
        if wait_seconds:
            query["wait"] = str(wait_seconds)
        while True:
            try:
                reply = await self._transport.send(
                    "GET",
                    path_of(queue, "records"),
                    query=query,
                    accept=wire.CONTENT_TYPE,
                    wait_seconds=wait_seconds,
                )
                break
            except ServiceError as error:
                first = error.problem.get("first_position")
                # Each answer names a later position, so this ends with whoever truncates.
                if error.code != "truncated" or type(first) is not int or first <= int(query["start"]):
                    raise
                query["start"] = str(first)
        return _page_of(reply)

    async def _append(
        self, queue: str, position: int | None, records: int, body: bytes, content_type: str
    ) -> tuple[AppendResponse, bool]:
        """Append; return the answer, and whether an earlier try lost its own."""
        reply = await self._transport.send(
            "POST",
            path_of(queue, "records"),
            query={} if position is None else {"position": str(position)},
            body=body,
            content_type=content_type,
            repeat=Repeat.NEVER if position is None else Repeat.RECOGNIZED,
        )
        answer = decoded(reply, AppendResponse)
        # A proxy may mix up answers; nothing is acknowledged by the answer to another request.
        if answer.records != records or (
            position is not None and records and answer.position != position + records - 1
        ):
            told = f"{answer.records} records up to position {answer.position}"
            asked = f"{records} at position {position}" if position is not None else f"{records}"
            raise ServiceError(reply.status, "unreadable", f"the answer is about {told}, the request about {asked}")
        return answer, reply.repeated


def _page_of(reply: Reply) -> tuple[list[Run], int, int]:
    """Return what a read's answer holds; ServiceError where it is not what the service would have written."""
    try:
        runs = [block.run() for block in wire_decoder.decode(reply.body)]
        return runs, int(reply.headers["X-Next-Position"]), int(reply.headers["X-Queue-Id"])
    except (ValueError, KeyError) as error:  # a WireError is a ValueError
        raise ServiceError(reply.status, "unreadable", f"not an answer of this service: {error}") from None


def _body_of(records: list[bytes], queue: str) -> tuple[bytes, str]:
    """Return body and content type: a single record travels as it is."""
    if len(records) == 1:
        return records[0], OCTET_STREAM
    runs = [Run.of(0, records)] if records else []
    return b"".join(wire.encode([wire.QueueRuns(queue, 0, runs)])), wire.CONTENT_TYPE


def _summary(answer: QueueResponse) -> QueueSummary:
    return QueueSummary(
        answer.queue,
        answer.id,
        answer.first_position,
        answer.next_position,
        answer.records,
        answer.bytes,
        answer.first_segment,
    )
