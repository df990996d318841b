"""Reading from memory: `range`, `pairs`, `runs` and `tail`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from statistics import median

from mrecordlog_async.bench.drive import payloads
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import PersistPolicy
from tests.benchmarks.appends import BATCH_RECORDS, RECORD_BYTES
from tests.benchmarks.latency import Latencies
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import LIMITS, QUEUE
from tests.benchmarks.targets import JudgedRow, at_least, rounds_at_least

TIMES = 5
RANGE_OF_LIST = 0.4
"""12 M records/s where the loop over ready tuples has 30."""
PAIRS_OF_LIST = 0.67
"""20 M records/s there."""
TAIL_LIVE_RECORDS = 1_000
LIVE = b"live"

Read = Callable[[str], Iterable[tuple[int, bytes]]]


async def run(bench: Bench) -> list[Row]:
    """Fill one queue and read it in every way."""
    records = bench.scale.records
    async with MultiRecordLog.open(bench.path("log"), persist_policy=PersistPolicy.never(), limits=LIMITS) as log:
        bench.say(f"filling a queue with {records:,} × 100 B")
        await fill(log, QUEUE, records)
        return [
            _records(log, bench, "range", log.range, RANGE_OF_LIST),
            _records(log, bench, "pairs", log.pairs, PAIRS_OF_LIST),
            _runs(log, bench),
            await _tail(log, bench),
            await _live_tail(log),
        ]


async def fill(log: MultiRecordLog, queue: str, records: int, size: int = RECORD_BYTES) -> None:
    """Create *queue* and append *records* payloads of *size*."""
    await log.create_queue(queue)
    part = payloads(min(BATCH_RECORDS, records), size)
    done = 0
    while done < records:
        part = part[: records - done]
        await log.append_records(queue, None, part)
        done += len(part)


def _records(log: MultiRecordLog, bench: Bench, name: str, read: Read, of_list: float) -> Row:
    bench.say(name)
    records = bench.scale.records
    _compare(log, records)
    ready = [(record.position, record.payload) for record in log.range(QUEUE)]
    rates, bare = [], []
    for _ in range(TIMES):
        seen, begun = 0, time.perf_counter()
        for _position, _payload in read(QUEUE):
            seen += 1
        middle = time.perf_counter()
        rates.append(seen / (middle - begun))
        assert seen == records
        for _position, _payload in ready:
            seen -= 1
        bare.append(records / (time.perf_counter() - middle))
        assert seen == 0
    ratios = tuple(rate / base for rate, base in zip(rates, bare, strict=True))
    return JudgedRow(
        "reads",
        f"{name}, {records:,} × 100 B",
        median(rates),
        "records/s",
        raw=median(bare),
        ratio=median(ratios),
        ratios=ratios,
        checks=(rounds_at_least(f"`{name}` over 1 M records of 100 B: ≥ {of_list} × a list", ratios, of_list),),
        note="raw: the same loop over a list of tuples",
    )


def _runs(log: MultiRecordLog, bench: Bench) -> Row:
    """Copy each run's payload once, as a reader does that hands it to a socket or an Arrow buffer."""
    bench.say("runs")
    total = bench.scale.records * RECORD_BYTES
    source, target = memoryview(bytes(total)), memoryview(bytearray(total))
    rates, copied = [], []
    for _ in range(TIMES):
        begun, at = time.perf_counter(), 0
        for run in log.runs(QUEUE):
            end = at + len(run.payload)
            target[at:end] = run.payload
            at = end
        middle = time.perf_counter()
        assert at == total
        target[:] = source
        rates.append(total / (middle - begun) / 1e9)
        copied.append(total / (time.perf_counter() - middle) / 1e9)
    rate = median(rates)
    check = at_least("`runs`: ≥ 5 GB/s", rate, 5.0, f"{rate:.1f} GB/s", of_times=True)
    return JudgedRow(
        "reads",
        "runs, each copied once",
        rate,
        "GB/s",
        raw=median(copied),
        ratio=rate / median(copied),
        checks=(check,),
        note="raw: the same bytes copied in one piece",
    )


async def _tail(log: MultiRecordLog, bench: Bench) -> Row:
    bench.say("tail")
    records = bench.scale.records
    seen, begun = 0, time.perf_counter()
    async with aclosing(log.tail(QUEUE)) as tail:
        async for _ in tail:
            seen += 1
            if seen == records:
                break
    return Row("reads", f"tail, catching up {records:,} × 100 B", seen / (time.perf_counter() - begun), "records/s")


async def _live_tail(log: MultiRecordLog) -> Row:
    """Measure from the call of `append_record` until a tail returns the record."""
    records = min(TAIL_LIVE_RECORDS, log.next_position(QUEUE))
    latencies: list[float] = []
    begun = time.perf_counter()
    async with aclosing(log.tail(QUEUE, log.next_position(QUEUE))) as tail:
        for _ in range(records):
            called = time.perf_counter()
            appending = asyncio.create_task(_append_live(log))
            assert (await anext(tail)).payload == LIVE
            latencies.append(time.perf_counter() - called)
            await appending
    summary = Latencies.of(latencies)
    rate = records / (time.perf_counter() - begun)
    return Row("reads", "tail, live, policy never", rate, "records/s", latency=summary)


async def _append_live(log: MultiRecordLog) -> None:
    await log.append_record(QUEUE, None, LIVE)


def _compare(log: MultiRecordLog, records: int) -> None:
    """Check that positions count up and that the payloads repeat in the order of the batch."""
    part = payloads(min(BATCH_RECORDS, records), RECORD_BYTES)
    for expected, (position, payload) in enumerate(log.range(QUEUE)):
        assert (position, payload) == (expected, part[expected % len(part)]), f"position {expected} reads wrong"
