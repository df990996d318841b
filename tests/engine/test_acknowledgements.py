"""`wait_acknowledged`: it returns once the consumer has the record, and never because something else moved it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mrecordlog_async import (
    Consumer,
    ConsumerNotFoundError,
    LogClosedError,
    LogFailedError,
    MultiRecordLog,
    QueueNotFoundError,
    QueueOptions,
    RecordTruncatedError,
)
from mrecordlog_async.engine.readers.acknowledgements import WAITS_PER_TURN
from tests.cached_files import FailingSyncs
from tests.engine import in_flight


async def waits(log: MultiRecordLog, *positions: int, consumer: str = "c") -> list[asyncio.Task[None]]:
    """Begin to wait for *positions* of the queue `t`."""
    tasks = [asyncio.create_task(log.wait_acknowledged("t", position, consumer)) for position in positions]
    await asyncio.sleep(0)
    return tasks


def waiting(log: MultiRecordLog) -> dict[int, dict[str, int]]:
    """Return how many entries there are, by queue id and consumer."""
    held = log._engine.changes.acknowledgements.waits
    return {queue: {name: len(found.heap) for name, found in consumers.items()} for queue, consumers in held.items()}


@pytest.fixture
async def ten(log: MultiRecordLog) -> MultiRecordLog:
    """A log with ten records in the queue `t`, which has the consumer `c`."""
    await log.create_queue("t")
    await log.create_consumer("t", "c")
    await log.append_records("t", None, [b"%d" % number for number in range(10)])
    return log


async def test_each_wait_ends_with_the_acknowledgement_that_passes_it(ten: MultiRecordLog) -> None:
    """In any order, with positions that do not exist yet; nothing is left afterwards."""
    async with ten.consumer("t", "c") as consumer:
        tasks = await waits(ten, 7, 3, 0, 3, 12)
        await consumer.acknowledge(3)
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [False, True, True, True, False]
        await consumer.acknowledge(9)
        await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True, True, True, True, False]
        await ten.append_records("t", None, [b"x"] * 3)
        await consumer.acknowledge(12)
        await asyncio.gather(*tasks)
        await ten.wait_acknowledged("t", 5, "c")  # long ago
    assert waiting(ten) == {}


async def test_many_waits_end_in_several_turns_of_the_loop(ten: MultiRecordLog) -> None:
    """Thousands of requests that all respond in one turn would block everything else meanwhile."""
    async with ten.consumer("t", "c") as consumer:
        later = await waits(ten, 1, 5)
        tasks = await waits(ten, *[0] * 10 * WAITS_PER_TURN)
        tasks[-1].cancel()
        await consumer.acknowledge(0)
        assert WAITS_PER_TURN <= sum(task.done() for task in tasks) < 5 * WAITS_PER_TURN
        tasks[-2].cancel()  # between its acknowledgement and its turn
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False] * (len(tasks) - 2) + [True] * 2
        assert not any(task.done() for task in later)
        await consumer.acknowledge(5)
        await asyncio.gather(*later)
    assert waiting(ten) == {}


async def test_an_acknowledgement_counts_although_its_caller_left(ten: MultiRecordLog) -> None:
    """The consumer's process may cancel the call: the acknowledgement is stored all the same."""
    async with ten.consumer("t", "c") as consumer:
        (task,) = await waits(ten, 4)
        call = asyncio.create_task(consumer.acknowledge(4))
        await in_flight.begun(ten)
        call.cancel()
        await task
        assert ten.consumers("t")["c"].position == 5


async def test_a_truncate_that_an_acknowledgement_causes_is_one(log: MultiRecordLog) -> None:
    """On a queue that keeps records until they are acknowledged, the record is gone when the wait returns."""
    await log.create_queue("t", options=QueueOptions(keep="until_acknowledged"))
    await log.create_consumer("t", "c")
    await log.append("t", b"")
    async with log.consumer("t", "c") as consumer:
        (task,) = await waits(log, 0)
        await consumer.acknowledge(0)
        await task
        assert log.first_position("t") == 1
        await log.wait_acknowledged("t", 0, "c")


async def truncate(log: MultiRecordLog, consumer: Consumer) -> None:
    await log.truncate("t", 4, past_consumers=True)


async def seek(log: MultiRecordLog, consumer: Consumer) -> None:
    await consumer.seek(5)


async def operator(log: MultiRecordLog, consumer: Consumer) -> None:
    await log.seek_consumer("t", "c", 5)


@pytest.mark.parametrize("pass_by", [truncate, seek, operator])
async def test_what_passes_a_record_without_acknowledging_it_is_an_error(
    ten: MultiRecordLog, pass_by: Callable[[MultiRecordLog, Consumer], Awaitable[None]]
) -> None:
    """For who waits already, for who asks later, and also after later acknowledgements."""
    async with ten.consumer("t", "c") as consumer:
        await consumer.acknowledge(1)
        tasks = await waits(ten, 2, 4, 5)
        await pass_by(ten, consumer)
        await asyncio.sleep(0)
        for task in tasks[:2]:
            with pytest.raises(RecordTruncatedError, match="without acknowledging"):
                await task
        assert not tasks[2].done()
    async with ten.consumer("t", "c") as consumer:  # the operator has fenced off the first holder
        await consumer.acknowledge(7)
        await tasks[2]
        for position in (2, 3, 4):
            with pytest.raises(RecordTruncatedError):
                await ten.wait_acknowledged("t", position, "c")
        for position in (0, 1, 5, 6, 7):
            await ten.wait_acknowledged("t", position, "c")


