"""A proxy that forwards whole requests, and does to each what a plan says: repeat it, lose it, delay it, replay it.

Real proxies do all of this: Envoy with `retry_on: reset`, HAProxy with `retry-on all-retryable-errors` and nginx with
`proxy_next_upstream non_idempotent` send a POST again after their own connection to the service broke.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.client.scripted import listening

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<h1>502</h1>\r\n"


class Fault(Enum):
    """What happens to one request."""

    NONE = auto()
    TWICE_FIRST = auto()
    """It is sent twice, and the client gets the first response."""
    TWICE_SECOND = auto()
    """It is sent twice, and the client gets the second response."""
    LOSE_REQUEST = auto()
    LOSE_RESPONSE = auto()
    RETRY = auto()
    """It is sent again and again if the connection to the service breaks, as when the service is killed."""
    REPLAY = auto()
    """It is sent again later, after the client got the response."""
    LATE = auto()
    """The client's connection breaks first, then the request is sent."""
    REFUSE_BEFORE = auto()
    """The client gets 502, and the request is not sent."""
    REFUSE_AFTER = auto()
    """The client gets 502, and the request was carried out."""


@dataclass(frozen=True)
class Request:
    """One whole request as it was received."""

    head: bytes
    body: bytes

    @property
    def is_append(self) -> bool:
        return re.match(rb"POST /v1/queues/[^/]+/records[? ]", self.head) is not None


Plan = Callable[[Request], tuple[Fault, float]]
"""What happens to a request, and for how many seconds it is delayed."""


def appends(*faults: Fault) -> Plan:
    """Return the plan that does to appends what *faults* say, in turn, and nothing to other requests."""
    turn = 0

    def plan(request: Request) -> tuple[Fault, float]:
        nonlocal turn
        if not request.is_append:
            return Fault.NONE, 0.0
        turn += 1
        return faults[(turn - 1) % len(faults)], 0.0

    return plan


@dataclass
class Hostile:
    """A proxy in front of one port. done: how often each fault happened. between: awaited before a repeat is sent."""

    port: int
    plan: Plan
    url: str = ""
    between: Callable[[], Awaitable[None]] | None = None
    done: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    later: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request; the client opens a connection for each."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await self._receive(reader)
            fault, seconds = self.plan(request)
            self.done[fault] += 1
            await asyncio.sleep(seconds)
            response = await self._carry_out(request, fault)
            if response:
                writer.write(response)
                await writer.drain()
                writer.close()
        if not writer.is_closing():
            writer.transport.abort()

    async def _carry_out(self, request: Request, fault: Fault) -> bytes:
        """Do to *request* what *fault* says; return the client's response, or nothing if it is lost."""
        match fault:
            case Fault.LOSE_REQUEST:
                return b""
            case Fault.REFUSE_BEFORE:
                return BAD_GATEWAY
            case Fault.LATE:
                self._send_later(request)
                return b""
        response = await self._forward(request) if fault is not Fault.RETRY else await self._retry(request)
        match fault:
            case Fault.LOSE_RESPONSE:
                return b""
            case Fault.REFUSE_AFTER:
                return BAD_GATEWAY
            case Fault.TWICE_FIRST:
                await self._repeat(request)
            case Fault.TWICE_SECOND:
                return await self._repeat(request)
            case Fault.REPLAY:
                self._send_later(request)
        return response

    async def _repeat(self, request: Request) -> bytes:
        if self.between is not None:
            await self.between()
        return await self._forward(request)

    async def _retry(self, request: Request) -> bytes:
        while True:
            with suppress(ConnectionError):
                if response := await self._forward(request):
                    return response
            await asyncio.sleep(0.05)

    def _send_later(self, request: Request) -> None:
        async def send() -> None:
            await asyncio.sleep(0.05)
            with suppress(ConnectionError):
                await self._forward(request)

        task = asyncio.ensure_future(send())
        self.later.add(task)
        task.add_done_callback(self.later.discard)

    async def _forward(self, request: Request) -> bytes:
        """Send *request* on a connection that it alone uses; return the whole response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request.head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + request.body)
            return await reader.read()
        finally:
            writer.transport.abort()

    async def _receive(self, reader: asyncio.StreamReader) -> Request:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        return Request(head, await reader.readexactly(int(length[1]) if length else 0))


@asynccontextmanager
async def hostile(port: int, plan: Plan) -> AsyncIterator[Hostile]:
    """Run a proxy on a free port in front of the service at *port*."""
    proxy = Hostile(port, plan)
    async with listening(proxy.serve) as proxy.url:
        try:
            yield proxy
        finally:
            for task in proxy.later:
                task.cancel()
            await asyncio.gather(*proxy.later, return_exceptions=True)
