"""Connections: how many are allowed, how long one may be idle, and how much memory they may hold.

HTTP servers in Python keep a silent or slowly sending connection open forever. Here:

1. A connection that has not sent a whole request head within `header_seconds` is closed.
2. A connection that was idle between requests, or kept sending a head, for `idle_seconds` is cut; after a tenth of that
   while three quarters of all connections are in use.
3. At the limit, a new connection replaces the one that has been idle longest. If none is idle, the new one gets a 503
   and is closed before anything is read. A connection counts from the moment that it is admitted, before it begins.
4. Requests that wait for an earlier one on their connection, and small responses that the client has not read, are
   charged to no budget. If all connections together hold more than `unread_bytes` of them, those that hold most are
   cut.

One timer checks all connections every second, so these deadlines cost a request nothing. Bodies and responses have
their own deadlines (`receive`, `send`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from mrecordlog_async.protocol.problems import CONTENT_TYPE, ProblemError, bad_request, too_many
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.wire.formats import seal

logger = logging.getLogger("mrecordlog_async.service")

SWEEP_SECONDS = 1.0
CROWDED = 0.75
"""Share of all connections above which idle ones are cut sooner."""
HURRY = 10
"""Factor by which idle connections are then cut sooner."""


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of connections. refused: above the limit. cut: idle or in a handshake too long, or holding too much.

    unread_bytes: received and not yet processed, or sent and not read. charged: the connections whose responses
    are charged elsewhere. known: the service accepts its connections itself; those of an application are not counted.
    handshakes: TLS handshakes that began.
    """

    known: bool = False
    open: int = 0
    unread_bytes: int = 0
    charged: Container[object] = ()
    refused: int = 0
    cut: int = 0
    handshakes: int = 0


MALFORMED = (
    "malformed HTTP request: a path may need percent-encoding, a line may be longer than 8,190 bytes, or the lengths "
    "of the body contradict each other"
)


class Connection(RequestHandler):
    """One connection. Malformed HTTP gets a problem document."""

    __slots__ = ("_connections",)

    def __init__(self, connections: Connections, server: web.Server) -> None:
        # What `web.Server` does when it is called to make a protocol, which is always a plain `RequestHandler`; but
        # `receive` expands bodies, within their budget.
        options = server._kwargs | {"auto_decompress": False}  # noqa: SLF001  # aiohttp offers no other way
        super().__init__(server, loop=server._loop, **options)  # noqa: SLF001  # as above
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; from now on the server counts it."""
        self._connections.leave(self)
        super().connection_made(transport)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Respond to what the parser refused, and close the connection."""
        problem = bad_request(MALFORMED)
        if status >= 500:
            problem = ProblemError(status, "internal", "internal error; see the service's log")
        if request.writer.output_size > 0 and self.transport is not None:
            # A response has begun, and a second head would be taken for a part of its body.
            self.transport.abort()
        response = web.Response(status=problem.status, body=problem.document(), content_type=CONTENT_TYPE)
        seal(response)
        response.force_close()
        return response

    @property
    def requests(self) -> int:
        """Number of requests that have begun on this connection."""
        return self._request_count

    @property
    def is_serving(self) -> bool:
        """True if a request is being served now."""
        return self._request_in_progress

    def waiting_bytes(self) -> int:
        """Return the bytes of received requests that wait for an earlier one."""
        # Requests without a body share EMPTY_PAYLOAD, a StreamReader that has no size.
        waiting = (payload for _, payload in self._messages if payload is not EMPTY_PAYLOAD)
        return sum(payload._size for payload in waiting)  # noqa: SLF001  # aiohttp counts these bytes nowhere else

    def untaken_bytes(self) -> int:
        """Return the bytes of responses that the client has not read."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0


@dataclass(slots=True)
class LastSweep:
    """The last sweep's view of one connection: how many requests it had made, and since when."""

    requests: int
    since: float


