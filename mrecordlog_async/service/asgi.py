"""The service as an ASGI application: each request gets an aiohttp connection in memory.

The routes are handlers of aiohttp. What an ASGI server received is written to such a connection as HTTP/1.0, and what
the connection responds is passed on:

1. HTTP/1.0 has one request per connection, and a body without a length ends with the connection. So a response is a
   head and bytes: there are no chunks to decode.
2. Both directions wait: the connection stops reading the request while its handler is slow, and its writer waits while
   the ASGI server holds more than it has sent. Budgets and deadlines of the service see the same as on a socket.
3. `http.disconnect` is a lost connection: the handler is cancelled.
4. A connection that is cut leaves the response incomplete, and the ASGI server cuts its own connection.
5. A body that the client announced with `Expect: 100-continue` is asked for only once the service has admitted it.
6. An ASGI server waits for requests before it ends, by default for ever. So requests that still run `drain_seconds`
   after the signal are dropped here, as in `serve`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_to_bytes

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.protocol.problems import CONTENT_TYPE, retry
from mrecordlog_async.service.app import TAKES_CONTINUE, build_runner
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.watching.trim_memory import MemoryTrimmer
from mrecordlog_async.service.wire.connections import Connections
from mrecordlog_async.service.wire.security import is_address

logger = logging.getLogger("mrecordlog_async.service")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PIECE_BYTES = 64 * 1024
"""Bytes handed to the ASGI server at once: it holds about one piece more than it could send."""
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
"""From when to when a writer waits; asyncio's own values."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

OF_THE_CONNECTION = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"})
"""Request headers about the client's own connection. Length and encoding of the body are set by `_framing`."""
OF_THE_SERVER = frozenset({b"date", b"server"})
"""Response headers that the ASGI server sets itself."""


class AsgiService:
    """An ASGI application that serves a log while `serving` is entered. *make_service* is called each time."""

    def __init__(self, make_service: Callable[[], Service]) -> None:
        self._make_service = make_service
        self._service: Service | None = None
        self._connections: Connections | None = None
        self._running: set[AsgiConnection] = set()
        self._dropping: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def serving(self, log: MultiRecordLog) -> AsyncIterator[None]:
        """Serve *log*, which the caller opened and will close."""
        service = self._service = self._make_service()
        service.standalone = True  # no host application of aiohttp sees its responses
        service.attach(log)
        runner = build_runner(service)  # without lingering: the ASGI server reads what is left of a refused body
        await runner.setup()
        assert runner.server is not None
        connections = self._connections = Connections(runner.server, service.options, service.connections)
        watching = asyncio.create_task(connections.watch(MemoryTrimmer(service).check))
        try:
            yield
        finally:
            self._connections = None
            if self._dropping is not None:
                self._dropping.cancel()
                self._dropping = None
            service.begin_shutdown()
            watching.cancel()
            await runner.cleanup()

    def begin_shutdown(self) -> None:
        """Stop being ready and end tails; other requests continue for at most `drain_seconds`."""
        if self._service is not None and self._dropping is None:
            self._service.begin_shutdown()
            seconds = self._service.options.drain_seconds
            self._dropping = asyncio.get_running_loop().call_later(seconds, self._drop)

    def _drop(self) -> None:
        """Cut every request that still runs: its body never arrives, or its response is not read."""
        if self._running:
            text = "%d requests did not finish in time and are dropped"
            logger.warning(
                text, len(self._running), extra={"facts": {"event": "dropped", "requests": len(self._running)}}
            )
        for connection in self._running:
            connection.dropped = True
            connection.abort()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if self._connections is None:
            raise RuntimeError(
                "the log is not open: mount it on the application that has the lifespan of the log; in tests, enter "
                "their client: `with TestClient(app) as client`"
            )
        protocol = self._connections.admit()
        if protocol is None:
            await _refuse(self._connections.refusal(), send)
            return
        connection = AsgiConnection(protocol, _addresses(scope))
        feeding = asyncio.create_task(_feed(connection, scope, receive))
        self._running.add(connection)
        try:
            await _respond(connection, scope["method"], send)
        except OSError:  # the client disconnected
            pass
        finally:
            self._running.discard(connection)
            feeding.cancel()
            connection.lose()
            await asyncio.wait((feeding,))
        if not feeding.cancelled():
            feeding.result()  # raises what went wrong with the request


