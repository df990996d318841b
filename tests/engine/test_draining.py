"""The graceful end of a log: what is accepted is stored, what is stored is read, and then everybody ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogClosedError, LogState, MultiRecordLog, QueueNotFoundError, Record
from tests.full_disk import FullDisk


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


async def test_a_drain_of_some_queues_ends_these_alone(directory: Path) -> None:
    """A pipeline ends stage by stage: the worker of the first one appends to the second while it finishes."""
    async with MultiRecordLog.open(directory, queues=["jobs", "results"]) as log:

        async def work() -> None:
            async with log.consumer("jobs", "w") as c:
                async for batch in c.batches(max_records=7):
                    await log.append_records("results", None, batch.payloads())
                    await c.acknowledge(batch)

        worker = asyncio.ensure_future(work())
        reader = asyncio.ensure_future(_all_of(log, "results"))
        appends = [asyncio.ensure_future(log.append("jobs", b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0)
        await log.drain(queues=["jobs"])
        assert await asyncio.gather(*appends) == [*range(100)]
        await worker
        assert log.consumers("jobs")["w"].records == 0
        for call in (log.append("jobs", b""), log.append_records("jobs", None, [b"", b""])):
            with pytest.raises(LogClosedError, match="queue 'jobs' is being drained"):
                await call
        with pytest.raises(LogClosedError, match="queue 'jobs' is being drained"):
            log.append_soon("jobs", b"")
        assert await log.append("results", b"last") == 100
        assert await log.append_soon("results", b"very last") == 101
        assert (log.state, reader.done()) == (LogState.OPEN, False)
        await log.drain()
        assert len(await reader) == 102
        assert log.stats().refused["closed"] == 3
    async with MultiRecordLog.open(directory) as log:
        assert await log.append("jobs", b"") == 100


async def _all_of(log: MultiRecordLog, queue: str) -> list[Record]:
    return [record async for record in log.tail(queue)]


async def test_what_waits_for_memory_in_a_drained_queue_is_refused_and_the_rest_waits_on(directory: Path) -> None:
    """Others that wait in line keep their places, and their charge."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=100_000, on_full="wait")) as log:
        await log.create_queues(["a", "b"])
        await log.append("a", bytes(90_000))
        waiting = [asyncio.ensure_future(log.append(queue, bytes(20_000))) for queue in "abab"]
        await asyncio.sleep(0)
        await log.drain(queues=["a"])
        for refused in waiting[::2]:
            with pytest.raises(LogClosedError, match="queue 'a' is being drained"):
                await refused
        await log.truncate("a", 0)
        assert [await waiting[1], await waiting[3]] == [0, 1]
        assert log.resource_usage().pending_bytes == 0


async def test_what_waits_for_the_disk_in_a_drained_queue_is_refused_and_the_rest_waits_on(directory: Path) -> None:
    """Of records that were collected for one batch, each follows its own queue."""
    disk = FullDisk()
    disk.full = False
    limits = Limits(on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits, filesystem=disk, segment_bytes=32_768) as log:
        await log.create_queues(["a", "b"])
        disk.full = True
        waiting = [asyncio.ensure_future(log.append(queue, bytes(20_000))) for queue in "abab"]
        while not log._admission.waiting_for_space:
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(log.drain(queues=["a"]))
        for refused in waiting[::2]:
            with pytest.raises(LogClosedError, match="queue 'a' is being drained"):
                await refused
        disk.full = False
        assert [await waiting[1], await waiting[3]] == [0, 1]
        await draining
        assert log.resource_usage().pending_bytes == 0


async def test_a_drain_of_a_queue_that_does_not_exist_drains_nothing(directory: Path) -> None:
    """A misspelt name must not look as if the end had come."""
    async with MultiRecordLog.open(directory, queues=["jobs"]) as log:
        with pytest.raises(QueueNotFoundError):
            await log.drain(queues=["jobs", "job"])
        with pytest.raises(TypeError, match="iterable of names"):
            await log.drain(queues="jobs")
        assert await log.append("jobs", b"") == 0
