"""Loose records in an open log: what dead ones keep in memory is given back, even while nobody calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from mrecordlog_async import Limits, LogFullError, MultiRecordLog

QUEUES = [str(number) for number in range(50)]


async def fill(log: MultiRecordLog, rounds: int) -> None:
    """Append records of 500 bytes to all queues, in turn."""
    for queue in QUEUES:
        await log.create_queue(queue)
    for _ in range(rounds):
        await asyncio.gather(*(log.append_record(queue, None, b"x" * 500) for queue in QUEUES))


async def drop(log: MultiRecordLog, queues: list[str]) -> None:
    """Truncate everything in *queues*."""
    await asyncio.gather(*(log.truncate(queue, log.next_position(queue) - 1) for queue in queues))


async def test_idle_log_gives_back_what_dead_records_keep(tmp_path: Path) -> None:
    """No call has to come for it: 9 of 10 queues are truncated, and what is left is settled."""
    async with MultiRecordLog.open(tmp_path / "wal") as log:
        await fill(log, 40)
        await drop(log, QUEUES[5:])
        async with asyncio.timeout(60):
            while log._engine.queues.settling.has_sparse():
                await asyncio.sleep(0)
        assert log._engine.queues.blocks.memory_bytes == 0
        live = sum(summary.bytes for summary in log.summary().values())
        empty = 500 * len(QUEUES)
        assert live == 5 * 40 * 500
        assert log.resource_usage().memory_bytes < 1.5 * live + empty


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_append_is_not_refused_for_memory_that_dead_records_keep(
    tmp_path: Path, on_full: Literal["raise", "wait"]
) -> None:
    """Half of each block is dead, which is not reason enough to settle it, until an append needs the memory."""
    limits = Limits(memory_bytes=1 << 20, on_full=on_full)
    async with MultiRecordLog.open(tmp_path / "wal", limits=limits) as log:
        for queue in QUEUES:
            await log.create_queue(queue)
        while log.resource_usage().memory_bytes < 950_000:
            await asyncio.gather(*(log.append_record(queue, None, b"x" * 500) for queue in QUEUES))
        await drop(log, QUEUES[:25])
        async with asyncio.timeout(60):
            await log.append_records("0", None, [b"x" * 500] * 600)
            if on_full == "raise":
                with pytest.raises(LogFullError):
                    await log.append_records("0", None, [b"x" * 500] * 600)
