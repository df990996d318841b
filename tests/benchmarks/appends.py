"""Appending: one caller, many callers under each policy, payload sizes, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from mrecordlog_async.bench.drive import payloads
from mrecordlog_async.options import KIB, MIB, PersistPolicy
from tests.benchmarks.raw import FreshDisk
from tests.benchmarks.results import Point, Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import (
    QUEUE,
    Caller,
    Round,
    Subject,
    cpu_microseconds_of,
    fresh_note,
    latencies_of,
    rate_of,
    ratio_of,
    ratios_of,
    raw_disk,
    raw_latencies_of,
    raw_rate_of,
    subject,
)

RECORD_BYTES = 100
BATCH_RECORDS = 1_000
BATCH_CALLERS = 4
SIZE_CALLERS = 16
POLICIES = (
    ("always", PersistPolicy.always()),
    ("interval(0.1)", PersistPolicy.interval(0.1)),
    ("never", PersistPolicy.never()),
)

ONE_CALLER_SLICES = 5
"""One caller alternates with the raw disk this much more often: its ratio compares single syncs, which drift."""


async def one_caller(bench: Bench) -> list[Row]:
    """One coroutine appends 100 B: what a single `await append_record` costs on top of the disk."""
    scale = bench.scale
    async with raw_disk(bench) as raw, subject(bench, raw) as log:
        callers = log.one_by_one(payloads(1, RECORD_BYTES))
        rounds = [
            await log.round(callers, scale.seconds / ONE_CALLER_SLICES) for _ in range(scale.rounds * ONE_CALLER_SLICES)
        ]
    slower = tuple(median(one.measurement.latencies) / median(one.raw.latencies) for one in rounds)
    row = _row("one-caller", "1 caller, 100 B", rounds, histogram=True)
    return [replace(row, latency_ratio=median(slower), latency_ratios=slower)]


async def many_callers(bench: Bench) -> list[Row]:
    """From one coroutine to thousands, 100 B each, under every policy."""
    scale, rows = bench.scale, []
    async with raw_disk(bench) as raw:
        for name, policy in POLICIES:
            async with subject(bench, raw, f"log-{name}", policy) as log:
                callers = log.one_by_one(payloads(max(scale.callers), RECORD_BYTES))
                rounds: dict[int, list[Round]] = {count: [] for count in scale.callers}
                for number in range(scale.rounds):
                    for count in scale.callers:
                        bench.say(f"{name}, {count:,} callers, round {number + 1} of {scale.rounds}")
                        rounds[count].append(await log.round(callers[:count], scale.seconds))
            for count in scale.callers:
                what = f"{count:,} {'caller' if count == 1 else 'callers'}, 100 B, {name}"
                point = Point(name, count, rate_of(rounds[count]))
                drawn = name == "always" and count == scale.compared_callers
                rows.append(_row("callers", what, rounds[count], histogram=drawn, point=point))
    return rows


async def sizes(bench: Bench) -> list[Row]:
    """16 coroutines with payloads from 100 B to 1 MiB."""
    scale, rows = bench.scale, []
    fresh = FreshDisk(bench.directory)
    async with raw_disk(bench) as raw:
        for size, name in ((100, "100 B"), (KIB, "1 KiB"), (16 * KIB, "16 KiB"), (MIB, "1 MiB")):
            bench.say(f"{SIZE_CALLERS} callers, {name}")
            seconds = scale.seconds if size < MIB else scale.seconds / 3  # or it would fill gigabytes
            async with subject(bench, raw, f"log-{size}") as log:
                callers = log.one_by_one(payloads(SIZE_CALLERS, size))
                rounds = [await log.round(callers, seconds, fresh) for _ in range(scale.rounds)]
            rows.append(_row_of_bytes("sizes", f"{SIZE_CALLERS} callers, {name}", rounds))
    return rows


async def batches(bench: Bench) -> list[Row]:
    """`append_records` with 1,000 records per call."""
    scale, rows = bench.scale, []
    fresh = FreshDisk(bench.directory)
    async with raw_disk(bench) as raw:
        for size, name in ((100, "100 B"), (KIB, "1 KiB")):
            bench.say(f"{BATCH_CALLERS} callers, batches of {BATCH_RECORDS:,} × {name}")
            async with subject(bench, raw, f"log-{size}") as log:
                callers = batch_callers(log, size)
                rounds = [await log.round(callers, scale.seconds / 2, fresh) for _ in range(scale.rounds)]
            what = f"{BATCH_CALLERS} callers, {BATCH_RECORDS:,} × {name}"
            rows.append(_row_of_bytes("batches", what, rounds))
    return rows


def batch_callers(log: Subject, size: int) -> list[Caller]:
    """Return the callers of `batches`."""
    every = payloads(BATCH_CALLERS * BATCH_RECORDS, size)
    parts = [every[at : at + BATCH_RECORDS] for at in range(0, len(every), BATCH_RECORDS)]
    return [Caller(partial(log.log.append_records, QUEUE, None, part), part) for part in parts]


def _row(
    workload: str,
    what: str,
    rounds: Sequence[Round],
    *,
    histogram: bool = False,
    point: Point | None = None,
) -> Row:
    return Row(
        workload,
        what,
        value=rate_of(rounds),
        rates=tuple(one.rate for one in rounds),
        unit="records/s",
        raw=raw_rate_of(rounds),
        ratio=ratio_of(rounds),
        ratios=ratios_of(rounds),
        latency=latencies_of(rounds),
        raw_latency=raw_latencies_of(rounds),
        cpu_microseconds=cpu_microseconds_of(rounds),
        histogram=histogram,
        point=point,
    )


def _row_of_bytes(workload: str, what: str, rounds: Sequence[Round]) -> Row:
    return Row(
        workload,
        what,
        value=median(one.bytes / one.measurement.seconds for one in rounds) / 1e6,
        unit="MB/s",
        raw=median(one.bytes / one.raw.seconds for one in rounds) / 1e6,
        ratio=ratio_of(rounds),
        ratios=ratios_of(rounds),
        latency=latencies_of(rounds),
        raw_latency=raw_latencies_of(rounds),
        cpu_microseconds=cpu_microseconds_of(rounds),
        fresh_ratios=tuple(one.fresh.seconds / one.measurement.seconds for one in rounds if one.fresh is not None),
        note=fresh_note(rounds),
    )
