"""Tails: one by one and in batches; what a cancelled call keeps, and where a tail ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import mrecordlog_async.engine.readers.tail as tailing
from mrecordlog_async import Batch, LogFailedError, MultiRecordLog, QueueNotFoundError
from mrecordlog_async.format.stored_options import SEALED, StoredOptions
from mrecordlog_async.memory.store import SEAL_RECORDS, SEAL_SPREAD
from mrecordlog_async.model import POSITION_MAX
from tests.cached_files import FailingSyncs


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def positions(batch: Batch | None) -> list[int]:
    """Return the positions in *batch*."""
    assert batch is not None
    return [record.position for record in batch]


async def test_a_timeout_around_anext_does_not_end_the_tail(log: MultiRecordLog) -> None:
    """What comes after the timeout is yielded, and nothing twice."""
    tail = log.tail("q")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(tail), 0)
    await log.append_records("q", None, [b"0", b"1"])
    assert [await anext(tail), await anext(tail)] == [(0, b"0"), (1, b"1")]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(tail)
    await log.append_record("q", None, b"2")
    assert await asyncio.wait_for(anext(tail), 60) == (2, b"2")


async def test_a_cancelled_batch_loses_nothing(log: MultiRecordLog) -> None:
    """Cancelled before and after its first record, a batch leaves every record to the next call."""
    tail = log.tail("q")
    for number in range(3):
        waiting = asyncio.create_task(tail.batch(max_wait=None))
        await settle()
        await log.append_record("q", None, b"%d" % number)
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert positions(await tail.batch(max_wait=0)) == [0, 1, 2]


async def test_a_batch_is_returned_when_it_is_full(log: MultiRecordLog) -> None:
    """Neither limit is exceeded, and the clock is not waited for; a record larger than the limit comes alone."""
    tail = log.tail("q")
    waiting = asyncio.create_task(tail.batch(max_records=3, max_wait=None))
    for number in range(4):
        await settle()
        assert not waiting.done() or number == 3
        await log.append_record("q", None, b"%d" % number)
    batch = await waiting
    assert batch is not None
    assert (batch.first_position, batch.last_position, batch.next_position) == (0, 2, 3)
    assert (len(batch), batch.bytes, batch.payloads()) == (3, 3, [b"0", b"1", b"2"])
    assert (batch.queue, batch.queue_id) == ("q", log.queue_summary("q").id)
    await log.append_records("q", None, [b"x" * 50, b"y" * 60, b"z"])
    found = [positions(await tail.batch(max_bytes=52, max_wait=None)) for _ in range(2)]
    assert found == [[3, 4], [5]]
    assert positions(await tail.batch(max_wait=0)) == [6]


async def test_a_batch_counts_what_was_truncated_while_it_was_collected_as_missing(log: MultiRecordLog) -> None:
    """A batch that lost records to a truncate goes on collecting until it is full without them."""
    tail = log.tail("q")
    waiting = asyncio.create_task(tail.batch(max_records=3, max_wait=None))
    await settle()
    await log.append_records("q", None, [b"0", b"1"])
    await settle()
    await log.truncate("q", 1)
    await settle()
    await log.append_records("q", None, [b"2", b"3"])
    await settle()
    assert not waiting.done()
    await log.append_record("q", None, b"4")
    assert positions(await waiting) == [2, 3, 4]


async def test_gaps_are_passed_over_without_spinning(log: MultiRecordLog) -> None:
    """Whatever the gaps, each record is in one batch; where nothing follows a gap, the tail sleeps."""
    await log.append_records("q", 7, [b"7"])
    for position in (1_000, 5_000_000, 5_000_001, 2**40):
        await log.append_record("q", position, b"%d" % position)
    tail = log.tail("q")
    assert [positions(await tail.batch(max_records=2, max_wait=0)) for _ in range(2)] == [
        [7, 1_000],
        [5_000_000, 5_000_001],
    ]
    await log.truncate("q", 2**50)  # moves the next position into the void
    waiting = asyncio.create_task(tail.batch(max_wait=0))
    await settle()
    assert not waiting.done()
    await log.append_record("q", None, b"last")
    assert positions(await waiting) == [2**50 + 1]


@pytest.mark.parametrize("by_consumer", [False, True], ids=["tail", "consumer"])
async def test_a_batch_holds_the_record_at_the_last_position(log: MultiRecordLog, by_consumer: bool) -> None:
    """Even once it is in a run with gaps, which it completes here."""
    records = SEAL_RECORDS - log.queue_summary("q").id % SEAL_SPREAD
    gaps = [2 * number for number in range(records - 1)]
    await asyncio.gather(*(log.append_record("q", position, b"x") for position in gaps))
    await log.append_record("q", POSITION_MAX, b"last")
    await log.truncate("q", gaps[-2])
    async with log.consumer("q", "c") as consumer:
        reader = consumer if by_consumer else log.tail("q")
        assert positions(await asyncio.wait_for(reader.batch(max_wait=0), 60)) == [gaps[-1], POSITION_MAX]


async def test_a_tail_with_much_to_read_lets_others_run(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that return records at hand give the loop a turn once a tail has held it for some time."""
    monkeypatch.setattr(tailing, "TURN_SECONDS", 0.0)
    await log.append_records("q", None, [b"x"] * 3_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    tail = log.tail("q")
    batches = [await tail.batch(max_records=100, max_wait=0) for _ in range(20)]
    assert turns >= 20
    assert sum(len(batch) for batch in batches if batch is not None) == 2_000
    running.cancel()


async def test_batches_and_single_records_take_turns(log: MultiRecordLog) -> None:
    """`anext`, `batch` and `batches` continue where the one before stopped, also two tasks at once."""
    await log.append_records("q", None, [b"%d" % number for number in range(40)])
    tail = log.tail("q", 3)
    assert await anext(tail) == (3, b"3")
    assert positions(await tail.batch(max_records=2)) == [4, 5]
    assert await anext(tail) == (6, b"6")
    assert tail.position == 7
    async for batch in tail.batches(max_records=10):
        assert positions(batch) == list(range(7, 17))
        break
    batched = asyncio.gather(tail.batch(max_records=5), tail.batch(max_records=5))
    single = [await anext(tail), await anext(tail)]
    seen = [record.position for batch in await batched for record in batch or ()]
    assert sorted(seen + [record.position for record in single]) == list(range(17, 29))


async def test_batches_of_a_tail_end_with_the_queue(log: MultiRecordLog) -> None:
    """The iteration stops and `batch` returns None, now and later."""
    tail = log.tail("q")
    following = asyncio.create_task(_all(tail.batches(max_wait=0)))
    await settle()
    await log.append_record("q", None, b"0")
    await settle()
    await log.delete_queue("q")
    assert await following == [0]
    assert await tail.batch() is None
    assert await anext(tail, None) is None


async def _all(batches: AsyncIterator[Batch]) -> list[int]:
    return [record.position async for batch in batches for record in batch]


@pytest.mark.parametrize("by_batch", [False, True])
async def test_a_tail_of_a_sealed_queue_ends_after_its_last_record(log: MultiRecordLog, by_batch: bool) -> None:
    """Nothing retained is missing, and a batch does not wait for what cannot come."""
    await log.append_records("q", None, [b"0", b"1"])
    queue = log._engine.queues.get("q")
    assert queue is not None
    queue.options = StoredOptions(SEALED)
    tail = log.tail("q")
    if by_batch:
        assert positions(await tail.batch(max_wait=None)) == [0, 1]
        assert await tail.batch(max_wait=None) is None
    else:
        assert [record.position async for record in tail] == [0, 1]
    assert not await log.wait_for("q", 2)
    assert await log.wait_for("q", 1)


async def test_waiting_tails_end_once_the_log_gets_no_more_records(log: MultiRecordLog) -> None:
    """A tail and a batch that were waiting return what is there, then end."""
    await log.append_record("q", None, b"0")
    tail, batches = log.tail("q", 1), log.tail("q")
    waiting = asyncio.create_task(anext(tail, None))
    collecting = asyncio.create_task(batches.batch(max_wait=None))
    await settle()
    log._engine.changes.end()
    assert await waiting is None
    assert positions(await collecting) == [0]
    assert await batches.batch() is None


async def test_a_batch_of_a_failed_log_comes_before_the_error(directory: Path) -> None:
    """Records that are stored are handed out; then the failure is raised, each time."""
    files = FailingSyncs()
    log = await MultiRecordLog.open(directory, filesystem=files)
    await log.create_queue("q")
    await log.append_record("q", None, b"0")
    tail = log.tail("q")
    collecting = asyncio.create_task(tail.batch(max_wait=None))
    await settle()
    files.failing = True
    with pytest.raises(LogFailedError):
        await log.append_record("q", None, b"1")
    assert positions(await collecting) == [0]
    for _ in range(2):
        with pytest.raises(LogFailedError, match="this call stored nothing"):  # true of a read as well
            await tail.batch()
    await log.close()


async def test_bad_arguments_of_a_tail(log: MultiRecordLog) -> None:
    """Each is refused when the method is called, with what is allowed."""
    with pytest.raises(QueueNotFoundError):
        log.tail("nowhere")
    for start in (-1, POSITION_MAX + 2):
        with pytest.raises(ValueError, match="position must be between 0 and"):
            log.tail("q", start)
    tail = log.tail("q", POSITION_MAX + 1)
    for limit in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            await tail.batch(max_records=limit)
        with pytest.raises(ValueError, match="at least 1"):
            tail.batches(max_bytes=limit)
    with pytest.raises(TypeError, match="max_records must be an int"):
        await tail.batch(max_records=1.5)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(TypeError, match="max_wait must be a number of seconds or None"):
        await tail.batch(max_wait="1")  # type: ignore[arg-type]  # the mistake under test
    for seconds in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="max_wait"):
            await tail.batch(max_wait=seconds)


async def test_a_closed_tail_yields_nothing_more(log: MultiRecordLog) -> None:
    """`aclose` ends the tail, not the log."""
    await log.append_record("q", None, b"0")
    tail = log.tail("q")
    await tail.aclose()
    assert await anext(tail, None) is None
    assert await tail.batch() is None


@pytest.mark.parametrize(
    ("position", "error"), [(-1, ValueError), (2**63, ValueError), ("1", TypeError), (True, TypeError)]
)
async def test_wait_for_refuses_what_is_no_position(log: MultiRecordLog, position: Any, error: type[Exception]) -> None:
    """It would be there at once, or never."""
    with pytest.raises(error, match="position must be"):
        await log.wait_for("q", position)
