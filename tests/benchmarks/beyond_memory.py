"""Measure a log whose records are mostly on the disk next to one that keeps all in memory.

Each log runs in its own process; the two take turns, with equal segments, so that a busy disk slows both. Producers
offer records at a fixed rate, whether or not the log keeps up, and nobody reads meanwhile.

* few: 8 producers append 64 KiB, in records of 1 KiB, to a queue each.
* many: records of 1,000 bytes are appended one by one, 2,000 at a time, to all queues in turn.

Then the log beyond memory is read from its first record to its last with nothing of it in the page cache, next to a
plain reader of the same files, and the other one from memory; and it is opened again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.bench.disk import machine
from mrecordlog_async.bench.drive import quantile
from mrecordlog_async.support.event_loop import loop_factory
from tests.benchmarks.idle_process import IdleProcess
from tests.benchmarks.neighbors import Neighbors
from tests.benchmarks.probe import StallProbe

MIB = 1 << 20
PRODUCERS = 8
SINGLES = 2_000
PIECE_BYTES = MIB
OPEN_MARGIN = 4 << 30
"""Memory of the log that keeps all, in addition to what is stored."""

Figures = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="where the logs are made")
    parser.add_argument("--memory", type=int, default=512, metavar="MIB", help="of the log beyond memory")
    parser.add_argument("--total", type=int, default=2_048, metavar="MIB", help="payload that is stored")
    parser.add_argument("--segment", type=int, default=128, metavar="MIB", help="of both logs")
    parser.add_argument("--rate", type=float, default=60, metavar="MB/S", help="payload offered per second")
    parser.add_argument("--queues", type=int, default=PRODUCERS, help="from 1,000 on: records one by one (many)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["disk"], help="leave out the log that keeps all in memory")


def run(arguments: argparse.Namespace) -> int:
    """Measure both logs in turn; print a line for each, and the ratios."""
    kinds = ["disk"] if arguments.only else ["disk", "refuse"]
    found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    print(machine(arguments.directory))
    for number in range(arguments.rounds):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            figures = _in_a_process({**vars(arguments), "kind": kind, "run": None})
            found[kind].append(figures)
            print(f"{'beyond memory' if kind == 'disk' else 'in memory':>13}: {json.dumps(figures)}", flush=True)
    if len(kinds) == 2:
        for name in (
            "stored MB/s",
            "p50 ms",
            "p99 ms",
            "stall ms",
            "RSS MiB",
            "CPU s/GB",
            "read MB/s",
            "read CPU s/GB",
        ):
            ratios = [a[name] / b[name] for a, b in zip(*found.values(), strict=True)]
            print(f"{name}: {median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


def _in_a_process(settings: Figures) -> Figures:
    words = [sys.executable, "-m", __name__, json.dumps(settings)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    found: Figures = json.loads(done.stdout)
    return found


async def _measure(settings: Figures) -> Figures:
    with tempfile.TemporaryDirectory(dir=settings["directory"]) as directory:
        beyond = settings["kind"] == "disk"
        total = settings["total"] * MIB
        limits = Limits(
            memory_bytes=settings["memory"] * MIB if beyond else total + OPEN_MARGIN,
            disk_bytes=3 * total + OPEN_MARGIN,
            beyond_memory=settings["kind"],
        )
        log = await MultiRecordLog.open(directory, limits=limits, segment_bytes=settings["segment"] * MIB)
        names = [f"q{number}" for number in range(settings["queues"])]
        await log.create_queues(names)
        found = await _fill(log, names, total, settings["rate"] * 1e6)
        found |= await _read(log, names, directory, beyond)
        await log.close()
        if beyond:
            begun, cpu = time.perf_counter(), time.process_time()
            log = await MultiRecordLog.open(directory, limits=limits, segment_bytes=settings["segment"] * MIB)
            found["open s"] = round(time.perf_counter() - begun, 2)
            found["open CPU s"] = round(time.process_time() - cpu, 2)
            found["replayed MB"] = round(log.recovery_report.bytes / 1e6)
            await log.close()
    return found


async def _fill(log: MultiRecordLog, names: list[str], total: int, rate: float) -> Figures:
    """Offer *total* bytes at *rate*; return who waited, and what it took."""
    latencies: list[float] = []
    producing = _many if len(names) >= 1_000 else _few
    with Neighbors() as neighbors:
        async with IdleProcess() as idle:
            with StallProbe() as probe:
                begun, cpu = time.perf_counter(), time.process_time()
                await producing(log, names, total, rate, latencies)
                took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    latencies.sort()
    return {
        "stored MB/s": round(total / took / 1e6, 1),
        "p50 ms": round(quantile(latencies, 0.5) * 1e3, 2),
        "p99 ms": round(quantile(latencies, 0.99) * 1e3, 2),
        "longest ms": round(latencies[-1] * 1e3, 1),
        "stall ms": round(probe.longest_seconds * 1e3, 1),
        "idle process ms": round(idle.longest_seconds * 1e3, 1),
        "RSS MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "CPU s/GB": round(cpu / (total / 1e9), 2),
        "refused": sum(log.stats().refused.values()),
        "others": round(neighbors.share, 2),
    }


Producing = Callable[[MultiRecordLog, list[str], int, float, list[float]], Awaitable[None]]


async def _few(log: MultiRecordLog, names: list[str], total: int, rate: float, latencies: list[float]) -> None:
    """Append 64 KiB to each of the queues, again and again."""
    blob = os.urandom(64 * 1024)
    records = [blob[at : at + 1024] for at in range(0, len(blob), 1024)]
    begun, interval = time.perf_counter(), len(names) * len(blob) / rate

    async def produce(name: str) -> None:
        for number in range(total // len(names) // len(blob)):
            await asyncio.sleep(max(0.0, begun + number * interval - time.perf_counter()))
            sent = time.perf_counter()
            await log.append_records(name, None, records)
            latencies.append(time.perf_counter() - sent)

    await asyncio.gather(*map(produce, names))


async def _many(log: MultiRecordLog, names: list[str], total: int, rate: float, latencies: list[float]) -> None:
    """Append a record of 1,000 bytes to one queue after the other, `SINGLES` at a time by four producers."""
    record = os.urandom(1_000)
    begun, interval, share = time.perf_counter(), SINGLES * len(record) / rate, SINGLES // 4
    groups = total // len(record) // SINGLES

    async def one(name: str) -> None:
        sent = time.perf_counter()
        await log.append_record(name, None, record)
        latencies.append(time.perf_counter() - sent)

    async def produce(number: int) -> None:
        at = number * (len(names) // 4)
        for group in range(groups):
            await asyncio.sleep(max(0.0, begun + (group + number / 4) * interval - time.perf_counter()))
            async with asyncio.TaskGroup() as tasks:
                for step in range(share):
                    tasks.create_task(one(names[(at + step) % len(names)]))
            at += share

    await asyncio.gather(*map(produce, range(4)))


async def _read(log: MultiRecordLog, names: list[str], directory: str, beyond: bool) -> Figures:
    """Read all records as batches of 1 MiB; return the rate, and that of a plain reader of the same files."""
    found: Figures = {}
    if beyond:
        files = list(Path(directory).glob("wal-*.runs"))
        found["bare read MB/s"] = round(_bare_read(files) / 1e6)
        _forget(Path(directory))
    begun, cpu, size = time.perf_counter(), time.process_time(), 0
    for name in names:
        position = 0
        while (batch := await log.fetch(name, position, max_records=100_000, max_bytes=PIECE_BYTES)) is not None:
            size += sum(map(len, batch.payloads()))
            position = batch.next_position
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    found["read MB/s"] = round(size / took / 1e6)
    found["read CPU s/GB"] = round(cpu / (size / 1e9), 2)
    return found


def _bare_read(files: list[Path]) -> float:
    """Return the bytes per second of a thread that reads *files*, none of which is in the page cache."""
    piece = bytearray(PIECE_BYTES)
    size, took = 0, 0.0
    for path in files:
        _forget(path)
        with path.open("rb", buffering=0) as file:
            begun = time.perf_counter()
            while read := file.readinto(piece):
                size += read
            took += time.perf_counter() - begun
    return size / took if took else 0.0


def _forget(path: Path) -> None:
    """Drop a file, or those in a directory, from the page cache."""
    for each in [path] if path.is_file() else path.iterdir():
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(_measure(json.loads(sys.argv[1])))))
