"""Connections: how many there may be, and how long one may sit without asking for anything.

HTTP servers in Python leave a silent or dripping connection open for as long as it likes. Here:

1. A connection that has not sent a whole request head `header_seconds` after it was made is cut.
2. One that has been idle between requests, or has dripped a head, for `idle_seconds` is cut.
3. Above the limit a new connection gets a 503 and is closed before anything is read.

One timer looks at all of them every second, so a request pays nothing for its deadlines. Bodies and answers have their
own (`bodies`, `answers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from mrecordlog_async.http.options import ServiceOptions
from mrecordlog_async.http.problems import CONTENT_TYPE, too_many
from mrecordlog_async.http.service import ConnectionCounts

SWEEP_SECONDS = 1.0


@dataclass(slots=True)
class Watch:
    """What was last seen of one connection."""

    requests: int
    since: float


class Connections:
    """Makes a protocol for each connection and watches them."""

    def __init__(self, server: web.Server, options: ServiceOptions, counts: ConnectionCounts) -> None:
        self.counts = counts
        self._server = server
        self._options = options
        self._watched: dict[RequestHandler, Watch] = {}

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._server._connections)  # the public property copies them all

    def accept(self) -> asyncio.Protocol:
        """Return the protocol of a new connection: the factory that servers want."""
        if self.count >= self._options.connections:
            self.counts.refused += 1
            return Refusal(self.count, self._options.connections)
        return self._server()

    async def watch(self, each_second: Callable[[], None]) -> None:
        """Cut what sits too long, until cancelled; call *each_second* on the way."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(clock())
            each_second()

    def sweep(self, now: float) -> None:
        """Look at every connection once."""
        watched, self._watched = self._watched, {}
        self.counts.open = self.count
        for connection in self._server.connections:
            requests = connection._request_count
            watch = watched.get(connection)
            if watch is None or connection._request_in_progress or watch.requests != requests:
                watch = Watch(requests, now)
            seconds = self._options.idle_seconds if requests else self._options.header_seconds
            if now - watch.since >= seconds and connection.transport is not None:
                self.counts.cut += 1
                connection.transport.abort()
            else:
                self._watched[connection] = watch


class Refusal(asyncio.Protocol):
    """Says that there are too many connections and closes."""

    def __init__(self, used: int, limit: int) -> None:
        self._problem = too_many("connections", used, limit)
        self._problem.status = 503

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer before anything was asked."""
        # uvloop's transports are no subclass of asyncio's.
        body = self._problem.document()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        cast(asyncio.Transport, transport).write(head.encode() + body)
        transport.close()
