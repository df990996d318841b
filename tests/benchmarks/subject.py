"""The log under test: opened with a recorder in front of the disk, measured in rounds, and read back at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

from mrecordlog_async.bench.drive import Append, Measurement, drive
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import GIB, Limits, PersistPolicy
from mrecordlog_async.readonly import ReadOnlyLog
from tests.benchmarks.latency import Latencies
from tests.benchmarks.raw import FreshDisk, RawDisk, RawMeasurement, RecordingFiles, without_padding
from tests.benchmarks.results import NotReadBackError
from tests.benchmarks.scale import Bench

LIMITS = Limits(memory_bytes=16 * GIB, disk_bytes=64 * GIB)
QUEUE = "bench"


class Caller(NamedTuple):
    """A coroutine's call, and the payloads that each such call stores."""

    append: Append
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Round:
    """The log, and the raw disk with the same writes and syncs; even on fresh blocks where asked for."""

    measurement: Measurement
    raw: RawMeasurement
    fresh: RawMeasurement | None
    records: int
    bytes: int

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.measurement.seconds

    @property
    def raw_rate(self) -> float:
        """Records per second on the raw disk."""
        return self.records / self.raw.seconds


class Subject:
    """A log, the calls it made to the disk, and what must be in the files at the end."""

    def __init__(self, log: MultiRecordLog, files: RecordingFiles, raw: RawDisk) -> None:
        self.log = log
        self.files = files
        self.raw = raw
        self.stored: Counter[bytes] = Counter()

    def one_by_one(self, payloads: Sequence[bytes], queue: str = QUEUE) -> list[Caller]:
        """Return one caller for each of *payloads*, which appends it again and again."""
        return [Caller(partial(self.log.append_record, queue, None, payload), (payload,)) for payload in payloads]

    async def round(self, callers: Sequence[Caller], seconds: float, fresh: FreshDisk | None = None) -> Round:
        """Run *callers*, then the raw disk with the same batches and syncs, then the same on *fresh* blocks."""
        files = self.files
        files.calls.clear()
        marks: list[tuple[int, int]] = []

        def mark() -> None:
            marks.append((len(files.calls), self.log.stats().written_bytes))

        measurement = await drive([caller.append for caller in callers], seconds, mark, mark)
        for caller, calls in zip(callers, measurement.acknowledged, strict=True):
            for payload in caller.payloads:
                self.stored[payload] += calls
        first = callers[0].payloads
        records, size = measurement.calls * len(first), measurement.calls * sum(map(len, first))
        (begin, written_before), (end, written) = marks
        asked = without_padding(files.calls[begin:end], written - written_before)
        raw = await asyncio.to_thread(self.raw.replay, asked)
        unwritten = None if fresh is None else await asyncio.to_thread(fresh.replay, asked)
        return Round(measurement, raw, unwritten, records, size)


@asynccontextmanager
async def raw_disk(bench: Bench) -> AsyncIterator[RawDisk]:
    """Create the raw disk's file, and remove it after the block."""
    raw = await asyncio.to_thread(RawDisk, bench.directory, bench.scale.raw_bytes)
    try:
        yield raw
    finally:
        await asyncio.to_thread(raw.close)


@asynccontextmanager
async def subject(
    bench: Bench,
    raw: RawDisk,
    name: str = "log",
    policy: PersistPolicy | None = None,
    queues: Sequence[str] = (QUEUE,),
    segment_bytes: int = GIB,
) -> AsyncIterator[Subject]:
    """Open a log in its own directory with *queues*; after the block close it and read it back."""
    files, directory = RecordingFiles(), bench.path(name)
    async with MultiRecordLog.open(
        directory, persist_policy=policy, limits=LIMITS, segment_bytes=segment_bytes, filesystem=files
    ) as log:
        for at in range(0, len(queues), 10_000):
            await asyncio.gather(*map(log.create_queue, queues[at : at + 10_000]))
        opened = Subject(log, files, raw)
        yield opened
    await asyncio.to_thread(_compare, directory, opened.stored)


def rate_of(rounds: Sequence[Round]) -> float:
    """Return the median of the rounds' records per second."""
    return median(one.rate for one in rounds)


def raw_rate_of(rounds: Sequence[Round]) -> float:
    """Return the median of the raw disk's records per second."""
    return median(one.raw_rate for one in rounds)


def ratio_of(rounds: Sequence[Round]) -> float:
    """Return the median of the rounds' ratios to the raw disk."""
    return median(ratios_of(rounds))


def ratios_of(rounds: Sequence[Round]) -> tuple[float, ...]:
    """Return the ratio of each round to the raw disk."""
    return tuple(one.rate / one.raw_rate for one in rounds)


def fresh_note(rounds: Sequence[Round]) -> str:
    """Compare the log with a disk whose blocks were never written, in words; empty where that was not measured."""
    fresh = [(one, one.fresh) for one in rounds if one.fresh is not None]
    if not fresh:
        return ""
    rate = median(one.bytes / disk.seconds for one, disk in fresh) / 1e6
    share = median(disk.seconds / one.measurement.seconds for one, disk in fresh)
    return f"on reserved blocks that were never written, the raw disk does {rate:,.0f} MB/s; the log: {share:.0%}"


def cpu_microseconds_of(rounds: Sequence[Round]) -> float:
    """Return the median CPU time of the process per record."""
    return median(one.measurement.cpu_seconds * 1e6 / one.records for one in rounds)


def latencies_of(rounds: Sequence[Round]) -> Latencies:
    """Return the quantiles of all rounds' latencies."""
    return Latencies.of([seconds for one in rounds for seconds in one.measurement.latencies])


def raw_latencies_of(rounds: Sequence[Round]) -> Latencies:
    """Return the quantiles of the raw disk's latencies in all rounds."""
    return Latencies.of([seconds for one in rounds for seconds in one.raw.latencies] or [0.0])


def _compare(directory: str, stored: Counter[bytes]) -> None:
    found: Counter[bytes] = Counter()
    with ReadOnlyLog.open(directory) as log:
        for queue in log.list_queues():
            for run in log.runs(queue):
                found.update(run.payloads())
    check_read_back(directory, stored, found)


def check_read_back(name: str, stored: Counter[bytes], found: Counter[bytes]) -> None:
    """Raise unless *found* is what was *stored*, record by record."""
    stored = +stored
    if stored != found:
        raise NotReadBackError(
            f"{name}: {stored.total()} records were acknowledged, {found.total()} are in the files, "
            f"{(stored & found).total()} of them as acknowledged"
        )
