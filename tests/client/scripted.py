"""A server that follows a script, request by request: it responds, sends byte by byte, or drops the connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from tests.served import stop_listening

APPENDED = b'{"position":0,"records":1,"duplicate":false}'
REPEATED = b'{"position":0,"records":1,"duplicate":true}'


@dataclass(frozen=True)
class Step:
    """What happens to one request."""

    status: int = 200
    body: bytes = APPENDED
    headers: tuple[str, ...] = ()
    drop: bool = False
    """Close the connection after the whole request has arrived, without a response."""
    drip: bytes = b""
    """Send this, and then byte by byte, forever."""
    raw: bytes = b""
    """Send this in place of a response, and close the connection."""
    early: bool = False
    """Respond once the head has arrived, and read no body."""
    silent: bool = False
    """Do not respond."""
    more: bytes = b""
    """What follows the response."""

    @property
    def response(self) -> bytes:
        """What is sent, if that ends."""
        lines = (f"HTTP/1.1 {self.status} X", f"Content-Length: {len(self.body)}", *self.headers, "", "")
        return self.raw or "\r\n".join(lines).encode() + self.body + self.more


DROP = Step(drop=True)
QUEUE = Step(
    body=b'{"queue":"q","id":7,"first_position":0,"next_position":0,"records":0,"bytes":0,"first_segment":null}'
)
DRIP_HEAD = Step(drip=b"HTTP/1.1 200 OK\r\nX-Long: ")
DRIP_BODY = Step(drip=b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")


def problem(status: int, code: str, *headers: str, **facts: object) -> Step:
    """Refuse as the service does."""
    document = {"type": f"urn:mrecordlog:{code}", "status": status, "code": code, "detail": code, **facts}
    return Step(status, msgspec.json.encode(document), headers)


@dataclass
class Scripted:
    """The server's address, and the requests that it received."""

    url: str = ""
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    """Method with target, and body."""
    heads: list[bytes] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)
    """How many requests each connection had."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed a connection."""

    @property
    def methods(self) -> list[str]:
        return [line.split()[0] for line, _ in self.requests]


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Run *serve* for every connection to a free port; yield the URL."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await stop_listening(server)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scripted(
    steps: Iterable[Step], *, last: Step = Step(), tls: ssl.SSLContext | None = None
) -> AsyncIterator[Scripted]:
    """Serve *steps* in order, then *last* for every other request. Connections are kept alive."""
    script, waiting = Scripted(), list(steps)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(script.connections)
        script.connections.append(0)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                step = waiting.pop(0) if waiting else last
                body = b"" if step.early else await reader.readexactly(_length(head))
                script.connections[number] += 1
                script.heads.append(head)
                script.requests.append((head.decode().split(" HTTP/")[0], body))
                if step.drop:
                    return
                is_kept = step.silent or await _respond(step, writer)
                if step.silent or step.early:
                    await asyncio.Event().wait()
                if not is_kept:
                    return
        except asyncio.IncompleteReadError:
            script.closed.set()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async with listening(serve, tls) as script.url:
        yield script


def _length(head: bytes) -> int:
    lengths = [line[15:] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return int(lengths[0]) if lengths else 0


async def _respond(step: Step, writer: asyncio.StreamWriter) -> bool:
    """Return whether the connection may have another request."""
    writer.write(step.drip or step.response)
    while step.drip:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.005)
    if step.raw:
        writer.close()
        await writer.wait_closed()
    return not step.raw
