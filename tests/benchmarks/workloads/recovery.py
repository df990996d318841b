"""Opening a log: how fast its segments are read, and whether the event loop stalls meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.bench.drive import duration
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import KIB, MIB, PersistPolicy
from tests.benchmarks.probe import StallProbe
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import LIMITS, QUEUE
from tests.benchmarks.targets import JudgedRow, at_least, at_most
from tests.benchmarks.workloads.reads import fill

SEGMENTS = 12
"""The last segment is dropped from the page cache before it is read, so all but one of them are warm."""
PIECE_BYTES = 4 * MIB
TIMES = 3
STALL_SECONDS = 0.010
"""Two of the interpreter's switch intervals (5 ms): what a loop must expect while another thread runs Python."""


class Opened(NamedTuple):
    """One opening. rate: of the log, in MB/s, as raw_rate, of plain reads of its files; stall: the longest, seconds."""

    rate: float
    raw_rate: float
    stall: float


async def run(bench: Bench) -> list[Row]:
    """Open logs of 1 KiB and of 100 B records with a warm cache."""
    return [await _recover(bench, KIB, "1 KiB", 1_500), await _recover(bench, 100, "100 B", 500)]


async def _recover(bench: Bench, size: int, name: str, target: int) -> Row:
    """Open a log of records of *size*; *target* is in MB/s."""
    directory = bench.path(f"log-{size}")
    segment_bytes = max(bench.scale.recovery_bytes // SEGMENTS, 64 * KIB)
    records = bench.scale.recovery_bytes // size
    bench.say(f"filling {records:,} × {name}")
    async with MultiRecordLog.open(
        directory, persist_policy=PersistPolicy.never(), limits=LIMITS, segment_bytes=segment_bytes
    ) as log:
        await fill(log, QUEUE, records, size)
        segments = log.resource_usage().segments
    found = []
    for number in range(TIMES):
        bench.say(f"opening {records:,} × {name}, {number + 1} of {TIMES}")
        found.append(await _open(directory, segment_bytes, records))
    return _row(f"{records:,} × {name}, {segments} segments", name, target, found)


async def _open(directory: str, segment_bytes: int, records: int) -> Opened:
    raw = await asyncio.to_thread(_read_rate, directory)
    with StallProbe() as probe:
        log = await MultiRecordLog.open(directory, limits=LIMITS, segment_bytes=segment_bytes)
    try:
        report = log.recovery_report
        assert report.records == records and log.next_position(QUEUE) == records, "recovery lost records"
        return Opened(report.bytes / report.seconds / 1e6, raw, probe.longest_seconds)
    finally:
        await log.close()


def _row(what: str, name: str, target: int, found: Sequence[Opened]) -> Row:
    rate, raw = max(one.rate for one in found), max(one.raw_rate for one in found)
    stall = min(one.stall for one in found)
    rate_target = f"recovery, warm cache, {name}: ≥ {'1.5 GB/s' if target == 1_500 else '500 MB/s'}"
    stall_target = f"recovery, {name}: the loop never stalls (≤ 10 ms, two switch intervals)"
    return JudgedRow(
        "recovery",
        what,
        rate,
        "MB/s",
        raw=raw,
        ratio=rate / raw,
        checks=(
            at_least(rate_target, rate, target, f"{rate:,.0f} MB/s", of_times=True),
            at_most(stall_target, stall, STALL_SECONDS, duration(stall), of_times=True),
        ),
        note=f"raw: the files read with pread; longest loop stall {duration(stall)}; best of {TIMES}, the first, "
        f"which takes all its memory from the system: {found[0].rate:,.0f} MB/s",
    )


def _read_rate(directory: str) -> float:
    """Read the segments in pieces and keep nothing; MB/s."""
    total, begun = 0, time.perf_counter()
    for name in sorted(os.listdir(directory)):
        if name.startswith("wal-") and not name.endswith(".tmp"):
            total += _read(os.path.join(directory, name))
    return total / (time.perf_counter() - begun) / 1e6


def _read(path: str) -> int:
    handle, offset = os.open(path, os.O_RDONLY), 0
    try:
        while piece := os.pread(handle, PIECE_BYTES, offset):
            offset += len(piece)
    finally:
        os.close(handle)
    return offset
