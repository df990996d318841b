"""Bodies that never end, on a real socket: each is refused by a limit, while its client goes on sending."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.support.heap import resident_bytes
from tests.served import serving

MIB = 1024 * 1024
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
DRIP_SECONDS = 0.02

OPTIONS = ServiceOptions(body_seconds=1.0, body_rate_bytes=10_000, body_bytes=64 * MIB)


def trailers() -> Iterator[bytes]:
    """Yield trailers, 60 MB of them."""
    yield CHUNKS + b"1\r\na\r\n0\r\n"
    for _ in range(60):
        yield b"X: a\r\n" * (MIB // 6)


def trailer() -> Iterator[bytes]:
    """Yield one trailer of 60 MB."""
    yield CHUNKS + b"1\r\na\r\n0\r\nX: "
    for _ in range(60):
        yield b"x" * MIB


def extension() -> Iterator[bytes]:
    """Yield the extension of a chunk, for ever."""
    yield CHUNKS + b"1;x="
    while True:
        yield b"x" * 65_536


def drip() -> Iterator[bytes]:
    """Yield 20 MB at once, then bytes."""
    yield b"Content-Length: 40000000\r\n\r\n" + bytes(20_000_000)
    while True:
        yield b"x"


BODIES = {
    "60 MB of trailers": (trailers, {400, 408}),
    "a trailer of 60 MB": (trailer, {400, 408}),
    "an extension of a chunk": (extension, {400, 408}),
    "20 MB and then single bytes": (drip, {408}),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_without_end_is_refused(directory: Path, name: str) -> None:
    """Within its deadline, which bytes that came faster do not move; nothing of it is kept or stored."""
    body, statuses = BODIES[name]
    async with serving(directory, OPTIONS, queues=["q"]) as served:
        before = await asyncio.to_thread(resident_bytes)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        responding = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        writer.write(b"POST /v1/queues/q/records HTTP/1.1\r\nHost: x\r\n")
        peak = 0
        async with asyncio.timeout(60):
            for piece in body():
                try:
                    writer.write(piece)
                    await writer.drain()
                except ConnectionError:
                    break
                peak = max(peak, served.connections.counts.unread_bytes)
                await asyncio.wait({responding}, timeout=DRIP_SECONDS)
                if responding.done():
                    break
            assert int((await responding).split()[1]) in statuses
        writer.transport.abort()
        assert served.log.next_position("q") == 0
        assert peak < MIB
        assert await asyncio.to_thread(resident_bytes) - before < 64 * MIB
