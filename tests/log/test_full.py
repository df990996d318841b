"""A log that is full: in memory, on the disk, of queues, of records that are too large."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogFullError,
    MultiRecordLog,
    QueueOptions,
    RecordTooLargeError,
)


async def test_too_large_records_are_refused_at_once(directory: Path) -> None:
    """What can never fit is refused, with sizes, and writes nothing."""
    limits = Limits(record_bytes=1000, pending_bytes=5000, memory_bytes=100_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        with pytest.raises(RecordTooLargeError) as caught:
            await log.append_record("q", None, bytes(1001))
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (1001, 1000)
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [b"x", bytes(1001)])
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [bytes(1000)] * 6)
        await log.configure_queue("q", QueueOptions(max_bytes=10))
        with pytest.raises(RecordTooLargeError, match="smaller records"):  # it is one record already
            await log.append_record("q", None, bytes(11))
        await log.configure_queue("q", QueueOptions())
        assert await log.append_record("q", None, bytes(1000)) == 0


async def test_full_memory_pushes_back_and_truncate_makes_room(directory: Path) -> None:
    """Above memory_bytes appends are refused with the numbers; after a truncate they work again."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=50_000)) as log:
        await log.create_queue("q")
        with pytest.raises(LogFullError) as caught:
            for _ in range(100):
                await log.append_record("q", None, bytes(1000))
        assert caught.value.resource == "memory"
        assert caught.value.used <= caught.value.limit == 50_000
        await log.truncate("q", log.next_position("q") - 1)
        await log.append_record("q", None, bytes(1000))


async def test_full_memory_may_wait_for_room(directory: Path) -> None:
    """With on_full="wait" callers wait in order until a truncate makes space."""
    limits = Limits(memory_bytes=50_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(1000))) for _ in range(100)]
        await calls[0]
        while not all(call.done() for call in calls):
            await log.truncate("q", max(log.next_position("q") - 1, 0))
        assert [call.result() for call in calls] == list(range(100))


async def test_waiting_callers_are_bounded_in_bytes_and_keep_their_order(directory: Path) -> None:
    """Above pending_bytes callers wait in order; the bytes held for the writer stay below the limit."""
    limits = Limits(record_bytes=10_000, pending_bytes=30_000)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(5000))) for _ in range(50)]
        await asyncio.sleep(0)
        assert log.resource_usage().pending_bytes <= 31_000
        assert await asyncio.gather(*calls) == list(range(50))


async def test_truncate_and_delete_pass_the_line_of_appends(directory: Path) -> None:
    """Control calls never wait for the space that appends wait for."""
    limits = Limits(memory_bytes=20_000, on_full="wait")
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("q")
        await log.create_queue("other")
        calls = [asyncio.ensure_future(log.append_record("q", None, bytes(4000))) for _ in range(8)]
        await calls[0]
        await log.delete_queue("other")
        assert not all(call.done() for call in calls)
        while not all(call.done() for call in calls):
            await log.truncate("q", max(log.next_position("q") - 1, 0))


async def test_number_of_queues_is_limited(directory: Path) -> None:
    """More queues than allowed are refused; deleting one makes space for another."""
    async with MultiRecordLog.open(directory, limits=Limits(queues=2)) as log:
        await log.create_queue("a")
        await log.create_queue("b")
        with pytest.raises(LogFullError) as caught:
            await log.create_queue("c")
        assert caught.value.resource == "queues"
        await log.delete_queue("a")
        await log.create_queue("c")


async def test_disk_limit_refuses_appends_until_space_is_given_back(directory: Path) -> None:
    """Above disk_bytes appends are refused; truncating everything rolls, gives the space back, and they work again."""
    limits = Limits(disk_bytes=1_000_000)
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=65_536) as log:
        await log.create_queue("q")
        with pytest.raises(LogFullError) as caught:
            for _ in range(100):
                await log.append_record("q", None, bytes(20_000))
        assert caught.value.resource == "disk"
        await log.truncate("q", log.next_position("q") - 1)
        await log.sync()
        await log.append_record("q", None, bytes(20_000))
        assert log.resource_usage().disk_bytes <= 1_000_000


async def test_an_append_that_finds_no_memory_says_what_holds_it(directory: Path) -> None:
    """The error names the queue that holds the most, and its consumer that is furthest behind."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=50_000), queues=["small", "large"]) as log:
        await log.append_record("small", None, bytes(100))
        await log.append_record("large", None, bytes(1000))
        await log.create_consumer("large", "quick", start=2**40)
        await log.create_consumer("large", "slow")
        with pytest.raises(LogFullError) as caught:
            while True:
                await log.append_record("large", None, bytes(1000))
        assert (caught.value.resource, caught.value.queue, caught.value.consumer) == ("memory", "large", "slow")
        assert "(queue 'large' holds the most; its slowest consumer is 'slow')" in str(caught.value)


@pytest.mark.parametrize("holds", ["records", "segments"])
async def test_an_append_that_finds_no_disk_space_says_what_holds_it(directory: Path, holds: str) -> None:
    """The error names the queue whose records, or whose kept segments, take most of the disk, and its consumer."""
    limits = Limits(disk_bytes=40 * 32_768)
    async with MultiRecordLog.open(directory, limits=limits, segment_bytes=32_768, queues=["idle", "busy"]) as log:
        await log.append_record("idle", None, b"one")
        await log.create_consumer("idle", "asleep")
        await log.create_consumer("busy", "late")
        with pytest.raises(LogFullError) as caught:
            while True:
                position = await log.append_record("busy", None, bytes(10_000))
                if holds == "segments" and position is not None:
                    await log.truncate("busy", position, past_consumers=True)
        found = caught.value.queue, caught.value.consumer
        assert found == (("busy", "late") if holds == "records" else ("idle", "asleep"))


async def test_a_full_queue_says_which_consumer_is_behind(directory: Path) -> None:
    """A queue that keeps until acknowledged is full because of its slowest consumer."""
    async with MultiRecordLog.open(
        directory, queues={"q": QueueOptions(keep="until_acknowledged", max_records=2)}
    ) as log:
        await log.create_consumer("q", "lake")
        await log.append_records("q", None, [b"a", b"b"])
        with pytest.raises(LogFullError, match="its slowest consumer is 'lake'") as caught:
            await log.append_record("q", None, b"c")
        assert (caught.value.queue, caught.value.consumer) == ("q", "lake")
