"""`Transport`: the connections of an asyncio client, on aiohttp. One exchange sends a request once.

1. At most `connections` calls run at once; others wait in line, in order of arrival and for a limited time.
2. A long poll has its own connection: it waits for records, and no other call should wait for it.
3. Each attempt has deadlines for connecting, for silence and for the whole response, so a server that sends byte by
   byte cannot block a call.
4. aiohttp itself repeats no request and follows no redirect: `Sender` decides what is sent twice.
"""

from __future__ import annotations

import asyncio
import io
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
from yarl import URL

from mrecordlog_async.blocking_http import tls_failure
from mrecordlog_async.client.options import CONNECT_SECONDS, ClientOptions
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.options import MIB
from mrecordlog_async.protocol.attempts import NoResponseError
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.responses import Reply
from mrecordlog_async.servers.names import shown_url

ELSEWHERE = (
    "the client belongs to another event loop, that of its first call: make one client in each loop, or use a "
    "BlockingRecordLogClient from all threads"
)
"""Message of the error for a call on another event loop, such as that of a second asyncio.run."""


class Transport:
    """Exchange requests for responses. Belongs to one event loop."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options.checked()
        self._base = options.base
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call
        self._silence = self._silence_of(0)
        self._slots = asyncio.Semaphore(options.connections)  # in order of arrival, unlike aiohttp's own limit
        self._headers = self._headers_of(options)
        self._session: aiohttp.ClientSession | None = None
        self._closing = asyncio.Event()
        self._under_way: set[asyncio.Timeout] = set()

    @property
    def address(self) -> str:
        """The URL of the service, for messages."""
        return shown_url(self.url)

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self._options.place.url

    def usage_check(self) -> Callable[[], None]:
        """Return what raises LogClosedError where readers that are made now may not be used."""
        return self.check

    def check(self) -> None:
        """Raise LogClosedError on another event loop than that of the first call."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LogClosedError(ELSEWHERE)
            self._loop = loop

    async def close(self) -> None:
        """Close all connections. Running calls end with an error, including those that pause before another attempt."""
        if self._closing.is_set():
            return
        self._closing.set()
        for exchange in self._under_way:  # closing the session does not end a response that is being read
            if not exchange.expired():  # its call may not have run since
                exchange.reschedule(asyncio.get_running_loop().time())
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def pause(self, seconds: float, _: float | None) -> None:
        """Wait before another attempt, or until the client closes. A task that waits no longer is cancelled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def exchange(self, call: ServiceCall[Any], left_seconds: float) -> Reply:
        """Send *call* once and return the response, whatever its status.

        Args:
            call: The request.
            left_seconds: How long it may wait for a free connection, but at least for `CONNECT_SECONDS`.

        Raises:
            NoResponseError: There was no whole response in time.
            LogClosedError: The client is closed.
        """
        try:
            if call.wait_seconds:
                return await self._exchange(call)
            await self._take_slot(left_seconds)
            try:
                return await self._exchange(call)
            finally:
                self._slots.release()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise NoResponseError(_reason_of(error), sent=_was_sent(error)) from error

    async def _take_slot(self, left_seconds: float) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # does not wait
            return
        try:
            async with asyncio.timeout(max(left_seconds, CONNECT_SECONDS)):
                await self._slots.acquire()
        except TimeoutError:
            reason = f"none of the client's {self._options.connections} connections became free"
            raise aiohttp.ConnectionTimeoutError(reason) from None

    async def _exchange(self, call: ServiceCall[Any]) -> Reply:
        session, wait = self._open_session(), call.wait_seconds
        url = URL(self._base + call.target, encoded=True)
        headers = {**self._headers, **call.headers}
        silence = self._silence_of(wait) if wait else self._silence
        body = call.body
        # aiohttp writes bytes in one go, which holds the event loop (70 MB: 0.13 s); it warns of that above 1 MiB.
        data = body if body is None or len(body) <= MIB else io.BytesIO(body)
        async with asyncio.timeout(self._options.response_seconds + wait) as end:
            self._under_way.add(end)
            try:
                async with session.request(
                    call.method, url, data=data, headers=headers, timeout=silence, allow_redirects=False
                ) as response:
                    return Reply(response.status, response.headers, await response.read())
            finally:
                self._under_way.discard(end)

    def _silence_of(self, wait_seconds: int) -> aiohttp.ClientTimeout:
        # `_exchange` sets the deadline of the whole response; aiohttp's own would cost one more timer.
        silence_seconds = self._options.timeout_seconds + wait_seconds
        return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)

    @staticmethod
    def _headers_of(options: ClientOptions) -> dict[str, str]:
        # aiohttp would offer gzip, and proxies and applications in front of the service would use it.
        headers = {"Accept-Encoding": "identity"}
        if options.token:
            headers["Authorization"] = f"Bearer {options.token}"
        if options.log_id is not None:
            headers[LOG_ID] = options.log_id
        return headers

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closing.is_set():
            raise LogClosedError("the client is closed")
        if self._session is None:
            connector: aiohttp.BaseConnector
            socket_path = self._options.socket_path
            if socket_path is not None:
                connector = aiohttp.UnixConnector(socket_path, limit=0)
            else:
                connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, raise_for_status=False)
            # Otherwise aiohttp repeats PUT and DELETE when a connection breaks, perhaps after they were carried out.
            # It has no public switch; tests/client counts the requests that a server receives.
            self._session._retry_connection = False  # noqa: SLF001  # aiohttp has no public switch
        return self._session


def _reason_of(error: Exception) -> str:
    """Return what an attempt met. aiohttp names the address once more, and how it was called, but not what it means."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host name cannot be resolved"
    if isinstance(error.__cause__, ssl.SSLError):
        return tls_failure(error.__cause__)
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number).lower() if number else str(error)
    return str(error) or type(error).__name__


def _was_sent(error: Exception) -> bool:
    """Return whether the request may have reached the service before *error* occurred."""
    return not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
