"""Opening a log of a gigabyte, next to reading its files and checking their sums."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from crc32c import crc32c

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy, ReadOnlyLog
from tests.benchmarks.turns import LOG, Case, Figures, Round

BYTES = 1 << 30
SEGMENT_BYTES = 64 << 20
FILES = "reading its files"
MEMORY = Limits(memory_bytes=12 << 30, disk_bytes=48 << 30)
LITTLE = Limits(memory_bytes=256 << 20, disk_bytes=48 << 30, beyond_memory="disk")


async def fill(directory: Path, size: int, batch: int, queues: int, limits: Limits = MEMORY) -> None:
    """Store a gigabyte of records of *size* bytes, *batch* with a call."""
    policy, names = PersistPolicy.never(), [f"queue-{number}" for number in range(queues)]
    opened = MultiRecordLog.open(
        directory, limits=limits, persist_policy=policy, segment_bytes=SEGMENT_BYTES, queues=names
    )
    async with opened as log:
        noise = os.urandom(size * batch)
        payloads = [noise[at : at + size] for at in range(0, len(noise), size)]
        calls = BYTES // len(noise)
        for begin in range(0, calls, 500):
            several = range(begin, min(begin + 500, calls))
            await asyncio.gather(*(log.append_records(names[call % queues], None, payloads) for call in several))


def forget(directory: Path) -> None:
    """Have the files of *directory* leave the page cache."""
    for path in directory.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def figures(begun: float, cpu: float) -> Figures:
    """Return what was measured since then."""
    took = time.perf_counter() - begun
    return {"MB/s": BYTES / took / 1e6, "s": took, "s CPU": time.process_time() - cpu}


@asynccontextmanager
async def read_only(directory: Path) -> AsyncIterator[None]:
    """Open the log to read it."""
    with ReadOnlyLog.open(directory):
        yield


@asynccontextmanager
async def files_read(directory: Path) -> AsyncIterator[None]:
    """Read the segments, and check the sums of their bytes."""
    for path in directory.glob("wal-*"):
        with path.open("rb", buffering=0) as file:
            while piece := file.read(4 << 20):
                crc32c(piece)
    yield


def opening(size: int, batch: int, queues: int = 8, limits: Limits = MEMORY) -> dict[str, Case]:
    """Return the contenders of a case: opening the log, opening it to read only, and reading its files."""

    def timed(entered: Callable[[Path], AbstractAsyncContextManager[object]], filled: Limits = MEMORY) -> Case:
        """Return a case that measures how long it takes to enter a context, and not to leave it."""

        @asynccontextmanager
        async def prepare(directory: Path) -> AsyncIterator[Round]:
            await fill(directory, size, batch, queues, filled)

            async def measure(seconds: float) -> Figures:
                forget(directory)
                begun, cpu = time.perf_counter(), time.process_time()
                async with entered(directory):
                    return figures(begun, cpu)

            yield measure

        return prepare

    contenders = {LOG: timed(partial(MultiRecordLog.open, limits=limits), limits), FILES: timed(files_read)}
    return contenders if limits is LITTLE else {**contenders, "read-only": timed(read_only)}


def reading_cold(queues: int) -> dict[str, Case]:
    """Return a case that reads all queues of a log that is larger than its memory, one after the other."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        await fill(directory, 1_024, 64, queues, LITTLE)
        async with MultiRecordLog.open(directory, limits=LITTLE) as log:

            async def measure(seconds: float) -> Figures:
                forget(directory)
                begun, cpu = time.perf_counter(), time.process_time()
                for name in log.list_queues():
                    async for _ in log.read(name):
                        pass
                return figures(begun, cpu)

            yield measure

    return {LOG: prepare}


CASES: dict[str, dict[str, Case]] = {
    "records of 1 KiB": opening(1_024, 64),
    "records of 100 B": opening(100, 1_000),
    "records of 100 B, one by one, 10,000 queues": opening(100, 1, 10_000),
    "beyond memory, records of 1 KiB": opening(1_024, 64, 8, LITTLE),
    "reading beyond memory, 8 queues": reading_cold(8),
    "reading beyond memory, 1,000 queues": reading_cold(1_000),
}
