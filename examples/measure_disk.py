"""Measure your disk, and how many appends per second a log stores on it.

    pip install mrecordlog_async
    python examples/measure_disk.py /var/lib/app

The table is the log with 1 to 1,000 callers that each append 100 bytes and wait until they are durable. The last line
is the disk alone: 4 KiB written and synced by one thread. Both take turns, because the speed of a shared disk drifts.
Run it on the file system that will hold the log, with nothing else running.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median, quantiles

from mrecordlog_async import MultiRecordLog

CALLERS, ROUNDS, SECONDS = (1, 10, 100, 1_000), 10, 0.5
WRITE_BYTES, FILE_BYTES = 4_096, 4 << 20


def syncs(path: str, seconds: float) -> Iterator[float]:
    """Yield how long each write with a sync takes, into blocks that were written before."""
    with open(path, "w+b", buffering=0) as file:
        file.write(bytes(FILE_BYTES))
        os.fsync(file)
        end, offset = time.perf_counter() + seconds, 0
        while (begun := time.perf_counter()) < end or not offset:
            os.pwrite(file.fileno(), os.urandom(WRITE_BYTES), offset)
            os.fdatasync(file)
            yield time.perf_counter() - begun
            offset = (offset + WRITE_BYTES) % FILE_BYTES


async def appends(log: MultiRecordLog, callers: int, seconds: float) -> list[float]:
    """Have *callers* append for *seconds*; return how long each append took."""
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async def call() -> None:
        while (begun := time.perf_counter()) < end or not taken:
            await log.append("bench", os.urandom(100))
            taken.append(time.perf_counter() - begun)

    await asyncio.gather(*(call() for _ in range(callers)))
    return taken


def in_ms(taken: list[float], percent: int) -> str:
    return f"{quantiles(taken, n=100, method='inclusive')[percent - 1] * 1e3:8.2f} ms"


async def measure(directory: str) -> None:
    alone: list[float] = []
    with tempfile.TemporaryDirectory(prefix="measure-disk-", dir=directory) as place:
        async with MultiRecordLog.open(f"{place}/wal", queues=["bench"]) as log:
            print("callers  appends/s         p50         p99  p50 in syncs")
            for callers in CALLERS:
                rounds: list[list[float]] = []
                ratios: list[float] = []
                for _ in range(ROUNDS):
                    disk = await asyncio.to_thread(lambda: list(syncs(f"{place}/probe", SECONDS / 5)))
                    rounds.append(await appends(log, callers, SECONDS))
                    ratios.append(median(rounds[-1]) / median(disk))
                    alone += disk
                taken = [seconds for one in rounds for seconds in one]
                rate, p50, p99 = median(map(len, rounds)) / SECONDS, in_ms(taken, 50), in_ms(taken, 99)
                print(f"{callers:7,} {rate:10,.0f} {p50} {p99} {median(ratios):13.2f}", flush=True)
    print(f"the disk alone, 4 KiB and a sync: p50 {in_ms(alone, 50).strip()}, p99 {in_ms(alone, 99).strip()}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(__doc__)
    asyncio.run(measure(sys.argv[1]))
