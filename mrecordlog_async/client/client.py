"""`RecordLogClient`: the HTTP service from asyncio code, with the method names of `MultiRecordLog`.

    from mrecordlog_async.client import RecordLogClient

    async with RecordLogClient("http://127.0.0.1:8080") as client:
        async with client.producer("orders", create=True) as producer:
            await producer.append_record(b"two coffees")  # stored once, even if the connection breaks
        async for position, payload in client.range("orders"):
            print(position, payload)

Reads and appends of many records travel as runs, so single records are touched only where they are handed out. The
methods are in `changes`, `reads` and `consumers`; what is retried and when is in `retry`; connections and deadlines
are in `transport`.
"""

from __future__ import annotations

from types import TracebackType

from mrecordlog_async.client.changes import Changes
from mrecordlog_async.client.consumers import Consumers
from mrecordlog_async.client.producer import Producer
from mrecordlog_async.client.retry import ServiceUnreachableError
from mrecordlog_async.client.transport import Transport
from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.protocol.responses import decoded
from mrecordlog_async.protocol.schemas import StatsResponse
from mrecordlog_async.servers.names import shown_url


class RecordLogClient(Changes, Consumers):
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
        self.url = url
        self._transport = Transport(
            url,
            token=token,
            retry_seconds=retry_seconds,
            timeout_seconds=timeout_seconds,
            response_seconds=response_seconds,
            connections=connections,
            log_id=log_id,
        )

    def __repr__(self) -> str:
        return f"<RecordLogClient {shown_url(self.url)!r}>"

    async def __aenter__(self) -> RecordLogClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Later calls, and calls that wait for another attempt, raise LogClosedError."""
        await self._transport.close()

    def producer(self, queue: str, *, create: bool = False) -> Producer:
        """Return a producer for *queue*: appends by one writer, each stored once even if it must be sent again.

        Args:
            queue: Its name.
            create: Create the queue on `async with` if it does not exist.

        Returns:
            The producer; use it as `async with`. A queue may have one producer at a time.
        """
        return Producer(self, queue, create=create)

    async def log_info(self) -> LogResponse:
        """Return which log the service has: its id and name, its openings, and how far it has come."""
        return decoded(await self._transport.send("GET", "/v1/log"), LogResponse)

    async def stats(self) -> StatsResponse:
        """Return the statistics of the service and its log.

        Returns:
            Resources in use with their limits, counters since the log was opened, and durations in seconds.
        """
        return decoded(await self._transport.send("GET", "/v1/stats"), StatsResponse)

    async def wait_ready(self) -> None:
        """Wait until the service stores records.

        Raises:
            ServiceUnreachableError: It is not ready after `retry_seconds`.
        """
        try:
            await self._transport.send("GET", "/readyz")
        except ServiceUnreachableError as error:
            # What a service that is not ready responds looks like a proxy's error; but this request changes nothing.
            raise ServiceUnreachableError(error.address, error.seconds, error.reason) from error.__cause__
