"""A server that follows a script, request by request: it responds, sends byte by byte, or drops the connection."""

from __future__ import annotations

import asyncio
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
    drip: bool = False
    """Send the body byte by byte, forever."""


DROP = Step(drop=True)


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
    times: list[float] = field(default_factory=list)
    on_request: Callable[[], None] = lambda: None

    @property
    def methods(self) -> list[str]:
        return [line.split()[0] for line, _ in self.requests]


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Run *serve* for every connection to a free port; yield the URL."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await stop_listening(server)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def scripted(steps: Iterable[Step], *, last: Step = Step()) -> AsyncIterator[Scripted]:
    """Serve *steps* in order, then *last* for every other request. Connections are kept alive."""
    script, waiting = Scripted(), list(steps)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                script.requests.append(await _receive(reader))
                script.times.append(asyncio.get_running_loop().time())
                script.on_request()
                step = waiting.pop(0) if waiting else last
                if step.drop:
                    return
                await _respond(step, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async with listening(serve) as script.url:
        yield script


async def _receive(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Read one request; return method with target, and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line[15:] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0]) if lengths else 0)
    return head.split(" HTTP/")[0], body


async def _respond(step: Step, writer: asyncio.StreamWriter) -> None:
    length = 1_000_000 if step.drip else len(step.body)
    lines = (f"HTTP/1.1 {step.status} X", f"Content-Length: {length}", *step.headers, "", "")
    writer.write("\r\n".join(lines).encode() + step.body)
    while step.drip:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.005)


@asynccontextmanager
async def cutting(*, chunked: bool) -> AsyncIterator[tuple[str, int]]:
    """Cut off the response to each append a byte later than the one before; yield the URL, and how often it can."""
    length, body = b"Content-Length: %d" % len(APPENDED), APPENDED
    if chunked:  # some proxies write zeros before the length of a chunk
        length, body = b"Transfer-Encoding: chunked", b"0%x\r\n%b\r\n0\r\n\r\n" % (len(APPENDED), APPENDED)
    response = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%b\r\n\r\n%b" % (length, body)
    sizes = iter(range(len(response)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1)
        writer.write(response[: next(sizes)])
        writer.close()

    async with listening(serve) as url:
        yield url, len(response)
