"""The library: appends, truncates and reads, next to a file that is written and synced with as many bytes at a time."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy
from tests.benchmarks.turns import LOG, Case, Figures, Round, Rows

LIMITS = Limits(memory_bytes=12 << 30, disk_bytes=48 << 30)
FILE = "a file"
CALLERS = (1, 10, 100, 1_000, 10_000)
RECORDS = 1_000_000
QUEUES = 10_000

Append = Callable[[], Awaitable[object]]
"""Stores so many records as the case says."""


async def drive(calls: Sequence[Append], records: int, seconds: float) -> Figures:
    """Have each of *calls* repeated by its own task for *seconds*; one call stores *records*."""
    latencies: list[float] = []
    clock = time.perf_counter

    async def caller(append: Append, until: float) -> None:
        ended = clock()
        while ended < until or not latencies:
            begun = ended
            await append()
            ended = clock()
            latencies.append(ended - begun)

    cpu, begun = time.process_time(), clock()
    await asyncio.gather(*(caller(append, begun + seconds) for append in calls))
    took, cpu = clock() - begun, time.process_time() - cpu
    latencies.sort()
    stored = len(latencies) * records
    return {
        "records/s": stored / took,
        "ms p50": median(latencies) * 1e3,
        "ms p99": latencies[len(latencies) * 99 // 100] * 1e3,
        "µs CPU": cpu / stored * 1e6,
    }


def appends(
    callers: int, size: int = 100, batch: int = 1, queues: int = 1, policy: PersistPolicy | None = None
) -> Case:
    """Return a case of *callers* tasks that append *batch* records of *size* bytes at a time."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        names = [f"queue-{number}" for number in range(queues)]
        async with MultiRecordLog.open(directory, limits=LIMITS, persist_policy=policy, queues=names) as log:
            payloads = [os.urandom(size) for _ in range(batch)]
            of_caller = [cycle(names[number::callers] or names) for number in range(callers)]

            async def one(following: cycle[str]) -> None:
                await log.append(next(following), payloads[0])

            async def several(following: cycle[str]) -> None:
                await log.append_records(next(following), None, payloads)

            calls = [partial(one if batch == 1 else several, following) for following in of_caller]

            async def measure(seconds: float) -> Figures:
                figures = await drive(calls, batch, seconds)
                stored = [(name, log.next_position(name)) for name in names]
                await asyncio.gather(*(log.truncate(name, following - 1) for name, following in stored if following))
                return figures

            yield measure

    return prepare


def file_of(callers: int, size: int, batch: int = 1) -> Case:
    """Return a case that writes and syncs, one time after the other, what all callers of `appends` would wait for."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        written = os.urandom(size * batch * callers)
        handle = os.open(directory, os.O_RDWR | os.O_CREAT, 0o600)

        async def write() -> None:
            if os.lseek(handle, 0, os.SEEK_CUR) > 1 << 30:
                os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, written)
            os.fdatasync(handle)

        yield lambda seconds: drive([write], callers * batch, seconds)
        os.close(handle)

    return prepare


def with_records(work: Callable[[MultiRecordLog], Awaitable[int]], queues: int = 1) -> Case:
    """Return a case that does *work*, which returns its records, on a log of `RECORDS` in memory."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        policy = PersistPolicy.never()
        names = [f"queue-{number}" for number in range(queues)]
        async with MultiRecordLog.open(directory, limits=LIMITS, persist_policy=policy, queues=names) as log:
            payloads, calls = [b"%0100d" % number for number in range(1_000)], RECORDS // 1_000
            await asyncio.gather(*(log.append_records(names[call % queues], None, payloads) for call in range(calls)))

            async def measure(seconds: float) -> Figures:
                cpu, begun = time.process_time(), time.perf_counter()
                done = await work(log)
                took, cpu = time.perf_counter() - begun, time.process_time() - cpu
                return {"records/s": done / took, "µs CPU": cpu / done * 1e6}

            yield measure

    return prepare


