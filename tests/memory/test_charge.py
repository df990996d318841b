"""What retained records are charged, against what they take of the interpreter's memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, PersistPolicy

SLACK_BYTES = 30_000
"""What the log and the loop keep besides records: buffers, tables that grow in steps, and counters."""

QUEUE_BYTES = 1_200
"""The same of each queue."""


@pytest.mark.parametrize(
    ("queues", "rounds", "records", "size"),
    [(1, 200, 1, 150), (100, 12, 1, 30), (20, 20, 20, 40), (4, 20, 251, 10), (2, 20, 1, 20_000)],
    ids=["one queue", "many queues", "small calls", "large calls", "large records"],
)
async def test_what_records_take_is_charged(directory: Path, queues: int, rounds: int, records: int, size: int) -> None:
    """Memory is bounded by what is counted, so nothing that records take may be left out, nor counted several times."""
    names = [f"queue {number}" for number in range(queues)]
    never = PersistPolicy.never()
    async with MultiRecordLog.open(directory, persist_policy=never, queues=names) as log:

        async def append(number: int) -> None:
            payloads = [bytes([number % 256]) * size for _ in range(records)]
            calls: list[Awaitable[object]]
            if records == 1:
                calls = [log.append(name, payloads[0] + b"x") for name in names for _ in range(10)]
            else:
                calls = [log.append_records(name, None, payloads) for name in names]
            await asyncio.gather(*calls)

        await append(0)
        gc.collect()
        tracemalloc.start()
        try:
            charged = log.resource_usage().memory_bytes
            for number in range(rounds):
                await append(number)
            await log.sync()
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        charged = log.resource_usage().memory_bytes - charged
        slack = SLACK_BYTES + QUEUE_BYTES * queues
        assert taken <= charged * 1.1 + slack
        assert charged <= taken * 1.5 + slack
        await asyncio.gather(*(log.truncate(name, log.next_position(name) - 1) for name in names))
        assert log.resource_usage().memory_bytes < 2 * slack
