"""Runs the ASGI application of the service for each request that aiohttp has parsed. Everything used of it is public.

`mrecordlog serve` runs it on aiohttp's low-level server (`connections`), `mrecordlog_async.aiohttp` as a route of an
application. Most bodies are complete when a request begins, and most responses are one piece: neither waits. `serve`
writes such a response to the transport in one buffer, and aiohttp gets `_Sent` for it; an application gets it as a
`web.Response`, which its middlewares may change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import cache
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Protocol
from urllib.parse import unquote

from aiohttp import HttpVersion10, HttpVersion11, web

from mrecordlog_async.protocol.problems import ProblemError, bad_request
from mrecordlog_async.service.access_log import log_access
from mrecordlog_async.service.bodies import EXPANDED, WHOLE
from mrecordlog_async.service.http import ABORT, DISCONNECT, Message, Receive, Scope, Send

logger = logging.getLogger("mrecordlog_async.service")

LOOK_SECONDS = 1.0
"""Interval between the looks whether the client of an application's request is still there."""
SERVER = "mrecordlog"
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
BAD_CHUNK = "a chunk of the body is malformed: each is its size in hexadecimal digits, and this many bytes"


class _Sent(web.StreamResponse):
    """What aiohttp gets for a response that is sent, or cut off, already. It calls these three members."""

    def __init__(self, keep_alive: bool) -> None:
        super().__init__()
        self._keeps = keep_alive

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow."""
        return self._keeps

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send nothing."""


SENT, CLOSED = _Sent(True), _Sent(False)


class Watched(Protocol):
    """A connection of `connections`, as the bridge sees it."""

    transport: Any
    server: tuple[Any, ...]
    client: tuple[Any, ...] | None
    taken: int
    paused: float
    streams: bool
    refused: int

    async def left(self) -> None:
        """Wait until the client has left."""

    def refuse(self, problem: ProblemError) -> None:
        """Respond to what is not read further, and close."""


class Bridge:
    """Serves an ASGI application to aiohttp."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], *, access_log: bool = False) -> None:
        self._app, self._access_log = app, access_log
        self._unread: dict[asyncio.Transport, tuple[int, float]] = {}

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Have the application respond to *request*, a route's whose path ends with `{path}`."""
        transport = request.transport
        local = None if transport is None or transport.is_closing() else transport.get_extra_info("sockname")
        if isinstance(local, str | bytes):
            server: tuple[Any, Any] = (os.fsdecode(local) or "unix", None)
        elif isinstance(local, tuple) and len(local) > 1:
            server = local[:2]
        else:  # a lost TLS transport has no address
            raise ConnectionResetError("the client left before its request was admitted")
        assert transport is not None, "it has an address"
        peer = transport.get_extra_info("peername")
        remote = request.remote if request.remote is not None or peer is None else str(peer)
        resource = request.match_info.route.resource
        assert resource is not None, "a route of `setup`"
        exchange = _Exchange(request, transport, None)
        scope = self._scope(request, server, (remote, 0) if remote else None)
        raw_path = scope["raw_path"].split(b"/")
        scope["raw_path"] = b"/" + b"/".join(raw_path[resource.canonical.count("/") :])
        # One that does not expand has no such number, nor has a request without a body.
        scope[EXPANDED] = getattr(request.content, "total_compressed_bytes", None) is not None
        scope[WHOLE], scope[ABORT] = request.content.is_eof(), transport.abort
        await self._app(scope, exchange.receive, exchange.send)
        if exchange.response is None:
            raise ConnectionResetError
        self._unread.setdefault(transport, (0, 0.0))
        return exchange.response

    def cut_stalled(self, seconds: float) -> None:
        """Cut clients of `respond` that have read nothing for *seconds*: aiohttp waits for them for ever."""
        now = monotonic()
        for transport, (size, since) in list(self._unread.items()):
            left = transport.get_write_buffer_size()
            if not left or transport.is_closing():
                del self._unread[transport]
            elif left != size:
                self._unread[transport] = left, now
            elif now - since >= seconds:
                transport.abort()

    async def serve(self, request: web.BaseRequest, connection: Watched) -> web.StreamResponse:
        """Have the application respond to *request* on a connection of `connections`."""
        transport, began = connection.transport, time() if self._access_log else 0.0
        exchange = _Exchange(request, transport, connection)
        scope = self._scope(request, connection.server, connection.client)
        scope[WHOLE], scope[ABORT] = request.content.is_eof(), transport.abort
        try:
            if request.version in (HttpVersion11, HttpVersion10):
                await self._app(scope, exchange.receive, exchange.send)
            else:
                connection.refuse(ProblemError(505, "bad_request", "the service speaks HTTP/1.1 and HTTP/1.0"))
        except Exception:
            logger.exception("unexpected error in a request")
        if self._access_log and (status := connection.refused or exchange.status):
            log_access(scope, status, exchange.size, time() - began)
        if exchange.response is None or not exchange.ended:
            if not connection.refused:  # what the client has of it must not look whole
                transport.abort()
            return CLOSED
        return exchange.response

    def _scope(self, request: web.BaseRequest, server: Any, client: Any) -> Scope:
        raw = request.raw_path
        if raw[:1] != "/":
            raw = _origin_form(raw)
        path, _, query = raw.partition("?")
        version = request.version
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1" if version == HttpVersion11 else f"{version.major}.{version.minor}",
            "method": request.method,
            "scheme": request.scheme,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": path.encode("utf-8", "surrogateescape"),
            "query_string": query.encode("utf-8", "surrogateescape"),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "server": server,
            "client": client,
        }