async def test_what_a_consumer_acknowledges_after_it_went_back_is_acknowledged(ten: MultiRecordLog) -> None:
    """A seek forward by mistake, and back: the records in between were delivered after all."""
    async with ten.consumer("t", "c") as consumer:
        await consumer.seek(8)
        await consumer.seek(2)
        (task,) = await waits(ten, 5)
        await consumer.acknowledge(6)
        await task
        await ten.wait_acknowledged("t", 2, "c")
        with pytest.raises(RecordTruncatedError):
            await ten.wait_acknowledged("t", 1, "c")


async def test_records_that_a_limit_drops_are_not_acknowledged(log: MultiRecordLog) -> None:
    """`drop_oldest` moves the consumer, but nobody has the record."""
    await log.create_queue("t", options=QueueOptions(max_records=2, when_full="drop_oldest"))
    await log.create_consumer("t", "c")
    await log.append("t", b"0")
    (task,) = await waits(log, 0)
    await log.append("t", b"1")
    await log.append("t", b"2")
    with pytest.raises(RecordTruncatedError):
        await task


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda log: log.delete_consumer("t", "c"), ConsumerNotFoundError),
        (lambda log: log.delete_queue("t", past_consumers=True), QueueNotFoundError),
        (lambda log: log.close(), LogClosedError),
    ],
)
async def test_a_wait_ends_with_what_it_waits_for(
    ten: MultiRecordLog, end: Callable[[MultiRecordLog], Awaitable[None]], error: type[Exception]
) -> None:
    """Deleted, recreated or closed: nobody waits for ever."""
    tasks = await waits(ten, 3, 4)
    await end(ten)
    for task in tasks:
        with pytest.raises(error):
            await task
    with pytest.raises(error):
        await ten.wait_acknowledged("t", 3, "c")


async def test_a_log_that_fails_ends_the_waits(directory: Path) -> None:
    """It stores no acknowledgement any more."""
    disk = FailingSyncs()
    async with MultiRecordLog.open(directory, filesystem=disk, queues=["t"]) as log:
        await log.create_consumer("t", "c")
        (task,) = await waits(log, 0)
        disk.failing = True
        with pytest.raises(LogFailedError):
            await log.append("t", b"")
        with pytest.raises(LogFailedError):
            await task
        with pytest.raises(LogFailedError):
            await log.wait_acknowledged("t", 0, "c")


async def test_the_time_of_a_wait_is_limited_and_leaves_nothing_behind(ten: MultiRecordLog) -> None:
    """Clients that ask again and again about a consumer that stands still must not fill the memory."""
    (last,) = await waits(ten, 9)
    for _ in range(1_000):
        with pytest.raises(TimeoutError):
            await ten.wait_acknowledged("t", 5, "c", timeout=0)
    queue_id = ten.queue_summary("t").id
    assert waiting(ten)[queue_id]["c"] <= 3
    last.cancel()
    with pytest.raises(asyncio.CancelledError):
        await last
    assert waiting(ten) == {}


async def test_waits_of_other_consumers_and_queues_are_not_touched(ten: MultiRecordLog) -> None:
    """Each consumer of a queue has its own."""
    await ten.create_consumer("t", "other")
    mine, others = (await waits(ten, 1))[0], (await waits(ten, 1, consumer="other"))[0]
    async with ten.consumer("t", "c") as consumer:
        await consumer.acknowledge(1)
    await mine
    assert not others.done()
    others.cancel()


async def test_an_append_visits_no_wait(ten: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand waits cost an append no more than one: only the consumers of its queue are looked at."""
    tasks = await waits(ten, *range(10, 10_010))
    looked = 0
    acknowledgements = type(ten._engine.changes.acknowledgements)
    end = acknowledgements._end_up_to

    def counting(self: object, *arguments: object) -> None:
        nonlocal looked
        looked += 1
        end(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(acknowledgements, "_end_up_to", counting)
    await ten.append("t", b"")
    assert looked == 1
    async with ten.consumer("t", "c") as consumer:
        await ten.append_records("t", None, [b""] * 9_999)
        await consumer.acknowledge(10_009)
    await asyncio.gather(*tasks)


async def test_the_wait_checks_its_arguments(ten: MultiRecordLog) -> None:
    """As every other call."""
    with pytest.raises(ConsumerNotFoundError):
        await ten.wait_acknowledged("t", 0, "nobody")
    with pytest.raises(QueueNotFoundError):
        await ten.wait_acknowledged("nothing", 0, "c")
    with pytest.raises(ValueError, match="position"):
        await ten.wait_acknowledged("t", -1, "c")
