"""Readers of a log that is on the disk, next to readers of one in memory: `python -m tests.spark.reading_back`.

Two services have the same records: one keeps 64 MiB of them in memory, the other one all. A drain into a Delta table,
and both Python clients, read them in turns, each time with nothing of the files in the page cache. Printed are rates,
and the CPU time of all processes, from the disk as a part of those from memory.

Then the drain reads from the disk again and again, while one record after the other is appended to that service, and
to one that does nothing else: the ratio of their p99.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.benchmarks.process_cpu import cpu_of
from tests.benchmarks.serving import serve_command, serving
from tests.benchmarks.workloads.spark_drain import QUEUES, fill

MEMORY = ("--memory-bytes", "64MiB", "--beyond-memory", "disk")
APPEND_PAUSE_SECONDS = 0.005

Read = Callable[[Path], object]


def with_client(url: str, records: int) -> None:
    """Read everything with the client for asyncio, a queue after the other."""

    async def read() -> int:
        async with RecordLogClient(url) as client:
            found = 0
            for queue in range(QUEUES):
                async for runs, _ in client.timed_runs(f"queue-{queue}"):
                    found += sum(run.record_count for run in runs)
            return found

    assert asyncio.run(read()) == records


def with_blocking_client(url: str, records: int) -> None:
    """Read everything with the blocking client, a queue after the other."""
    with BlockingRecordLogClient(url) as client:
        found = sum(
            run.record_count
            for queue in range(QUEUES)
            for runs, _ in client.timed_runs(f"queue-{queue}")
            for run in runs
        )
    assert found == records


def reading(read: Callable[[str, int], None], url: str, records: int) -> Read:
    """Return a function that reads from *url*, and needs no place."""
    return lambda _: read(url, records)


def draining(session: SparkSession, url: str, records: int) -> Read:
    """Return a function that drains the queues of `fill` into a table, and leaves them as they are."""
    limits = {"maxRecordsPerTrigger": str(records), "maxBytesPerTrigger": str(1 << 40)}

    def drain(target: Path) -> None:
        paths = str(target / "table"), str(target / "checkpoint")
        job = DrainJob(f"log={url}", *paths, truncate=False, options={**limits, "subscribePattern": "queue-.*"})
        assert run_drain(session, job).records == records

    return drain


def forget(directory: Path) -> None:
    """Drop the files of a log from the page cache."""
    for path in directory.iterdir():
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(read: Read, place: Path) -> tuple[float, float]:
    """Return the seconds that *read* takes, and the CPU seconds of this process and all others that it has started."""
    cpu, begun = sum(cpu_of(os.getpid()).values()), time.perf_counter()
    read(place)
    took = time.perf_counter() - begun, sum(cpu_of(os.getpid()).values()) - cpu
    shutil.rmtree(place, ignore_errors=True)
    return took


def compare(name: str, reads: tuple[Read, Read], log: Path, place: Path, rounds: int) -> None:
    """Read from the disk and from memory in turns; print the ratios."""
    found: list[list[tuple[float, float]]] = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        taken = {}
        for at in order:
            forget(log)
            taken[at] = timed(reads[at], place / f"{number}-{at}")
        if number:  # the first one warms up
            found.append([taken[0], taken[1]])
    rates = [memory[0] / disk[0] for disk, memory in found]
    cpus = [disk[1] / memory[1] for disk, memory in found]
    print(
        f"{name}: rate from the disk {median(rates):.2f} x that from memory ({min(rates):.2f} to {max(rates):.2f}); "
        f"CPU {median(cpus):.2f} x ({min(cpus):.2f} to {max(cpus):.2f}); "
        f"{median(disk[0] for disk, _ in found):.1f} s and {median(disk[1] for disk, _ in found):.1f} s of CPU",
        flush=True,
    )


def append_meanwhile(urls: tuple[str, str], read: Read, log: Path, place: Path, rounds: int) -> None:
    """Append to both services, in turns, while *read* empties the first one; print the ratio of the p99."""
    taken: tuple[list[float], list[float]] = ([], [])
    done = threading.Event()

    def append() -> None:
        with BlockingRecordLogClient(urls[0]) as busy, BlockingRecordLogClient(urls[1]) as idle:
            for client in (busy, idle):
                client.create_queue("appended", exist_ok=True)
            while not done.is_set():
                for client, seconds in zip((busy, idle), taken, strict=True):
                    begun = time.perf_counter()
                    client.append("appended", bytes(200))
                    seconds.append(time.perf_counter() - begun)
                    time.sleep(APPEND_PAUSE_SECONDS)

    appending = threading.Thread(target=append)
    appending.start()
    try:
        for number in range(rounds):
            forget(log)
            timed(read, place / f"meanwhile-{number}")
    finally:
        done.set()
        appending.join()
    p50, p99 = ([sorted(each)[int(len(each) * part)] for each in taken] for part in (0.5, 0.99))
    print(
        f"{len(taken[0]):,} appends during a drain from the disk: p50 {p50[0] * 1e3:.1f}, p99 {p99[0] * 1e3:.1f} ms; "
        f"to an idle service: {p50[1] * 1e3:.1f}, {p99[1] * 1e3:.1f} ms; p99 {p99[0] / p99[1]:.2f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where the logs are made")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory)))
        log, records, rounds = place / "disk", arguments.records, arguments.rounds
        for name in ("disk", "memory"):
            records = asyncio.run(fill(str(place / name), records))
        urls = (
            stack.enter_context(serving([*serve_command(str(log)), *MEMORY])),
            stack.enter_context(serving(serve_command(str(place / "memory")))),
        )
        idle = stack.enter_context(serving(serve_command(str(place / "idle"))))
        for name, read in (("client", with_client), ("blocking client", with_blocking_client)):
            compare(name, (reading(read, urls[0], records), reading(read, urls[1], records)), log, place, rounds)
        session = spark_session("back", master="local[2]", settings={"spark.ui.enabled": "false"})
        stack.callback(session.stop)
        session.sparkContext.setLogLevel("OFF")
        drains = (draining(session, urls[0], records), draining(session, urls[1], records))
        compare("drain", drains, log, place, rounds)
        append_meanwhile((urls[0], idle), drains[0], log, place, rounds)


if __name__ == "__main__":
    main()
