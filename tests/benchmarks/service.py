"""Requests of `mrecordlog serve`, next to an aiohttp handler that does nothing with them.

A client that costs little (prepared bytes, no HTTP library) drives both. CPU is that of the server alone.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from mrecordlog_async.client import RecordLogClient
from tests.benchmarks.turns import LOG, Case, Figures, Round, cpu_seconds, listening, serving

BARE = "a handler that does nothing"
QUEUE = "/v1/queues/queue"
READ_BYTES = 32 << 20


class Connection(asyncio.Protocol):
    """Sends a prepared request again and again, and measures how long each response takes."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request, self.until = request, until
        self.latencies: list[float] = []
        self.bytes = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first one."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Read a response; send the next request after it, until the time is over."""
        if not self._missing:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = re.search(rb"(?i)content-length: (\d+)", self._head)
            if not self._head.startswith(b"HTTP/1.1 200") or length is None:
                self.done.set_exception(RuntimeError(self._head[:500].decode()))
                self._transport.close()
                return
            data, self._missing = self._head, int(length[1]) + end + 4
            self._head = b""
        self._missing -= len(data)
        self.bytes += len(data)
        if self._missing:
            return
        now = time.perf_counter()
        self.latencies.append(now - self._sent)
        if now < self.until:
            self._send()
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail if a response is missing."""
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("the server closed the connection"))

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self.request)  # type: ignore[attr-defined]  # uvloop's transports have no common base


async def drive(port: int, pid: int, request: bytes, connections: int, records: int, seconds: float) -> Figures:
    """Send *request*, which has so many records, over *connections* for *seconds*."""
    loop, cpu, begun = asyncio.get_running_loop(), cpu_seconds(pid), time.perf_counter()
    made = [Connection(request, begun + seconds) for _ in range(connections)]
    for connection in made:
        await loop.create_connection(lambda: connection, "127.0.0.1", port)  # noqa: B023  # awaited in this turn
    await asyncio.gather(*(connection.done for connection in made))
    took = time.perf_counter() - begun
    latencies = sorted(each for connection in made for each in connection.latencies)
    return {
        "requests/s": len(latencies) / took,
        "records/s": len(latencies) * records / took,
        "MB/s received": sum(connection.bytes for connection in made) / took / 1e6,
        "ms p50": median(latencies) * 1e3,
        "ms p99": latencies[len(latencies) * 99 // 100] * 1e3,
        "µs CPU": (cpu_seconds(pid) - cpu) / len(latencies) * 1e6,
    }


def get(path: str, accept: str = "*/*") -> bytes:
    """Return a request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()


def post(path: str, body: bytes, content_type: str = "application/octet-stream") -> bytes:
    """Return a request with a body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def requests(request: bytes, connections: int, records: int = 1, stored: int = 0) -> dict[str, Case]:
    """Return the contenders of a case; the queue has so many records of 200 bytes before."""

    async def prepared(address: str) -> None:
        async with RecordLogClient(address) as client:
            await client.create_queue("queue")
            for begin in range(0, stored, 10_000):
                await client.append_records("queue", begin, [b"x" * 200] * 10_000)

    async def emptied(address: str) -> None:
        async with RecordLogClient(address) as client:
            following = await client.next_position("queue")
            if following > stored:
                await client.truncate("queue", following - 1)

    @asynccontextmanager
    async def with_service(directory: Path) -> AsyncIterator[Round]:
        async with serving(directory) as (port, pid):
            address = f"http://127.0.0.1:{port}"
            await prepared(address)

            async def measure(seconds: float) -> Figures:
                figures = await drive(port, pid, request, connections, records, seconds)
                await emptied(address)
                return figures

            yield measure

    @asynccontextmanager
    async def with_handler(directory: Path) -> AsyncIterator[Round]:
        async with listening([sys.executable, "-m", "tests.benchmarks.service"]) as (port, pid):
            yield lambda seconds: drive(port, pid, request, connections, records, seconds)

    return {LOG: with_service, BARE: with_handler}


def producing(tasks: int) -> dict[str, Case]:
    """Return a case of tasks that store records through one producer of the client."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        async with serving(directory) as (port, pid), RecordLogClient(f"http://127.0.0.1:{port}") as client:
            await client.create_queue("queue")

            async def measure(seconds: float) -> Figures:
                return await _produced(client, pid, tasks, seconds)

            yield measure

    return {LOG: prepare}


async def _produced(client: RecordLogClient, pid: int, tasks: int, seconds: float) -> Figures:
    stored, cpu, own, begun = 0, cpu_seconds(pid), time.process_time(), time.perf_counter()

    async def task(append: Callable[[bytes], Awaitable[object]]) -> None:
        nonlocal stored
        while time.perf_counter() < begun + seconds:
            await append(b"x" * 100)
            stored += 1

    async with client.producer("queue") as producer:
        await asyncio.gather(*(task(producer.append_record) for _ in range(tasks)))
    took = time.perf_counter() - begun
    await client.truncate("queue", await client.next_position("queue") - 1)
    return {
        "records/s": stored / took,
        "µs CPU of the service": (cpu_seconds(pid) - cpu) / stored * 1e6,
        "µs CPU of the client": (time.process_time() - own) / stored * 1e6,
    }


RUNS = get(f"{QUEUE}/records?max_bytes={READ_BYTES}", "application/vnd.mrecordlog.runs")
LINES = post(f"{QUEUE}/records", (b"x" * 200 + b"\n") * 1_000, "application/x-ndjson")
CASES: dict[str, dict[str, Case]] = {
    "1 connection, durable POST of 100 B": requests(post(f"{QUEUE}/records", b"x" * 100), 1),
    "64 connections, durable POST of 100 B": requests(post(f"{QUEUE}/records", b"x" * 100), 64),
    "8 connections, NDJSON, 1,000 × 200 B": requests(LINES, 8, 1_000),
    "2 connections, POST of 8 MiB": requests(post(f"{QUEUE}/records", b"x" * (8 << 20)), 2),
    "2 connections, reading runs, 200 B": requests(RUNS, 2, READ_BYTES // 200, 500_000),
    "64 connections, health": requests(get("/healthz"), 64),
    "64 tasks, a producer": producing(64),
}


async def _serve_nothing() -> None:
    from aiohttp import web

    prepared = bytes(READ_BYTES)

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b'{"position":123456,"records":1,"duplicate":false}', content_type="application/json")

    async def give(request: web.Request) -> web.Response:
        return web.Response(body=prepared if request.query else b"ok", content_type="application/octet-stream")

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/queues/{queue}/records", take)
    app.router.add_get("/{path:.*}", give)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"listening on http://127.0.0.1:{runner.addresses[0][1]}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as _runner:
        _runner.run(_serve_nothing())
