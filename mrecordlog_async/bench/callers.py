"""The log under more and more callers, in rounds that alternate with the disk alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from mrecordlog_async.bench.disk import DiskProbe
from mrecordlog_async.bench.drive import Measurement, drive, payloads, quantile
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import GIB, Limits
from mrecordlog_async.readonly import ReadOnlyLog

CALLERS = (1, 10, 100, 1_000)
RECORD_BYTES = 100
QUEUE = "bench"
LIMITS = Limits(memory_bytes=16 * GIB, disk_bytes=64 * GIB)
SYNC_SHARE = 0.2
"""The disk alone gets this part of a round's time."""


class NotReadBackError(RecordLogError):
    """The files do not hold what was acknowledged."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of *callers* coroutines that each wait for an append of 100 bytes before the next one.

    Attributes:
        appends_per_second: median of the rounds.
        p50_seconds, p99_seconds: from the call to the acknowledgement.
        syncs: p50 over that of one sync on the disk alone; the median of the rounds' ratios.
    """

    callers: int
    appends_per_second: float
    p50_seconds: float
    p99_seconds: float
    syncs: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The disk alone (4 KiB written and synced, in seconds), and the log on it."""

    sync_p50_seconds: float
    sync_p99_seconds: float
    speeds: tuple[Speed, ...]


async def measure(directory: str, seconds: float, rounds: int, say: Callable[[str], object]) -> Measured:
    """Measure in *directory*, which is empty. Each number of callers gets *rounds* of *seconds*.

    Raises:
        NotReadBackError: another reader did not find each acknowledged record in the files.
    """
    place = os.path.join(directory, "wal")
    probe = await asyncio.to_thread(DiskProbe, directory)
    syncs: list[float] = []
    speeds, stored = [], 0
    try:
        async with MultiRecordLog.open(place, limits=LIMITS) as log:
            await log.create_queue(QUEUE)
            for count in CALLERS:
                say(f"{count:,} callers" if count > 1 else "1 caller")
                ratios, measured = [], []
                for _ in range(rounds):
                    alone = await asyncio.to_thread(probe.measure, seconds * SYNC_SHARE)
                    one = await _append(log, count, seconds)
                    ratios.append(median(one.latencies) / median(alone))
                    measured.append(one)
                    syncs += alone
                    stored += one.acknowledged_calls
                speeds.append(_speed(count, measured, ratios))
    finally:
        await asyncio.to_thread(probe.close)
    await asyncio.to_thread(check_read_back, place, stored)
    syncs.sort()
    return Measured(quantile(syncs, 0.5), quantile(syncs, 0.99), tuple(speeds))


async def _append(log: MultiRecordLog, callers: int, seconds: float) -> Measurement:
    appends = [partial(log.append_record, QUEUE, None, payload) for payload in payloads(callers, RECORD_BYTES)]
    return await drive(appends, seconds)


def _speed(callers: int, rounds: list[Measurement], ratios: list[float]) -> Speed:
    latencies = sorted(seconds for one in rounds for seconds in one.latencies)
    p50, p99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
    return Speed(callers, median(one.rate for one in rounds), p50, p99, median(ratios))


def check_read_back(directory: str, stored: int) -> None:
    """Raise NotReadBackError unless another reader finds *stored* records in the files."""
    with ReadOnlyLog.open(directory) as log:
        found = sum(run.record_count for run in log.runs(QUEUE))
    if found != stored:
        raise NotReadBackError(f"{stored} records were acknowledged, {found} are in the files of {directory}")
