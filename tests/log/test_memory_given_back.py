"""What records take in memory is given back with them, whatever else their queue and other queues still hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from mrecordlog_async import Limits, LogFullError, MultiRecordLog

QUEUES = [str(number) for number in range(50)]


async def append_to_all(log: MultiRecordLog) -> None:
    """Append a record of 500 bytes to each queue."""
    await asyncio.gather(*(log.append(queue, b"x" * 500) for queue in QUEUES))


async def keep_last(log: MultiRecordLog, queues: list[str], records: int = 0) -> None:
    """Truncate all but the last *records* records of each of *queues*."""
    await asyncio.gather(*(log.truncate(queue, log.next_position(queue) - 1 - records) for queue in queues))


async def test_truncated_records_take_no_memory(directory: Path) -> None:
    """Those of 9 of 10 queues: no further call has to come for it."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queues(QUEUES)
        empty = log.resource_usage().memory_bytes
        for _ in range(40):
            await append_to_all(log)
        await keep_last(log, QUEUES[5:])
        live = sum(summary.bytes for summary in log.summary().values())
        assert live == 5 * 40 * 500
        assert log.resource_usage().memory_bytes - empty < 1.5 * live
        await keep_last(log, QUEUES)
        assert log.resource_usage().memory_bytes == empty


async def test_the_first_records_of_each_queue_take_little_once_they_are_truncated(directory: Path) -> None:
    """No more than those that are left, and half a KiB a queue."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queues(QUEUES)
        empty = log.resource_usage().memory_bytes
        for _ in range(40):
            await append_to_all(log)
        await keep_last(log, QUEUES, 2)
        assert [len(list(log.range(queue))) for queue in QUEUES] == [2] * len(QUEUES)
        assert log.resource_usage().memory_bytes - empty < len(QUEUES) * (2 * 2 * 500 + 1_000) * 9 / 8


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_append_is_not_refused_for_memory_of_truncated_records(
    directory: Path, on_full: Literal["raise", "wait"]
) -> None:
    """Half of all queues are truncated when memory is full: as much is stored again, and no more."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=1 << 20, on_full=on_full)) as log:
        await log.create_queues(QUEUES)
        while log.resource_usage().memory_bytes < 950_000:
            await append_to_all(log)
        await keep_last(log, QUEUES[:25])
        async with asyncio.timeout(60):
            await log.append_records("0", None, [b"x" * 500] * 600)
            if on_full == "raise":
                with pytest.raises(LogFullError):
                    await log.append_records("0", None, [b"x" * 500] * 600)