class AsgiConnection(asyncio.Transport):
    """The transport of one aiohttp connection: it holds what aiohttp wrote until the ASGI server takes it."""

    def __init__(self, protocol: asyncio.Protocol, addresses: dict[str, Any]) -> None:
        super().__init__(addresses)
        self.aborted = False
        self.dropped = False  # the process ends
        self.whole = False  # the whole request was received
        self.continued = asyncio.Event()  # the service wants the body of a request with `Expect`
        self._protocol = protocol
        self._readable = asyncio.Event()
        self._readable.set()
        self._written: deque[memoryview] = deque()
        self._size = 0  # of `_written`, and of the piece that the ASGI server is taking
        self._taking = 0  # of that piece
        self._wake = asyncio.Event()  # something was written, or the connection is closing
        self._closing = False
        self._lost = False
        self._paused = False
        protocol.connection_made(self)

    # The request.

    async def feed(self, data: bytes) -> None:
        """Pass *data* of the request to aiohttp, once it reads."""
        await self._readable.wait()
        if data and not self._closing:
            self._protocol.data_received(data)

    def lose(self) -> None:
        """End the connection: its handler is cancelled if it still runs."""
        self._closing = True
        self._wake.set()
        self._readable.set()
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(None)

    def pause_reading(self) -> None:
        """Stop reading the request."""
        self._readable.clear()

    def resume_reading(self) -> None:
        """Continue to read the request."""
        self._readable.set()

    def is_reading(self) -> bool:
        """Return whether the request is read."""
        return self._readable.is_set()

    # The response.

    async def take(self) -> bytes:
        """Return the next piece of the response, b"" at its end. The piece before it counts as sent."""
        self._count_sent()
        while not self._written:
            if self._closing:
                return b""
            self._wake.clear()
            await self._wake.wait()
        view = self._written.popleft()
        if len(view) > PIECE_BYTES:
            self._written.appendleft(view[PIECE_BYTES:])
            view = view[:PIECE_BYTES]
        self._taking = len(view)
        return bytes(view)

    def _count_sent(self) -> None:
        self._size -= self._taking
        self._taking = 0
        if self._paused and self._size <= LOW_BYTES and not self._lost:
            self._paused = False
            self._protocol.resume_writing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take *data* of the response."""
        if self._closing or not data:
            return
        self._written.append(memoryview(bytes(data) if isinstance(data, bytearray) else data))
        self._size += len(data)
        self._wake.set()
        if self._size > HIGH_BYTES and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Take several parts of the response."""
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes of the response the ASGI server has not taken."""
        return self._size

    def close(self) -> None:
        """End the response after what was written."""
        self._closing = True
        self._wake.set()

    def abort(self) -> None:
        """Cut the response off."""
        self.aborted = True
        self._written.clear()
        self.close()

    def is_closing(self) -> bool:
        """Return whether the response ends or was cut."""
        return self._closing

    def can_write_eof(self) -> bool:
        """Return False: the end of a response is the end of its connection."""
        return False


async def _feed(connection: AsgiConnection, scope: Scope, receive: Receive) -> None:
    """Write the request to the connection, then wait until the client disconnects."""
    try:
        length, chunked = _framing(scope)
        message: Message | None = None
        if length is None and not chunked:  # HTTP/2 announces no body
            message = await receive()
            chunked = bool(message.get("body")) or bool(message.get("more_body"))
        await connection.feed(_head(scope, length, chunked))
        if b"100-continue" in (value.lower() for name, value in scope["headers"] if name == b"expect"):
            await connection.continued.wait()
        left = 0 if length is None else length
        while True:
            await connection.feed(b"")  # not another message while aiohttp has enough
            message = await receive() if message is None else message
            if message["type"] == "http.disconnect":
                return
            data, more, message = message.get("body", b""), message.get("more_body", False), None
            if chunked:
                data = (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"" if more else b"0\r\n\r\n")
            else:
                data = data[:left]  # never more than was announced: the rest would be another request
                left -= len(data)
            connection.whole = not more
            await connection.feed(data)
            if not more:
                break
        if left and not chunked:  # an ASGI server passes on whole bodies
            read = f"a middleware has read {left} of {length} bytes of the body"
            raise RuntimeError(f"{read}: use request.body() there, which passes them on, instead of request.stream()")
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        connection.lose()


def _framing(scope: Scope) -> tuple[int | None, bool]:
    """Return the announced length of the body, and whether the body comes in chunks."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None, True
    length = headers.get(b"content-length", b"")
    return (int(length), False) if length.isdigit() else (None, False)


