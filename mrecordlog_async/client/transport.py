"""`Transport`: sends the requests of one client, each until it has a response that another attempt would not change.

1. At most `connections` calls run at once; others wait in line, in order of arrival and for a limited time.
2. A long poll has its own connection: it waits for records, and no other call should wait for it. If the service
   already has as many clients that wait as it admits, the client asks without waiting, every few seconds.
3. Each attempt has deadlines for connecting, for silence and for the whole response, so a server that sends byte by
   byte cannot block a call.
4. A fleet follows a log to another address: `move` says where, and the connections made from then on go there.
5. aiohttp itself repeats no request and follows no redirect: `retry` decides what is sent twice.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from urllib.parse import quote

import aiohttp
from aiohttp import ThreadedResolver
from aiohttp.abc import ResolveResult
from yarl import URL

from mrecordlog_async.client.outage import Outage
from mrecordlog_async.client.retry import Attempts, Repeat, met_silence
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.names import check_name
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.responses import Reply
from mrecordlog_async.servers.names import check_url, shown_url

Payload = bytes | bytearray | memoryview

CONNECT_SECONDS = 5.0

POLL_SECONDS = 3.0
"""Pause before a client that the service does not let wait asks for records."""

ELSEWHERE = (
    "the client belongs to another event loop, that of its first call: make one client in each loop, or use a "
    "BlockingRecordLogClient from all threads"
)
"""Message of the error for a call on another event loop, such as that of a second asyncio.run."""


class Transport:
    """Send requests and retry them. Belongs to one event loop; the parameters are those of `RecordLogClient`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        retry_seconds: float,
        timeout_seconds: float,
        response_seconds: float,
        connections: int,
        log_id: str | None = None,
        address: str | None = None,
        eager: bool = False,
    ) -> None:
        """*address*: connect to it instead of the host of *url*. *eager*: retry nothing but a lost request."""
        check_url(url)
        if connections < 1:
            raise ValueError(f"connections must be at least 1, not {connections}")
        self._name_place(url, address)
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first call
        self._eager = eager
        self._retry_seconds = retry_seconds
        self._silence_seconds = timeout_seconds
        self.met_silence = False  # the last attempt that had no response
        self._response_seconds = response_seconds
        self._silence = self._silence_of(0.0)
        self._connections = connections
        self._slots = asyncio.Semaphore(connections)  # in order of arrival, unlike aiohttp's own limit
        # aiohttp would offer gzip, and proxies and applications in front of the service would use it.
        self._headers = {"Accept-Encoding": "identity"}
        self._set_token(token)
        if log_id is not None:
            self._headers[LOG_ID] = log_id
        self._session: aiohttp.ClientSession | None = None
        self._left: list[aiohttp.ClientSession] = []  # for places that were left
        self._closing = asyncio.Event()
        self._outage = Outage(self._shown_url)
        self._under_way: set[asyncio.Timeout] = set()

    async def close(self) -> None:
        """Close all connections. Running calls end with an error, including those that pause before another attempt."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.end_exchanges()  # closing the session does not end a response that is being read
        for session in (*self._left, *filter(None, [self._session])):
            await session.close()
        self._session = None

    def end_exchanges(self) -> None:
        """End every exchange under way as if its response were lost."""
        for exchange in self._under_way:
            if not exchange.expired():  # its call may not have run since
                exchange.reschedule(asyncio.get_running_loop().time())

    def move(self, url: str, address: str | None, token: str | None) -> None:
        """Send to another address of the same log from now on, with the token of that address."""
        socket_path = self._socket_path
        self._name_place(url, address)
        self._set_token(token)
        if self._session is not None and self._socket_path != socket_path:
            self._left.append(self._session)  # its connector is of the other kind, or for the other socket
            self._session = None

    def _set_token(self, token: str | None) -> None:
        check_token(token, self._base)
        self._headers.pop("Authorization", None)
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def _name_place(self, url: str, address: str | None) -> None:
        self._shown_url, self._address = shown_url(url), address
        self._socket_path = url.removeprefix("unix:") if url.startswith("unix:") else None
        # Percent-encoded, as are the paths that follow it.
        self._base = "http://localhost" if self._socket_path else str(URL(url)).rstrip("/")

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
        accept: str | None = None,
        repeat: Repeat = Repeat.FREELY,
        wait_seconds: float = 0.0,
    ) -> Reply:
        """Send a request until it has a response that another attempt would not change.

        Args:
            method: HTTP method.
            path: Path below the URL of the service, percent-encoded.
            query: Query parameters, not encoded.
            body: Body of the request.
            content_type: Content type of *body*.
            accept: Content type to request.
            repeat: What is allowed after a lost response.
            wait_seconds: How long the service may wait for records before it responds (a long poll).

        Returns:
            A response with a status below 300.

        Raises:
            RecordLogError: The last refusal, or what is known after the last lost response.
        """
        loop = asyncio.get_running_loop()
        # Checked before anything is sent: otherwise a change would be made whose caller gets an error of asyncio.
        if self._loop is not loop:
            if self._loop is not None:
                raise LogClosedError(ELSEWHERE)
            self._loop = loop
        described: dict[str, str] = {}
        if content_type is not None:
            described["Content-Type"] = content_type
        if accept is not None:
            described["Accept"] = accept
        deadline = loop.time() + self._retry_seconds + wait_seconds
        attempts = Attempts(f"{method} {path}", self._shown_url, repeat, self._retry_seconds, deadline)
        while True:
            url = URL(self._base + path, encoded=True).with_query(query or None)
            headers = {**self._headers, **described}  # next to the URL: `move` changes both, and a token is for one
            try:
                reply = await self._attempt(attempts, method, url, body, headers, wait_seconds)
                if reply.status < 300:
                    self._outage.ended()
                    return reply._replace(repeated=True) if attempts.lost else reply
                if wait_seconds and reply.status == 429:
                    query = {name: value for name, value in (query or {}).items() if name != "wait"}
                    wait_seconds, attempts.at_least_seconds = 0.0, POLL_SECONDS
                    await attempts.pause(self._closing)
                    continue
                error = attempts.after_refusal(reply)
            except LogClosedError as closed:
                raise attempts.final(closed) from None
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as lost:
                self.met_silence = met_silence(lost)
                error = attempts.after_loss(lost)
            if self._eager and not attempts.lost:
                raise attempts.at_once(error)
            self._outage.failed(error, attempts.left_seconds())
            if not await attempts.pause(self._closing):
                raise attempts.final(error)

    async def _attempt(
        self,
        attempts: Attempts,
        method: str,
        url: URL,
        body: bytes | None,
        headers: dict[str, str],
        wait_seconds: float,
    ) -> Reply:
        if wait_seconds:
            return await self._exchange(method, url, body, headers, wait_seconds)
        await self._take_slot(attempts)
        try:
            return await self._exchange(method, url, body, headers, 0.0)
        finally:
            self._slots.release()

    async def _take_slot(self, attempts: Attempts) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # does not wait
            return
        try:
            async with asyncio.timeout(max(attempts.left_seconds(), CONNECT_SECONDS)):
                await self._slots.acquire()
        except TimeoutError:
            reason = f"none of the client's {self._connections} connections became free"
            raise aiohttp.ConnectionTimeoutError(reason) from None

    async def _exchange(
        self, method: str, url: URL, body: bytes | None, headers: dict[str, str], wait_seconds: float
    ) -> Reply:
        session = self._open_session()
        silence = self._silence_of(wait_seconds) if wait_seconds else self._silence
        async with asyncio.timeout(self._response_seconds + wait_seconds) as end:
            self._under_way.add(end)
            try:
                async with session.request(
                    method, url, data=body, headers=headers, timeout=silence, allow_redirects=False
                ) as response:
                    return Reply(response.status, response.headers, await response.read())
            finally:
                self._under_way.discard(end)

    def _silence_of(self, wait_seconds: float) -> aiohttp.ClientTimeout:
        # `_exchange` sets the deadline of the whole response; aiohttp's own would cost one more timer.
        return aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=self._silence_seconds + wait_seconds
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closing.is_set():
            raise LogClosedError("the client is closed")
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._socket_path is None and self._eager:
                resolver = _Pinned(lambda: self._address)
                connector = aiohttp.TCPConnector(limit=0, resolver=resolver, use_dns_cache=False)
            elif self._socket_path is None:
                connector = aiohttp.TCPConnector(limit=0)
            else:
                connector = aiohttp.UnixConnector(self._socket_path, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, raise_for_status=False)
            # Otherwise aiohttp repeats PUT and DELETE when a connection breaks, perhaps after they were carried out.
            # It has no public switch; tests/client counts the requests that a server receives.
            self._session._retry_connection = False
        return self._session


class _Pinned(ThreadedResolver):
    """Resolves host names to the address that is pinned, if there is one."""

    def __init__(self, address: Callable[[], str | None]) -> None:
        super().__init__()
        self._pinned = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses to connect to."""
        address = self._pinned()
        if address is None:
            return await super().resolve(host, port, family)
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        flags = socket.AI_NUMERICHOST
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=flags)]


def check_token(token: str | None, url: str = "") -> None:
    """Raise ValueError for a token that no header can hold, or that requests to *url* cannot have."""
    if token is not None and _CONTROL.search(token):
        raise ValueError("the token holds a line break or another control character: pass token.strip()")
    if token and URL(url).user is not None:
        raise ValueError("the URL has a user name, and a request cannot have a token as well: leave one out")


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def path_of(queue: str, *more: str) -> str:
    """Return the path of *queue*, followed by *more*. Raises QueueNameError for what cannot be the name of a queue."""
    check_name(queue)  # a path without the name, say, would be another one
    name = quote(queue, safe="")
    if name in (".", ".."):
        name = name.replace(".", "%2E")  # or the path would be normalized
    return "/".join(("/v1/queues", name, *more))


def copied(payload: Payload) -> bytes:
    """Return *payload* as immutable bytes. Raise TypeError for numbers too, which bytes() would accept."""
    return payload if type(payload) is bytes else bytes(memoryview(payload))
