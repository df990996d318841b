"""Appends that wait for a consumer, many at once: `python -m tests.deep.service.waiting_appends --requests 10000`.

Each is a `POST …?wait_consumer=lake&wait=60` on its own connection. Then one acknowledgement passes all. Printed are
the service's memory for each, without that of its connection, and the most CPU time that the event loop used in one
go: while they arrived, a hundred at once, while they waited, and while they were responded to. Exit code 1 if one of
those is longer than `stall_seconds_here` allows, or if a response does not say that its record was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mrecordlog_async.client import Consumer, RecordLogClient
from tests.deep.service.test_adversary import stall_seconds_here
from tests.service.adversary import Target, body_of, request
from tests.serving import config

CONNECT_AT_ONCE = 100
PAYLOAD_BYTES = 200
PAUSE_SECONDS = 0.02

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def respond(connection: Connection) -> dict[str, object]:
    """Return the body of a response, which is JSON."""
    head = await connection[0].readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    found: dict[str, object] = json.loads(await connection[0].readexactly(length))
    return found


async def measure(target: Target, requests: int) -> list[str]:
    """Measure, and print; return what is wrong."""
    url = f"http://127.0.0.1:{target.port}"
    async with RecordLogClient(url) as client:
        await client.create_queue("q")
        async with client.consumer("q", "lake") as lake:
            connections = await connect(target.port, requests)
            try:
                return await _measure(target, client, lake, connections)
            finally:
                for _, writer in connections:
                    writer.transport.abort()


async def connect(port: int, number: int) -> list[Connection]:
    """Open connections, and append a record on each, so that all of their memory is there."""
    connections: list[Connection] = []
    while len(connections) < number:
        opening = (asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECT_AT_ONCE))
        connections += await asyncio.gather(*opening)
    await send("/v1/queues/q/records", connections)
    await asyncio.gather(*map(respond, connections))
    return connections


async def send(path: str, connections: list[Connection]) -> None:
    """Send a record on each connection, some at once."""
    for at in range(0, len(connections), CONNECT_AT_ONCE):
        for _, writer in connections[at : at + CONNECT_AT_ONCE]:
            writer.write(request("POST", path, bytes(PAYLOAD_BYTES)))
        await asyncio.sleep(PAUSE_SECONDS)


async def _measure(target: Target, client: RecordLogClient, lake: Consumer, connections: list[Connection]) -> list[str]:
    idle = target.resident_bytes()
    stalls: dict[str, float] = {}

    @asynccontextmanager
    async def watched(what: str) -> AsyncIterator[None]:
        target.forget_stalls()
        yield
        await asyncio.sleep(0.1)
        stalls[what] = target.stall_seconds

    async with watched("while they arrive"):
        await send("/v1/queues/q/records?wait_consumer=lake&wait=60", connections)
        while await tails_of(target) < len(connections):
            await asyncio.sleep(0.2)
    waiting = target.resident_bytes()
    async with watched("while they wait"):
        for _ in range(100):
            await client.append("q", b"x")
    begun = time.perf_counter()
    async with watched("while they end"):
        last = await client.append("q", b"x")
        await lake.acknowledge(last)
        replies = await asyncio.gather(*map(respond, connections))
        seconds = time.perf_counter() - begun
    print(f"memory of a waiting request: {(waiting - idle) / len(connections):,.0f} bytes, with its record")
    print(f"all responded to {seconds:.2f} s after the acknowledgement")
    bound = stall_seconds_here()
    for what, stall in stalls.items():
        print(f"longest turn of the event loop {what}: {stall * 1000:.1f} ms of CPU; {bound * 1000:.0f} are allowed")
    wrong = [f"the event loop was blocked {what}" for what, stall in stalls.items() if stall > bound]
    wrong += ["a response does not say that its record was acknowledged"] * any(
        not one["acknowledged"] for one in replies
    )
    return wrong


async def tails_of(target: Target) -> int:
    """Return how many requests wait."""
    return int(json.loads(body_of((await target.call("GET", "/v1/stats"))[1]))["tails"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    arguments = parser.parse_args()
    number = -(-arguments.requests // CONNECT_AT_ONCE) * CONNECT_AT_ONCE
    with tempfile.TemporaryDirectory() as place:
        limits = config(Path(place), tails=number, connections=number + 100)
        with Target(Path(place) / "wal", *limits) as target:
            wrong = asyncio.run(measure(target, number))
    for one in wrong:
        print(f"wrong: {one}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
