"""`RecordLogClient`: the service from asyncio code, with the method names of `MultiRecordLog`.

    async with RecordLogClient("http://127.0.0.1:8080") as client:
        await client.create_queue("orders", exist_ok=True)
        async with client.producer("orders") as producer:
            await producer.append_record(b"...")              # stored once, whatever happens to the connection
        async for position, payload in client.range("orders"):
            ...

Reads and appends travel as runs, so no record is touched on the way but where it is handed out. Errors are those of
the log; what only a service can do wrong is `ServiceError`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from mrecordlog_async.errors import LogFailedError, QueueNotFoundError
from mrecordlog_async.http import wire
from mrecordlog_async.http.messages import QueueAnswer, QueuesAnswer, StatsAnswer, TruncateRequest
from mrecordlog_async.http.producer import Producer
from mrecordlog_async.http.replies import Reply, ServiceError, check, error_of, retry_after
from mrecordlog_async.http.retrying import OutcomeUnknownError, Patience, ServiceUnreachableError, was_sent
from mrecordlog_async.model import QueueSummary, Record, Run

Payload = bytes | bytearray | memoryview

PAGE_BYTES = 8 * 1024 * 1024
WAIT_SECONDS = 30
OCTET_STREAM = "application/octet-stream"


class RecordLogClient:
    """A client of one service. Belongs to one event loop; its methods may be called from many tasks at once.

    url: `http://host:port`, `unix:/path/to/socket`. token: where the service wants one. retry_seconds: how long each
    call goes on trying when the service cannot be reached, is recovering or is full. connections: at most so many.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_seconds: float = 30.0,
        timeout_seconds: float = 60.0,
        connections: int = 128,
    ) -> None:
        self.url = url
        self._retry_seconds = retry_seconds
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=timeout_seconds)
        self._connections = connections
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._socket_path = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._base = "http://localhost" if self._socket_path else url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> RecordLogClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Changes.

    async def create_queue(self, queue: str, *, exist_ok: bool = False) -> bool:
        """Create *queue*. True if it was made."""
        reply = await self._send("PUT", _path(queue), query={"exist_ok": "1"} if exist_ok else {}, again=exist_ok)
        return reply.status == 201

    async def delete_queue(self, queue: str) -> None:
        """Delete *queue* and all it holds."""
        await self._send("DELETE", _path(queue), again=False)

    async def append_record(self, queue: str, position: int | None, payload: Payload) -> int | None:
        """Append *payload* and return its position, None when it was already there.

        Without a position a lost answer raises OutcomeUnknownError: sending again could store it twice.
        """
        reply = await self._append(queue, position, bytes(payload), OCTET_STREAM)
        return _appended(reply)

    async def append_records(self, queue: str, position: int | None, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none; return the last position, None for a repeat or nothing to append."""
        copied = [payload if type(payload) is bytes else bytes(payload) for payload in payloads]
        runs = [Run.of(0, copied)] if copied else []
        body = b"".join(wire.encode([wire.QueueRuns(queue, 0, runs)]))
        return _appended(await self._append(queue, position, body, wire.CONTENT_TYPE))

    async def truncate(self, queue: str, position: int, *, queue_id: int | None = None) -> int:
        """Drop the records up to and including *position*, which must have been given away; return how many went."""
        body = msgspec.json.encode(TruncateRequest(position, queue_id))
        reply = await self._send("POST", _path(queue, "truncate"), body=body, content_type="application/json")
        dropped: int = msgspec.json.decode(reply.body)["dropped"]
        return dropped

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
        reply = await self._send("GET", "/v1/queues")
        return {one.queue: _summary(one) for one in msgspec.json.decode(reply.body, type=QueuesAnswer).queues}

    async def queue_summary(self, queue: str) -> QueueSummary:
        """Return positions and sizes of one queue."""
        reply = await self._send("GET", _path(queue))
        return _summary(msgspec.json.decode(reply.body, type=QueueAnswer))

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

    async def stats(self) -> StatsAnswer:
        """Return the numbers of the service."""
        return msgspec.json.decode((await self._send("GET", "/v1/stats")).body, type=StatsAnswer)

    async def wait_ready(self) -> None:
        """Wait until the service takes records; ServiceUnreachableError after retry_seconds."""
        await self._send("GET", "/readyz")

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
        try:
            reply = await self._send("GET", _path(queue, "records"), query=query, accept=wire.CONTENT_TYPE)
        except ServiceError as error:
            if error.code != "truncated":
                raise
            query["start"] = str(error.problem["first_position"])
            reply = await self._send("GET", _path(queue, "records"), query=query, accept=wire.CONTENT_TYPE)
        runs = [block.run() for block in wire.decode(reply.body)]
        return runs, int(reply.headers["X-Next-Position"]), int(reply.headers["X-Queue-Id"])

    async def _append(self, queue: str, position: int | None, body: bytes, content_type: str) -> Reply:
        query = {} if position is None else {"position": str(position)}
        path = _path(queue, "records")
        return await self._send(
            "POST", path, query=query, body=body, content_type=content_type, again=position is not None
        )

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
        accept: str | None = None,
        again: bool = True,
    ) -> Reply:
        """Send until there is an answer that trying again would not change. *again*: doing it twice does no harm."""
        url = URL(self._base + path, encoded=True).with_query(query or None)
        headers = dict(self._headers)
        if content_type is not None:
            headers["Content-Type"] = content_type
        if accept is not None:
            headers["Accept"] = accept
        patience = Patience.begin(self._retry_seconds)
        while True:
            pause_seconds = 0.0
            try:
                async with self._open_session().request(method, url, data=body, headers=headers) as response:
                    reply = Reply(response.status, response.headers, await response.read())
                if reply.status not in (429, 503):
                    return check(reply)
                error = error_of(reply)
                if isinstance(error, LogFailedError):
                    raise error
                reason, pause_seconds = str(error), retry_after(reply)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as lost:
                reason = str(lost) or type(lost).__name__
                if not again and was_sent(lost):
                    raise OutcomeUnknownError(f"{method} {path}", reason) from lost
                error = ServiceUnreachableError(self.url, patience.seconds, reason)
            if not await patience.pause(pause_seconds):
                raise error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._socket_path is None:
                connector = aiohttp.TCPConnector(limit=self._connections)
            else:
                connector = aiohttp.UnixConnector(self._socket_path, limit=self._connections)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, auto_decompress=False, raise_for_status=False
            )
        return self._session


def _path(queue: str, *more: str) -> str:
    name = quote(queue, safe="")
    if name in (".", ".."):
        name = name.replace(".", "%2E")  # or it would be taken for a step in the path
    return "/".join(("/v1/queues", name, *more))


def _appended(reply: Reply) -> int | None:
    answer = msgspec.json.decode(reply.body)
    position: int | None = None if answer["duplicate"] else answer["position"]
    return position


def _summary(answer: QueueAnswer) -> QueueSummary:
    return QueueSummary(
        answer.queue,
        answer.id,
        answer.first_position,
        answer.next_position,
        answer.records,
        answer.bytes,
        answer.first_segment,
    )
