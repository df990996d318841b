"""What is left of a finished request: nothing that holds its body, whether it succeeded or failed."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.options import Limits
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.storage.direct import Staging
from tests.cached_files import CachedFiles
from tests.served import Served, serving

LARGE = 1_000_000
"""Bytes of a body; nothing else in a test is as large."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Turn the garbage collector off, and keep what it would have freed."""
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def large_leftovers() -> list[str]:
    """Return objects in reference cycles that hold something as large as a body."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    # The buffer of an earlier test's log is none: the log's thread may have ended only just now.
    found = [one for one in gc.garbage if not isinstance(one, Staging)]
    return [repr(one)[:200] for one in found if any(is_large(held) for held in gc.get_referents(one))]


def is_large(one: object) -> bool:
    if isinstance(one, memoryview):
        return one.nbytes >= LARGE // 8
    return isinstance(one, bytes | bytearray | str) and len(one) >= LARGE // 8


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def post(served: Served, target: bytes, body: bytes, headers: bytes = b"") -> int:
    """Send a body; return the status of the response."""
    async with connected(served) as (reader, writer):
        head = b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (target, headers, len(body))
        writer.write(head)
        writer.write(body)
        return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


async def over(served: Served) -> None:
    """Wait until nothing is served or charged any more."""
    while len(served.connections.open) or served.service.active or served.service.bodies.budget.used:
        await asyncio.sleep(0.001)
    for _ in range(10):
        await asyncio.sleep(0)


class FailingDisk(CachedFiles):
    """A disk that refuses to sync on demand."""

    error: int | None = None

    def sync(self, handle: int) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        super().sync(handle)


RECORDS = b"/v1/queues/q/records"


@pytest.mark.parametrize(
    ("target", "headers", "body", "options", "status"),
    [
        (RECORDS, b"", bytes(LARGE), {}, 200),
        (RECORDS + b"?position=0", b"", bytes(LARGE), {}, 409),
        (RECORDS, b"Content-Type: application/x-ndjson\r\n", b"x\n" * LARGE, {"body_records": 10}, 413),
        (RECORDS, b"Content-Type: application/json\r\n", b" " * LARGE, {}, 400),
        (RECORDS, b"Content-Type: application/json\r\n", b'{"records":["' + b"!" * LARGE + b'"]}', {}, 400),
        (RECORDS, b"Content-Type: application/vnd.mrecordlog.runs\r\n", bytes(LARGE), {}, 400),
        (RECORDS, b"Content-Type: application/vnd.apache.arrow.stream\r\n", bytes(LARGE), {}, 415),
        (b"/v1/plan", b"", b" " * LARGE, {}, 400),
        (b"/v1/fetch", b"", b" " * LARGE + b'{"ranges":[{"queue":"x","start":0,"stop":1}]}', {}, 404),
        (b"/v1/truncate", b"", b'{"queues":[' + b"{}," * LARGE + b"]}", {}, 413),
        (b"/v1/queues/q/truncate", b"", b" " * LARGE + b'{"position":7}', {}, 409),
        (RECORDS, b"", bytes(LARGE), {"record_bytes": LARGE // 4}, 413),
    ],
)
async def test_nothing_is_left_of_a_body_after_its_response(
    directory: Path,
    no_collector: None,
    target: bytes,
    headers: bytes,
    body: bytes,
    options: dict[str, Any],
    status: int,
) -> None:
    """A response releases the body at once, without the garbage collector, whether it was accepted or refused."""
    bounds = {name: options[name] for name in options if name == "body_records"}
    limits = Limits(record_bytes=options.get("record_bytes", 64 * LARGE))
    async with serving(directory, ServiceOptions(**bounds), limits=limits) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, b"first")
        assert await post(served, target, body, headers) == status
        await over(served)
        assert large_leftovers() == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_nothing_is_left_of_a_body_that_the_disk_refused(directory: Path, no_collector: None, error: int) -> None:
    """So does a log that has failed."""
    disk = FailingDisk()
    async with serving(directory, filesystem=disk) as served:
        await served.log.create_queue("q")
        disk.error = error
        for _ in range(2):
            assert await post(served, RECORDS, bytes(LARGE)) in (503, 507)
        await over(served)
        assert large_leftovers() == []
        disk.error = None


async def test_nothing_is_left_of_a_body_that_came_too_slowly(directory: Path, no_collector: None) -> None:
    """An upload that stalls is 408."""
    async with serving(directory, ServiceOptions(body_seconds=0.2)) as served:
        await served.log.create_queue("q")
        async with connected(served) as (reader, writer):
            writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (RECORDS, 2 * LARGE))
            writer.write(bytes(LARGE))
            assert b" 408 " in await reader.readuntil(b"\r\n")
        await over(served)
        assert large_leftovers() == []


@pytest.mark.parametrize("abort", [True, False], ids=["reset", "closed"])
async def test_nothing_is_left_of_a_body_whose_client_left(directory: Path, no_collector: None, abort: bool) -> None:
    """An upload that is cut in the middle."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        async with connected(served) as (_, writer):
            writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (RECORDS, 2 * LARGE))
            writer.write(bytes(LARGE))
            while served.service.bodies.budget.used < LARGE:
                await asyncio.sleep(0.001)
            if not abort:
                writer.close()
                await asyncio.sleep(0)
        await over(served)
        assert large_leftovers() == []


READS = {
    "ndjson": (b"GET /v1/queues/q/records?max_bytes=60000000", b"", b""),
    "text": (b"GET /v1/queues/q/records?max_bytes=60000000&as=text", b"", b""),
    "runs": (b"GET /v1/queues/q/records?max_bytes=60000000", b"Accept: application/vnd.mrecordlog.runs\r\n", b""),
    "raw": (b"GET /v1/queues/q/records?max_bytes=60000000", b"Accept: application/octet-stream\r\n", b""),
    "tail": (b"GET /v1/queues/q/tail", b"", b""),
    "fetch": (b"POST /v1/fetch", b"", b'{"ranges":[{"queue":"q","start":0,"stop":30}]}'),
}


@pytest.mark.parametrize("end", ["drop", "reset"])
@pytest.mark.parametrize("name", READS)
async def test_nothing_is_left_of_a_response_that_was_not_read(
    directory: Path, no_collector: None, name: str, end: str
) -> None:
    """When a reader that takes nothing is dropped or disconnects, its pieces are freed and its charge is returned."""
    target, headers, body = READS[name]
    async with serving(directory, ServiceOptions(write_seconds=0.2 if end == "drop" else 60.0)) as served:
        await served.log.create_queue("q")
        for _ in range(30):
            await served.log.append_record("q", None, bytes(LARGE))
        async with connected(served) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            head = b"%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n" % (target, headers, len(body))
            writer.write(head + body)
            while not (served.service.sending.used or served.service.sending.dropped):
                await asyncio.sleep(0.001)
            while served.service.sending.used and end == "drop":
                await asyncio.sleep(0.01)
        await over(served)
        assert served.service.sending.used == 0
        assert served.service.tails == 0
        await served.log.truncate("q", 29)  # what the log itself holds is not a leftover
        assert large_leftovers() == []
