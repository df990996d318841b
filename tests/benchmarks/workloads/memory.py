"""Memory of a retained record above its payload, as the operating system and the log report it."""

from __future__ import annotations

import asyncio
import gc

from mrecordlog_async.bench.drive import payloads
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import PersistPolicy
from mrecordlog_async.support.heap import trim_heap
from tests.benchmarks.appends import BATCH_RECORDS, RECORD_BYTES
from tests.benchmarks.probe import resident_bytes
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import LIMITS, QUEUE
from tests.benchmarks.targets import JudgedRow, at_most


async def run(bench: Bench) -> list[Row]:
    """Append one by one from 1,000 callers, and in batches: both must end in the same dense runs."""
    return [await _grow(bench, "one by one", single=True), await _grow(bench, "in batches", single=False)]


async def _grow(bench: Bench, name: str, *, single: bool) -> Row:
    records = bench.scale.memory_records
    directory = bench.path(f"log-{'single' if single else 'batch'}")
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), limits=LIMITS) as log:
        await log.create_queue(QUEUE)
        bench.say(f"retaining {records:,} × 100 B, appended {name}")
        await _append(log, records // 10, single)  # from now on the log has what it needs for itself
        before, accounted_before = await _resident(), log.resource_usage().memory_bytes
        await _append(log, records, single)
        grown = await _resident() - before
        accounted = log.resource_usage().memory_bytes - accounted_before
        assert log.next_position(QUEUE) == records // 10 + records
    over = grown / records - RECORD_BYTES
    target = f"memory per retained 100 B record, appended {name}: ≤ 8 B over the payload"
    return JudgedRow(
        "memory",
        f"{records:,} × 100 B, appended {name}",
        over,
        "B over payload",
        checks=(at_most(target, over, 8, f"{over:.1f} B"),),
        note=f"from the growth of RSS; the log's own account says {accounted / records - RECORD_BYTES:.1f} B",
    )


async def _append(log: MultiRecordLog, records: int, single: bool) -> None:
    part = payloads(BATCH_RECORDS, RECORD_BYTES)
    for done in range(0, records, BATCH_RECORDS):
        wanted = part[: records - done]
        if single:
            # New objects, as a server receives them: retaining shared ones would cost nothing.
            await asyncio.gather(*(log.append_record(QUEUE, None, bytes(bytearray(payload))) for payload in wanted))
        else:
            await log.append_records(QUEUE, None, [bytes(bytearray(payload)) for payload in wanted])


async def _resident() -> int:
    gc.collect()
    await asyncio.to_thread(trim_heap)
    return resident_bytes()
