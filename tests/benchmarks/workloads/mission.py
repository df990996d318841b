"""The workload this log is made for: 60 MB/s for a minute, while the last minute is retained.

1. Fill the queue with what a minute brings, as fast as it goes; that part is not measured.
2. Then records are due by the clock, whatever the log does. Each is its own task, as a request would be, at most
   1,000 at a time, as a server has this many connections; its latency counts from the moment it was due. A log that
   cannot hold the rate shows it in the latencies and in the time until the last record is stored.
3. Ten times per second what is older than a minute is truncated. Memory, CPU and the longest stall of the event loop
   are those of the whole process, load generator included. A second process does nothing but watch the clock
   meanwhile: what delays that is the machine, not the log.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mrecordlog_async.bench.drive import duration, payloads
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.readonly import ReadOnlyLog
from tests.benchmarks.idle_process import IdleProcess
from tests.benchmarks.latency import Latencies
from tests.benchmarks.page_cache import cached_bytes
from tests.benchmarks.probe import StallProbe, resident_bytes
from tests.benchmarks.raw import SYNC, RawDisk, RecordingFiles
from tests.benchmarks.results import NotReadBackError, Row
from tests.benchmarks.scale import Bench, Scale
from tests.benchmarks.subject import LIMITS, QUEUE, raw_disk
from tests.benchmarks.targets import Check, JudgedRow, at_least, at_most

PAYLOAD_BYTES = 1_000
FILL_RECORDS = 1_000
FILL_CALLERS = 4
TRUNCATE_SECONDS = 0.1
TICK_SECONDS = 0.001
CONNECTIONS = 1_000
SENT_AT_ONCE = 128
"""Records sent in one turn of the event loop. After a slow sync a thousand are due; sending them all in one turn took 6
to 20 ms, which was then reported as a stall of the log."""
GIVE_UP = 2
"""After this many times the planned time, the log has failed to hold the rate."""
STALL_SECONDS = 0.005
RSS_SHARE = 1.03
CACHE_SHARE = 0.1
DIFFERENT = 256
"""The number of different payloads; each record gets its own bytes object."""


@dataclass(slots=True)
class Arrivals:
    """Records that arrive by the clock."""

    log: MultiRecordLog
    texts: Sequence[bytes]
    rate: float
    latencies: array[float] = field(default_factory=lambda: array("f"))  # a list would be 4 % of the memory
    sent: int = 0
    waiting: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, seconds: float) -> float:
        """Send what is due within *seconds*, wait until it is stored, and return the seconds it took."""
        clock = time.perf_counter
        begun = clock()
        total = int(seconds * self.rate)
        while self.sent < total and clock() - begun < GIVE_UP * seconds:
            due = min(int((clock() - begun) * self.rate), total)
            stop = min(due, self.sent + SENT_AT_ONCE)
            while self.sent < stop and len(self.waiting) < CONNECTIONS:
                task = asyncio.create_task(self._send(begun + self.sent / self.rate, self.sent))
                self.waiting.add(task)
                task.add_done_callback(self.waiting.discard)
                self.sent += 1
            await asyncio.sleep(0 if self.sent == stop < due else TICK_SECONDS)
        await asyncio.gather(*self.waiting)
        return clock() - begun

    async def _send(self, due: float, number: int) -> None:
        # A fresh object, as a server gets it: a shared one would not count in memory.
        payload = bytes(bytearray(self.texts[number % len(self.texts)]))
        await self.log.append_record(QUEUE, None, payload)
        self.latencies.append(time.perf_counter() - due)


@dataclass(slots=True)
class Found:
    """What was measured.

    Attributes:
        taken: seconds until the last record was stored.
        stall, idle_stall: longest stall of the event loop, and of a process next to it that does nothing.
        resident: highest resident memory of the process, in bytes.
        cached: bytes of the log's files that were in the page cache at the end; None where the system does not say.
        raw_rate: records per second that the raw disk would have carried.
        syncs: how long the log's syncs took.
    """

    retained: int
    sent: int
    latencies: Sequence[float]
    taken: float
    cpu_seconds: float
    stall: float
    idle_stall: float
    resident: int
    cached: int | None
    syncs: Latencies
    raw_rate: float = 0.0


async def run(bench: Bench) -> list[Row]:
    """Fill, then hold the rate while older records are truncated."""
    scale, files, directory = bench.scale, RecordingFiles(), bench.path("log")
    retained = int(scale.mission_rate / PAYLOAD_BYTES * scale.mission_retained_seconds)
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=files) as log:
        found = await _hold(bench, log, files, retained)
        await log.sync()  # a truncate whose caller was cancelled is carried out all the same
        first, next_position = log.first_position(QUEUE), log.next_position(QUEUE)
        calls = list(files.calls)
    await asyncio.to_thread(_compare, directory, retained + found.sent, first, next_position)
    async with raw_disk(bench) as raw:
        found.raw_rate = await asyncio.to_thread(_raw_rate, raw, calls, found.sent)
    return [_row(scale, found)]


async def _hold(bench: Bench, log: MultiRecordLog, files: RecordingFiles, retained: int) -> Found:
    """Fill the queue, then send by the clock."""
    scale, texts = bench.scale, payloads(DIFFERENT, PAYLOAD_BYTES)
    bench.say(f"retaining {retained * PAYLOAD_BYTES / 1e9:.2f} GB")
    await _fill(log, texts, retained)
    bench.say(f"{scale.mission_rate / 1e6:.0f} MB/s for {scale.mission_seconds:g} s")
    files.calls.clear()
    files.sync_seconds.clear()
    arrivals = Arrivals(log, texts, scale.mission_rate / PAYLOAD_BYTES)
    peak = [resident_bytes()]
    async with IdleProcess() as idle_process:
        keeping = asyncio.create_task(_keep(bench, log, retained, peak))
        cpu = time.process_time()
        with StallProbe() as probe:
            taken = await arrivals.run(scale.mission_seconds)
        cpu = time.process_time() - cpu
    keeping.cancel()
    with suppress(asyncio.CancelledError):
        await keeping
    return Found(
        retained=retained,
        sent=arrivals.sent,
        latencies=arrivals.latencies,
        taken=taken,
        cpu_seconds=cpu,
        stall=probe.longest_seconds,
        idle_stall=idle_process.longest_seconds,
        resident=max(*peak, resident_bytes()),
        cached=await asyncio.to_thread(_cached_bytes, bench.path("log")),
        syncs=Latencies.of(files.sync_seconds),
    )


async def _fill(log: MultiRecordLog, texts: Sequence[bytes], records: int) -> None:
    await log.create_queue(QUEUE)
    left = [records]

    async def caller() -> None:
        while left[0] > 0:
            count = min(FILL_RECORDS, left[0])
            left[0] -= count
            await log.append_records(QUEUE, None, [texts[number % DIFFERENT] for number in range(count)])

    await asyncio.gather(*(caller() for _ in range(FILL_CALLERS)))


async def _keep(bench: Bench, log: MultiRecordLog, retained: int, peak: list[int]) -> None:
    """Truncate what exceeds the retained records, and record the memory."""
    ticks = 0
    while True:
        await asyncio.sleep(TRUNCATE_SECONDS)
        oldest = log.next_position(QUEUE) - retained
        if oldest > log.first_position(QUEUE):
            await log.truncate(QUEUE, oldest - 1)
        peak.append(resident_bytes())
        ticks += 1
        if ticks % 100 == 0:
            bench.say(f"{ticks * TRUNCATE_SECONDS:.0f} s of {bench.scale.mission_seconds:.0f} s")


def _raw_rate(raw: RawDisk, calls: Sequence[int], records: int) -> float:
    """Return the records per second that the raw disk would carry, from the first tenth of the calls."""
    part = calls[: max(len(calls) // 10, 2)]
    bytes_all = sum(call for call in calls if call != SYNC)
    bytes_part = sum(call for call in part if call != SYNC)
    return records * bytes_part / bytes_all / raw.replay(part).seconds


def _compare(directory: str, appended: int, first: int, next_position: int) -> None:
    """Raise unless the files hold what is retained, at its positions and with all its bytes."""
    with ReadOnlyLog.open(directory) as log:
        found = (log.first_position(QUEUE), log.next_position(QUEUE), log.queue_summary(QUEUE).bytes)
    if next_position != appended or found != (first, next_position, (next_position - first) * PAYLOAD_BYTES):
        raise NotReadBackError(f"{appended} records were acknowledged; the files hold {found[0]} to {found[1]}")


def _cached_bytes(directory: str) -> int | None:
    try:
        return cached_bytes(directory)
    except (OSError, AttributeError):
        return None


def _row(scale: Scale, found: Found) -> Row:
    latency, rate = Latencies.of(found.latencies), found.sent / found.taken
    what = (
        f"{scale.mission_rate / 1e6:.0f} MB/s for {scale.mission_seconds:g} s, "
        f"{found.retained * PAYLOAD_BYTES / 1e9:.2f} GB retained"
    )
    cached = "unknown" if found.cached is None else f"{found.cached / 1e9:.2f} GB"
    return JudgedRow(
        "mission",
        f"{what}, 1,000 B",
        rate,
        "records/s",
        raw=found.raw_rate,
        ratio=rate / found.raw_rate,
        latency=latency,
        cpu_microseconds=found.cpu_seconds * 1e6 / found.sent,
        checks=_checks(scale, found, latency, what),
        note=f"CPU {found.cpu_seconds / found.taken:.0%} of one core with the load generator; longest loop stall "
        f"{duration(found.stall)}, {duration(found.idle_stall)} in a process next to it that does nothing; RSS "
        f"{found.resident / 1e9:.2f} GB; page cache {cached}; the disk's part: syncs with p50 "
        f"{duration(found.syncs.p50)}, p99 {duration(found.syncs.p99)}, longest {duration(found.syncs.longest)}",
        histogram=True,
    )


def _checks(scale: Scale, found: Found, latency: Latencies, what: str) -> tuple[Check, ...]:
    achieved, wanted = found.sent * PAYLOAD_BYTES / found.taken / 1e6, scale.mission_rate / 1e6
    retained = found.retained * PAYLOAD_BYTES
    memory = found.resident / retained
    checks = [
        at_least(f"{what}: held", achieved, wanted * 0.99, f"{achieved:.1f} MB/s", of_times=True),
        at_most(f"{what}: append p99 ≤ 20 ms", latency.p99, 0.020, duration(latency.p99), of_times=True),
        at_most(
            f"{what}: no loop stall above that of an idle process + {duration(STALL_SECONDS)}",
            found.stall,
            found.idle_stall + STALL_SECONDS,
            f"{duration(found.stall)} (idle process: {duration(found.idle_stall)})",
            of_times=True,
        ),
        at_most(
            f"{what}: RSS ≤ {RSS_SHARE} × retained",
            memory,
            RSS_SHARE,
            f"{memory:.2f} × ({found.resident / 1e9:.2f} GB)",
        ),
    ]
    if found.cached is not None:
        share = found.cached / retained
        target = f"{what}: page cache of the log's files ≤ {CACHE_SHARE} × retained"
        checks.append(at_most(target, share, CACHE_SHARE, f"{share:.2f} ×"))
    return tuple(checks)
