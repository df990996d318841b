"""From one queue to 100,000: appending to each in turn, and opening a log that holds them all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from statistics import median

from mrecordlog_async.bench.drive import duration, payloads
from mrecordlog_async.log import MultiRecordLog
from tests.benchmarks.appends import RECORD_BYTES
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import (
    LIMITS,
    Caller,
    Round,
    Subject,
    cpu_microseconds_of,
    latencies_of,
    rate_of,
    ratio_of,
    raw_disk,
    raw_rate_of,
    subject,
)
from tests.benchmarks.targets import Check, JudgedRow, at_most, rounds_at_least


async def run(bench: Bench) -> list[Row]:
    """Each round has a measurement with one queue and one with many, one record each in turn, from 1,000 callers."""
    rows = []
    async with raw_disk(bench) as raw:
        for count in bench.scale.queues:
            names = [f"queue-{number:06d}" for number in range(count)]
            bench.say(f"{count:,} queues: creating")
            begun = time.perf_counter()
            async with subject(bench, raw, f"log-{count}", queues=names) as log:
                created = time.perf_counter() - begun
                bench.say(f"{count:,} queues: appending")
                one, many = await _rounds(bench, log, names)
            bench.say(f"{count:,} queues: opening")
            opened = await _open_seconds(bench.path(f"log-{count}"), count)
            rows.append(_row(bench, count, created, opened, one, many))
    return rows


async def _rounds(bench: Bench, log: Subject, names: Sequence[str]) -> tuple[list[Round], list[Round]]:
    texts = payloads(bench.scale.compared_callers, RECORD_BYTES)
    in_turn = itertools.cycle(names).__next__

    def to_the_next(payload: bytes) -> Awaitable[object]:
        return log.log.append_record(in_turn(), None, payload)

    spread = [Caller(partial(to_the_next, text), (text,)) for text in texts]
    one: list[Round] = []
    many: list[Round] = []
    for _ in range(bench.scale.rounds):
        one.append(await log.round(log.one_by_one(texts, names[0]), bench.scale.seconds))
        many.append(await log.round(spread, bench.scale.seconds))
    return one, many


async def _open_seconds(directory: str, queues: int) -> float:
    begun = time.perf_counter()
    log = await MultiRecordLog.open(directory, limits=LIMITS)
    taken = time.perf_counter() - begun
    try:
        assert len(log.list_queues()) == queues, "opening lost queues"
    finally:
        await log.close()
    return taken


def _row(bench: Bench, count: int, created: float, opened: float, one: Sequence[Round], many: Sequence[Round]) -> Row:
    shares = [each.rate / base.rate for each, base in zip(many, one, strict=True)]
    share = median(shares)
    checks: tuple[Check, ...] = ()
    if count == 10_000:
        checks = (
            rounds_at_least("10,000 queues, one record each in turn: ≥ 0.65 × the one-queue rate", shares, 0.65),
            at_most("10,000 queues: open ≤ 1 s", opened, 1.0, duration(opened), of_times=True),
        )
    records = sum(each.measurement.acknowledged_calls for each in (*one, *many))
    return JudgedRow(
        "queues",
        f"{count:,} {'queue' if count == 1 else 'queues in turn'}, {bench.scale.compared_callers:,} callers, 100 B",
        rate_of(many),
        "records/s",
        raw=raw_rate_of(many),
        ratio=ratio_of(many),
        latency=latencies_of(many),
        cpu_microseconds=cpu_microseconds_of(many),
        checks=checks,
        note=f"{share:.0%} of one queue; created in {duration(created)}; opened with {records:,} records in "
        f"{duration(opened)}",
    )