def _head(scope: Scope, length: int | None, chunked: bool) -> bytes:
    """Return the request's head as HTTP/1.0."""
    framing = (b"transfer-encoding", b"content-length")
    lines = [b"%b %b HTTP/1.0" % (scope["method"].encode("ascii"), _target(scope))]
    lines += [
        b"%b: %b" % (name, value)
        for name, value in scope["headers"]
        if name not in OF_THE_CONNECTION and name not in framing
    ]
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    elif length is not None:
        lines.append(b"content-length: %d" % length)
    head = b"\r\n".join(lines)
    if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
        raise ValueError("the ASGI server passed a line break inside a header")
    return head + b"\r\n\r\n"


def _target(scope: Scope) -> bytes:
    """Return path and query below the mount, encoded as the client sent them: a name may hold an encoded slash."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    raw = raw.partition(b"?")[0]
    root: bytes = scope.get("root_path", "").rstrip("/").encode()
    if root and unquote_to_bytes(raw).startswith(root):
        raw = b"/" + b"/".join(raw.split(b"/")[1 + root.count(b"/") :])
    query: bytes = scope.get("query_string", b"")
    return b"%b?%b" % (raw, query) if query else raw


def _addresses(scope: Scope) -> dict[str, Any]:
    """Return what the connection knows of itself. An address that the ASGI server does not name is not loopback."""
    server, client = scope.get("server"), scope.get("client")
    local: object = ("", 0)
    if server is not None:
        # A Unix socket has a path and no port. A server that leaves out the port of an address has no Unix socket.
        is_path = server[1] is None and server[0] and not is_address(server[0])
        local = server[0] if is_path else (server[0], server[1] or 0)
    peer = tuple(client[:2]) if client is not None else None
    return {"sockname": local, "peername": peer, TAKES_CONTINUE: True}


async def _refuse(refusal: bytes, send: Send) -> None:
    """Send the response for a request above the limit of connections."""
    head, _, body = refusal.partition(b"\r\n\r\n")
    status, headers, _ = _parsed(head)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_dropped(send: Send) -> None:
    """Send the response for a request whose body has not arrived when the process ends."""
    problem = retry(503, "closing", "the service is shutting down; try again", state="closing")
    body = problem.document()
    headers = {"content-type": CONTENT_TYPE, "content-length": str(len(body)), "connection": "close", **problem.headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _respond(connection: AsgiConnection, method: str, send: Send) -> None:
    """Pass the response on."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = await connection.take()
        if not piece:
            if connection.dropped:
                await _send_dropped(send)
            return
        head += piece
        if head.startswith(CONTINUE):
            head = head[len(CONTINUE) :]
            connection.continued.set()
    head, _, piece = head.partition(b"\r\n\r\n")
    status, headers, length = _parsed(head)
    if not connection.whole:  # what the client sends next may still be the body
        headers = [(name, value) for name, value in headers if name != b"connection"] + [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    sent = 0
    piece = piece or await connection.take()  # the head may have come alone
    while piece:
        sent += len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        piece = await connection.take()
    # An incomplete response is not ended: the ASGI server then cuts its connection, and the client sees an error.
    if not connection.aborted and (length is None or method == "HEAD" or sent == length):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _parsed(head: bytes) -> tuple[int, list[tuple[bytes, bytes]], int | None]:
    """Return status, headers and Content-Length of a response."""
    first, *lines = head.split(b"\r\n")
    headers, length = [], None
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if name == b"content-length":
            length = int(value)
        if name not in OF_THE_SERVER:
            headers.append((name, value))
    return int(first.split(b" ", 2)[1]), headers, length