class Connections:
    """Create the protocol of each connection, and cut connections that are idle or hold too much."""

    def __init__(self, server: web.Server, options: ServiceOptions, counts: ConnectionCounts) -> None:
        self.counts = counts
        counts.known = True
        self._server = server
        self._options = options
        self._watched: dict[Connection, LastSweep] = {}
        self._idle: deque[Connection] = deque()  # at the last sweep, longest idle first
        self._arriving: set[Connection] = set()  # admitted, but not begun: they have a socket

    @property
    def count(self) -> int:
        """Number of open connections, including those that are admitted and have not begun."""
        begun = self._server._connections  # noqa: SLF001  # the public property copies them all
        return len(begun) + len(self._arriving)

    @property
    def are_full(self) -> bool:
        """True if a new connection must replace another one."""
        return self.count >= self._options.connections

    def admit(self) -> Connection | None:
        """Return the protocol of a new connection, which counts from now on; None if there is no room for it."""
        if self.are_full and not self._cut_idle():
            self.counts.refused += 1
            return None
        connection = Connection(self, self._server)
        self._arriving.add(connection)
        return connection

    def leave(self, connection: Connection) -> None:
        """Count *connection* no longer as one that arrives: it has begun, or it never will."""
        self._arriving.discard(connection)

    def refusal(self) -> bytes:
        """Return the 503 response for a connection that is not admitted."""
        problem = too_many("connections", self.count, self._options.connections)
        problem.status = 503
        body = problem.document()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def watch(self, each_second: Callable[[], object]) -> None:
        """Sweep every second until cancelled, and call *each_second* after each sweep.

        An error is logged and the next sweep runs all the same: nothing awaits this task, and without it no connection
        has a deadline.
        """
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self.sweep(clock())
                each_second()
            except Exception:
                logger.exception("watching connections failed; trying again in a second")

    def sweep(self, now: float) -> None:
        """Check every connection once."""
        watched, self._watched = self._watched, {}
        self.counts.open = self.count
        idle_seconds = self._options.idle_seconds
        if self.count >= CROWDED * self._options.connections:
            idle_seconds /= HURRY
        for connection in self._server.connections:
            assert isinstance(connection, Connection), "`admit` made it"
            requests = connection.requests
            watch = watched.get(connection)
            # A request that runs, or has run since the last sweep, begins the time again.
            if watch is None or connection.is_serving or watch.requests != requests:
                watch = LastSweep(requests, now)
            seconds = idle_seconds if requests else self._options.header_seconds
            if now - watch.since >= seconds and connection.transport is not None:
                self._cut(connection)
            else:
                self._watched[connection] = watch
        resting = [(watch.since, number) for number, watch in enumerate(self._watched.values()) if watch.since < now]
        connections = list(self._watched)
        self._idle = deque(connections[number] for _, number in sorted(resting))
        self._cut_largest()

    def _cut(self, connection: Connection) -> None:
        self.counts.cut += 1
        if connection.transport is not None:
            connection.transport.abort()

    def _cut_idle(self) -> bool:
        """Close the connection that has been idle longest; return False if none is idle."""
        while self._idle:
            connection = self._idle.popleft()
            watch = self._watched.get(connection)
            resting = watch is not None and watch.requests == connection.requests
            if resting and connection.transport is not None and not connection.is_serving:
                self._cut(connection)
                return True
        return False

    def _cut_largest(self) -> None:
        """Cut the connections that hold most, until all together hold at most `unread_bytes`."""
        charged = self.counts.charged
        held = {
            connection: connection.waiting_bytes() + (0 if connection in charged else connection.untaken_bytes())
            for connection in self._watched
        }
        self.counts.unread_bytes = sum(held.values())
        for connection in sorted(held, key=held.__getitem__, reverse=True):
            if self.counts.unread_bytes <= self._options.unread_bytes:
                return
            self.counts.unread_bytes -= held[connection]
            self._cut(connection)
