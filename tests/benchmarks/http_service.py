"""Measure the service next to an aiohttp handler that does nothing, in one run.

Both run in their own processes on uvloop; a client that costs little (prepared bytes, no HTTP library) drives them in
turn, so that a busy machine slows both. Each row names the median of the rounds; the ratio is that of the medians.

* single: durable POSTs of one record of 100 bytes over 64 connections. The bare handler reads the body and responds.
* ndjson: durable POSTs of 1,000 lines of 200 bytes over 8 connections.
* runs: reading 200 MB as runs over 2 connections, 32 MB per request. The bare handler sends as many prepared bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import uvloop
from aiohttp import web

from tests.benchmarks.serving import serve_command, serving

CONNECTIONS = 64
NDJSON_CONNECTIONS = 8
READ_CONNECTIONS = 2
READ_BYTES = 32 * 1024 * 1024
STORED_BYTES = 200 * 1024 * 1024


class Connection(asyncio.Protocol):
    """Sends one prepared request after the other and counts the responses."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request, self.until = request, until
        self.seconds: list[float] = []
        self.bytes = 0
        self.done = asyncio.get_running_loop().create_future()
        self._head = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self.request)  # type: ignore[attr-defined]  # uvloop's transports have no common base

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._head.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(RuntimeError(self._head[:500].decode()))
                self._transport.close()
                return
            length = re.search(rb"(?i)content-length: (\d+)", self._head)
            assert length is not None
            self._missing = int(length[1]) + end + 4
            data, self._head = self._head, b""
        self._missing -= len(data)
        self.bytes += len(data)
        if self._missing:
            return
        now = time.perf_counter()
        self.seconds.append(now - self._sent)
        if now < self.until:
            self._send()
        else:
            self._transport.close()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionResetError("closed"))


class Result(NamedTuple):
    """Requests and bytes per second, and how long each request took, in order."""

    requests: float
    bytes: float
    latencies: list[float]


class Medians(NamedTuple):
    """Requests and bytes per second, and the 99th percentile in seconds; medians of the rounds."""

    requests: float
    bytes: float
    p99: float

    @classmethod
    def of(cls, results: Sequence[Result]) -> Medians:
        """Return the medians of *results*."""
        return cls(
            median(one.requests for one in results),
            median(one.bytes for one in results),
            median(one.latencies[int(len(one.latencies) * 0.99)] for one in results),
        )


async def drive(port: int, request: bytes, connections: int, seconds: float) -> Result:
    """Send *request* over and over for *seconds*; return rates and latencies."""
    loop, begun = asyncio.get_running_loop(), time.perf_counter()
    made: list[Connection] = []
    for _ in range(connections):
        connection = Connection(request, begun + seconds)
        await loop.create_connection(lambda: connection, "127.0.0.1", port)  # noqa: B023 # awaited in this turn
        made.append(connection)
    await asyncio.gather(*(connection.done for connection in made))
    took = time.perf_counter() - begun
    latencies = sorted(second for connection in made for second in connection.seconds)
    total = sum(connection.bytes for connection in made)
    return Result(len(latencies) / took, total / took, latencies)