async def read_range(log: MultiRecordLog) -> int:
    """Read record by record."""
    deque((record for name in log.list_queues() for record in log.range(name)), maxlen=0)
    return RECORDS


async def read_runs(log: MultiRecordLog) -> int:
    """Read run by run."""
    deque((run for name in log.list_queues() for run in log.runs(name)), maxlen=0)
    return RECORDS


async def consume(log: MultiRecordLog) -> int:
    """Store records, and read them in batches as a consumer that acknowledges each."""
    name, done = "queue-0", 0
    await log.append_records(name, None, [b"%0100d" % number for number in range(RECORDS // 10)])
    async with log.consumer(name, "reader", create=True) as consumer:
        async for batch in consumer.batches(max_records=1_000, max_wait=0.0):
            done += len(batch)
            await consumer.acknowledge(batch)
            if batch.last_position == log.next_position(name) - 1:
                break
    return done


@asynccontextmanager
async def memory(directory: Path) -> AsyncIterator[Round]:
    """Count the memory of the process for each record that was appended by a call of its own."""
    async with MultiRecordLog.open(directory, limits=LIMITS, persist_policy=PersistPolicy.never()) as log:

        async def measure(seconds: float) -> Figures:
            name = f"queue-{time.monotonic_ns()}"
            await log.create_queue(name)
            before, payloads = _resident_bytes(), [os.urandom(100) for _ in range(1_000)]
            for _ in range(RECORDS // 1_000):
                await asyncio.gather(*(log.append(name, payload) for payload in payloads))
            grown = _resident_bytes() - before
            await log.delete_queue(name)
            return {"records/MiB": RECORDS / grown * (1 << 20), "B over its payload": grown / RECORDS - 100}

        yield measure


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


NEVER, INTERVAL = PersistPolicy.never(), PersistPolicy.interval(0.1)
CASES: dict[str, dict[str, Case]] = {
    **{f"{n:,} callers, 100 B, always": {LOG: appends(n), FILE: file_of(n, 100)} for n in CALLERS},
    **{f"{n:,} callers, 100 B, interval": {LOG: appends(n, policy=INTERVAL)} for n in CALLERS},
    **{f"{n:,} callers, 100 B, never": {LOG: appends(n, policy=NEVER)} for n in CALLERS},
    "16 callers, 16 KiB": {LOG: appends(16, 16 << 10), FILE: file_of(16, 16 << 10)},
    "16 callers, 1 MiB": {LOG: appends(16, 1 << 20), FILE: file_of(16, 1 << 20)},
    "4 callers, batches of 1,000 × 100 B": {LOG: appends(4, 100, 1_000), FILE: file_of(4, 100, 1_000)},
    "1,000 callers, 100 queues": {LOG: appends(1_000, queues=100)},
    f"1,000 callers, {QUEUES:,} queues": {LOG: appends(1_000, queues=QUEUES)},
    "range of 1,000,000 records": {LOG: with_records(read_range)},
    "runs of 1,000,000 records": {LOG: with_records(read_runs)},
    "range, 1,000 queues": {LOG: with_records(read_range, 1_000)},
    "a consumer": {LOG: with_records(consume)},
    "memory, records of 100 B": {LOG: memory},
}


def draw(found: dict[str, Rows], target: Path) -> None:
    """Draw callers against appends per second, a line for each policy."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.4))
    for policy, marker in (("always", "o"), ("interval", "s"), ("never", "D")):
        rounds = [found[f"{callers:,} callers, 100 B, {policy}"][LOG] for callers in CALLERS]
        axes.loglog(CALLERS, [median(one["records/s"] for one in each) for each in rounds], marker=marker, label=policy)
    axes.set(xlabel="callers that wait at the same time", ylabel="appends per second, 100 B each")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target, format="svg", bbox_inches="tight")
