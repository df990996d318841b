"""Consumers: reading in batches next to `runs`, acknowledging next to truncating, and waiting, which costs nothing.

CPU times are compared, in rounds that alternate, so that a busy machine changes both sides alike. Reading is the same
loop on both sides: the payloads of each run, or each record, counted one by one. The runs are those of `log.runs`, or
those of one batch after the other.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median

from mrecordlog_async.batches import BATCH_RECORDS
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import Batch, Run
from mrecordlog_async.options import PersistPolicy, QueueOptions
from tests.benchmarks.appends import RECORD_BYTES
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import LIMITS
from tests.benchmarks.targets import JudgedRow, at_most, rounds_at_least, rounds_at_most

ROUNDS = 9
STEPS = 200
IDLE_CONSUMERS = 1_000


async def run(bench: Bench) -> list[Row]:
    """Measure what a consumer costs when it reads, when it acknowledges, and when it waits."""
    async with MultiRecordLog.open(bench.path("log"), persist_policy=PersistPolicy.never(), limits=LIMITS) as log:
        rows = [await _reading(log, bench, *shape) for shape in _SHAPES]
        rows += [await _acknowledging(log, bench, keep) for keep in ("until_truncated", "until_acknowledged")]
        return [*rows, await _waiting(log, bench)]


# Reading.

_SHAPES = (
    (1, BATCH_RECORDS, "payloads"),
    (100, BATCH_RECORDS, "payloads"),
    (1_000, BATCH_RECORDS, "payloads"),
    (1_000, 10 * BATCH_RECORDS, "payloads"),
    (1, BATCH_RECORDS, "records"),
)
"""Records per append, records per batch, and what is read."""


async def _reading(log: MultiRecordLog, bench: Bench, appended: int, batch_records: int, what: str) -> Row:
    records = bench.scale.records // 1_000 * 1_000
    queue = f"read-{appended}-{batch_records}-{what}"
    bench.say(f"reading {what} of {records:,} records in batches of {batch_records:,}, appended {appended:,} at a time")
    await log.create_queue(queue)
    await _fill(log, queue, records, appended)
    count = _count_payloads if what == "payloads" else _count_records
    by_batch, by_run = [], []
    async with log.consumer(queue, "reader") as consumer:

        async def read_runs() -> int:
            return count(log.runs(queue))

        async def read_batches() -> int:
            seen = 0
            while seen < records:
                batch = await consumer.batch(max_records=batch_records, max_bytes=LIMITS.memory_bytes, max_wait=0)
                assert batch is not None
                seen += _count_batch(batch) if what == "records" else count(batch.runs)
            return seen

        for _ in range(ROUNDS):
            by_run.append(await _seconds(read_runs, records))
            await consumer.seek(0)
            by_batch.append(await _seconds(read_batches, records))
    shares = [run / batch for run, batch in zip(by_run, by_batch, strict=True)]
    name = f"{what} in batches of {batch_records:,}, appended {appended:,} at a time"
    return JudgedRow(
        "consumers",
        name,
        records / median(by_batch),
        "records/s",
        raw=records / median(by_run),
        ratio=median(shares),
        ratios=tuple(shares),
        checks=(rounds_at_least(f"a consumer reads {name}: ≥ 0.9 × `runs`", shares, 0.9),),
        note="raw: `runs`; CPU time of both",
    )


def _count_payloads(runs: Sequence[Run]) -> int:
    seen = 0
    for run in runs:
        for _ in run.payloads():
            seen += 1
    return seen


def _count_records(runs: Sequence[Run]) -> int:
    seen = 0
    for run in runs:
        for _ in run.records():
            seen += 1
    return seen


def _count_batch(batch: Batch) -> int:
    seen = 0
    for _ in batch:
        seen += 1
    return seen


async def _fill(log: MultiRecordLog, queue: str, records: int, at_once: int) -> None:
    payload = b"x" * RECORD_BYTES
    if at_once > 1:
        for _ in range(records // at_once):
            await log.append_records(queue, None, [payload] * at_once)
        return
    for _ in range(records // 1_000):
        await asyncio.gather(*[log.append_soon(queue, payload) for _ in range(1_000)])


async def _seconds(read: Callable[[], Awaitable[int]], records: int) -> float:
    gc.collect()
    begun = time.thread_time()
    seen = await read()
    took = time.thread_time() - begun
    assert seen == records
    return took


# Acknowledging.


async def _acknowledging(log: MultiRecordLog, bench: Bench, keep: str) -> Row:
    """Truncate one queue and acknowledge the same records of another one, in turn."""
    step = bench.scale.short_queue // STEPS
    bench.say(f"acknowledging {step:,} records {STEPS} times, {keep}")
    truncated, acknowledged = f"truncated-{keep}", f"acknowledged-{keep}"
    await log.create_queue(truncated)
    options = QueueOptions(keep="until_acknowledged" if keep == "until_acknowledged" else "until_truncated")
    await log.create_queue(acknowledged, options=options)
    for queue in (truncated, acknowledged):
        await log.append_records(queue, None, [b"x" * RECORD_BYTES] * (STEPS * step))
    by_truncate, by_acknowledge = [], []
    async with log.consumer(acknowledged, "worker") as consumer:
        for position in range(step - 1, STEPS * step, step):
            by_truncate.append(await _elapsed(log.truncate(truncated, position)))
            by_acknowledge.append(await _elapsed(consumer.acknowledge(position)))
        assert consumer.position == 0 and log.consumers(acknowledged)["worker"].records == 0
    ratios = [one / other for one, other in zip(by_acknowledge, by_truncate, strict=True)]
    target = f"an acknowledgement costs what a truncate costs: within 1.2 × ({keep}, policy never)"
    return JudgedRow(
        "consumers",
        f"acknowledge, {keep}",
        1 / median(by_acknowledge),
        "calls/s",
        raw=1 / median(by_truncate),
        ratio=1 / median(ratios),
        checks=(rounds_at_most(target, ratios, 1.2),),
        note="raw: `truncate` of the same records",
    )


async def _elapsed(call: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await call
    return time.perf_counter() - begun


# Waiting.


async def _waiting(log: MultiRecordLog, bench: Bench) -> Row:
    """Let consumers of as many queues wait for a first record, and measure the CPU time of the whole process."""
    count, seconds = min(IDLE_CONSUMERS, bench.scale.records // 100), 8 * bench.scale.seconds
    bench.say(f"{count:,} consumers of {count:,} queues wait for {seconds:g} s")
    async with AsyncExitStack() as stack:
        waiting = []
        for number in range(count):
            await log.create_queue(f"idle-{number:06d}")
            consumer = await stack.enter_async_context(log.consumer(f"idle-{number:06d}", "worker"))
            waiting.append(asyncio.create_task(consumer.batch()))
        await asyncio.sleep(10 * bench.scale.seconds)  # in a full run, the timers after the last commit end meanwhile
        begun = time.process_time()
        await asyncio.sleep(seconds)
        used = (time.process_time() - begun) / seconds
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    target = f"{count:,} idle consumers of {count:,} queues: no CPU (below 0.1 % of a core)"
    return JudgedRow(
        "consumers",
        f"{count:,} consumers wait",
        max(used * 100, 1e-6),
        "% of a core",
        checks=(at_most(target, used, 0.001, f"{used:.3%}"),),
    )