def post(path: str, body: bytes, content_type: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.mrecordlog.runs\r\n\r\n".encode()


async def bare() -> None:
    """Serve the handlers that do nothing."""
    prepared = bytes(READ_BYTES)

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b'{"position":123456,"records":1,"duplicate":false}', content_type="application/json")

    async def give(request: web.Request) -> web.Response:
        return web.Response(body=prepared, content_type="application/octet-stream")

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/queues/{queue}/records", take)
    app.router.add_get("/v1/queues/{queue}/records", give)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(f"listening on http://127.0.0.1:{site.port}", file=sys.stderr, flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await runner.cleanup()


async def simple(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    response = await reader.read()
    writer.close()
    return response


async def compare(
    bare_port: int, port: int, request: Callable[[], bytes], connections: int, seconds: float, rounds: int, after: str
) -> tuple[Medians, Medians]:
    """Drive both in turn; return the medians of bare and service."""
    found: list[tuple[Result, Result]] = []
    for _ in range(rounds):
        found.append(await one_round(bare_port, port, request(), connections, seconds))
        if after:
            await empty(port, after)
    return Medians.of([bare for bare, _ in found]), Medians.of([service for _, service in found])


async def one_round(
    bare_port: int, port: int, request: bytes, connections: int, seconds: float
) -> tuple[Result, Result]:
    """Drive the bare handler and then the service."""
    bare_result = await drive(bare_port, request, connections, seconds)
    return bare_result, await drive(port, request, connections, seconds)


async def empty(port: int, queue: str) -> None:
    """Truncate all that a round stored."""
    response = await simple(port, "GET", f"/v1/queues/{queue}")
    following = re.search(rb'"next_position":(\d+)', response)
    assert following is not None
    body = b'{"position":%d}' % (int(following[1]) - 1)
    await simple(port, "POST", f"/v1/queues/{queue}/truncate", body)


async def measure(seconds: float, rounds: int, directory: str, rows: list[str]) -> None:
    """Start both servers and print a table of *rows*."""
    async with both(directory, ("single", "ndjson", "runs")) as (bare_port, port):
        print("| row | bare aiohttp handler | mrecordlog serve | ratio |")
        print("|---|---|---|---|")
        for name in rows:
            await ROWS[name](bare_port, port, seconds, rounds)
        syncs = (await simple(port, "GET", "/v1/stats")).decode().partition("sync_seconds")[2]
        print(f"\nsyncs: {syncs}", file=sys.stderr)


@asynccontextmanager
async def both(directory: str, queues: Sequence[str]) -> AsyncIterator[tuple[int, int]]:
    """Start the bare handler, and a service with *queues*; yield their ports."""
    bare_command = [sys.executable, "-m", "tests.benchmarks.http_service"]
    with serving(bare_command) as bare_address, serving(serve_command(directory)) as address:
        bare_port, port = _port(bare_address), _port(address)
        while b'"open"' not in await simple(port, "GET", "/readyz"):
            await asyncio.sleep(0.05)
        for queue in queues:
            await simple(port, "PUT", f"/v1/queues/{queue}")
        yield bare_port, port


def _port(address: str) -> int:
    port = urlsplit(address).port
    assert port is not None
    return port


async def row_single(bare_port: int, port: int, seconds: float, rounds: int) -> None:
    request = post("/v1/queues/single/records", b"x" * 100, "application/octet-stream")
    one, two = await compare(bare_port, port, lambda: request, CONNECTIONS, seconds, rounds, "single")
    print(
        f"| durable POSTs of one 100 B record, {CONNECTIONS} connections "
        f"| {one.requests:,.0f}/s, p99 {one.p99 * 1e3:.1f} ms | {two.requests:,.0f}/s, p99 {two.p99 * 1e3:.1f} ms "
        f"| {two.requests / one.requests:.0%} |",
        flush=True,
    )


async def row_ndjson(bare_port: int, port: int, seconds: float, rounds: int) -> None:
    request = post("/v1/queues/ndjson/records", (b"x" * 200 + b"\n") * 1_000, "application/x-ndjson")
    one, two = await compare(bare_port, port, lambda: request, NDJSON_CONNECTIONS, seconds, rounds, "ndjson")
    print(
        f"| durable NDJSON, 1,000 lines of 200 B per request, {NDJSON_CONNECTIONS} connections "
        f"| {one.requests * 1e3:,.0f} lines/s, p99 {one.p99 * 1e3:.1f} ms "
        f"| {two.requests * 1e3:,.0f} records/s, p99 {two.p99 * 1e3:.1f} ms | {two.requests / one.requests:.0%} |",
        flush=True,
    )


async def row_runs(bare_port: int, port: int, seconds: float, rounds: int) -> None:
    body = (b"x" * 200 + b"\n") * 5_000
    for _ in range(STORED_BYTES // len(body)):
        head = post("/v1/queues/runs/records", body, "application/x-ndjson")
        await drive(port, head, 1, 0.0)
    request = get(f"/v1/queues/runs/records?max_bytes={READ_BYTES}")
    one, two = await compare(bare_port, port, lambda: request, READ_CONNECTIONS, seconds, rounds, "")
    print(
        f"| reading runs of 200 B records, {READ_BYTES >> 20} MiB per request, {READ_CONNECTIONS} connections "
        f"| {one.bytes / 1e6:,.0f} MB/s | {two.bytes / 1e6:,.0f} MB/s | {two.bytes / one.bytes:.0%} |",
        flush=True,
    )


ROWS = {"single": row_single, "ndjson": row_ndjson, "runs": row_runs}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each round (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per row (default: 5)")
    parser.add_argument("--dir", type=Path, help="directory of the log (default: a temporary one)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))


def run(arguments: argparse.Namespace) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, tempfile.TemporaryDirectory() as temporary:
        directory = temporary if arguments.dir is None else str(arguments.dir)
        runner.run(measure(arguments.seconds, arguments.rounds, directory, arguments.rows))
    return 0


if __name__ == "__main__":  # the process of the bare handler
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bare())
