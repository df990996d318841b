"""The graceful end of a log: what is accepted is stored, what is stored is read, and then everybody ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogClosedError, LogState, MultiRecordLog, Record


async def test_a_drained_log_ends_its_readers_after_what_is_there(directory: Path) -> None:
    """A worker needs no stop event: its consumer ends, and its last acknowledgement is stored."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    handled: list[Record] = []

    async def work() -> None:
        async with log.consumer("q", "c") as c:
            async for batch in c.batches(max_wait=None):
                handled.extend(batch)
                await c.acknowledge(batch)

    worker = asyncio.ensure_future(work())
    tail = asyncio.ensure_future(asyncio.wait_for(log.wait_for("q", 1_000), 60))
    appends = [asyncio.ensure_future(log.append_record("q", None, b"x")) for _ in range(300)]
    await asyncio.sleep(0)
    await asyncio.gather(log.drain(), log.drain())
    assert await asyncio.gather(*appends) == [*range(300)]
    await worker
    assert [record.position for record in handled] == [*range(300)]
    assert log.consumers("q")["c"].position == 300
    assert not await tail
    assert log.state is LogState.CLOSING
    for call in (log.append_record("q", None, b"x"), log.append_records("q", 300, [b"x"])):
        with pytest.raises(LogClosedError, match="being drained"):
            await call
    with pytest.raises(LogClosedError, match="being drained"):
        log.append_soon("q", b"x")
    assert await log.truncate("q", 99) == 100
    await log.close()


async def test_what_waits_for_space_is_refused(directory: Path) -> None:
    """A drain waits for no space: nobody may be left to make some."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=100_000, on_full="wait")) as log:
        await log.append_record("q", None, bytes(90_000), create=True)
        waiting = asyncio.ensure_future(log.append_record("q", None, bytes(20_000)))
        await asyncio.sleep(0)
        await log.drain()
        with pytest.raises(LogClosedError, match="being drained"):
            await waiting
        assert log.resource_usage().pending_bytes == 0


async def test_a_cancelled_drain_goes_on(directory: Path) -> None:
    """Only the wait ends."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        tail = asyncio.ensure_future(anext(log.tail("q"), None))
        await asyncio.sleep(0)
        draining = asyncio.ensure_future(log.drain())
        await asyncio.sleep(0)
        draining.cancel()
        assert await tail is None