def _origin_form(target: str) -> str:
    """Return *target* without scheme and authority: `/a?b` of `http://x/a?b`. A '#' stays, and is refused."""
    found = ABSOLUTE.match(target)
    rest = target if found is None else target[found.end() :]
    return rest if rest.startswith("/") else f"/{rest}"


class _Exchange:
    """One request of aiohttp and its response, as ASGI's `receive` and `send`. ended: the response is complete."""

    __slots__ = (
        "_connection", "_expects", "_request", "_start", "_taken", "_transport", "ended", "response", "size", "status",
    )  # fmt: skip

    def __init__(self, request: web.BaseRequest, transport: asyncio.Transport, connection: Watched | None) -> None:
        self.response: web.StreamResponse | None = None
        self.ended = False
        self.status = self.size = 0
        self._request, self._transport, self._connection = request, transport, connection
        # A client of HTTP/1.0 would take a 100 for the response (RFC 9110, section 10.1.1).
        expects = request.headers.get("Expect")
        self._expects = expects is not None and expects.lower() == "100-continue" and request.version == HttpVersion11
        self._taken = False
        self._start: Message = {}

    async def receive(self) -> Message:
        """Return the next part of the body; later, that the client has left."""
        connection, content = self._connection, self._request.content
        if self._taken:
            if connection is not None:
                await connection.left()
            while connection is None and self._request.transport is not None:  # noqa: ASYNC110  # aiohttp has no event
                await asyncio.sleep(LOOK_SECONDS)
            return DISCONNECT
        if self._expects:
            self._expects = False
            if not self._start and not content.is_eof() and not self._transport.is_closing():
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if connection is not None and content.is_eof():
                body = content.read_nowait()
            else:  # a middleware may have read it all: `read` has kept it
                body = await self._request.read() if content.at_eof() else await content.readany()
        except web.RequestPayloadError:
            raise bad_request(BAD_CHUNK, "bad_body") from None
        if connection is not None:
            connection.taken += len(body)
        self._taken = content.at_eof()
        return {"type": "http.request", "body": body, "more_body": not self._taken}

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self._start, self.status = message, message["status"]
            return
        body, more, connection = message.get("body", b""), message.get("more_body", False), self._connection
        self.size += len(body)
        if self.response is None and not more and self._send_at_once(body):
            self.ended = True
            if connection is not None and connection.paused:
                await self._request.writer.drain()
            return
        try:
            if self.response is None:
                self.response = await self._begin()
            if connection is not None:
                connection.streams = True
            if body:
                await self.response.write(body)
            if not more:
                await self.response.write_eof()
                self.ended = True
        except ConnectionError as error:
            error.__traceback__ = None  # a future of aiohttp keeps it, and its frames keep the piece
            raise ConnectionResetError("the client has left") from None
        finally:
            if connection is not None:
                connection.streams = False

    async def _begin(self) -> web.StreamResponse:
        response = web.StreamResponse(status=self.status, headers=_text(self._start["headers"]))
        _complete(response)
        await response.prepare(self._request)
        return response

    def _send_at_once(self, body: bytes) -> bool:
        """Send the whole response, if it needs nothing of aiohttp."""
        request, headers = self._request, self._start["headers"]
        if self._connection is None:
            self.response = web.Response(status=self.status, headers=_text(headers), body=body or None)
            _complete(self.response)
            return True
        if request.version != HttpVersion11 or request.method == "HEAD":
            return False
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        keeps, lines = request.keep_alive, [STATUS_LINES[self.status], date_line()]
        closes = False
        for name, value in headers:
            closes = closes or name == b"connection"
            lines.append(b"%b: %b\r\n" % (title(name), value))
        if not keeps and not closes:
            lines.append(b"Connection: close\r\n")
        lines += (b"\r\n", body)
        self._transport.write(b"".join(lines))
        self.response = SENT if keeps and not closes else CLOSED
        return True


def _text(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(title(name).decode(), value.decode("latin-1")) for name, value in headers]


def _complete(response: web.StreamResponse) -> None:
    """Name the server, and have aiohttp close the connection if the headers say so."""
    response.headers.setdefault("Server", SERVER)
    if "Connection" in response.headers:
        response.force_close()


@cache
def title(name: bytes) -> bytes:
    """Return the name of a header as HTTP/1.1 writes it: scripts look for it in this form."""
    return b"ETag" if name == b"etag" else name.title()


_date: tuple[int, bytes] = (0, b"")


def date_line() -> bytes:
    """Return the headers Date, of this second, and Server."""
    global _date  # made once a second
    now = int(time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\nServer: {SERVER}\r\n".encode()
    return _date[1]
