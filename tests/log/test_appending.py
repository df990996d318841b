"""Appending: positions, the syncs that callers share, and what is measured of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogFullError,
    MultiRecordLog,
    PersistPolicy,
    PositionInPastError,
    QueueNameError,
    QueueNotFoundError,
    RecordTooLargeError,
)
from mrecordlog_async.engine.commit.writer import CALLERS_PER_TURN
from tests.conftest import contents


async def test_appended_records_are_there_after_reopening(directory: Path) -> None:
    """Acknowledged records are found again at the positions that were returned."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        assert await log.append_record("q", None, b"a") == 0
        assert await log.append_records("q", None, [b"b", b"c"]) == 2
        before = contents(log)
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == before == {"q": (0, 3, [(0, b"a"), (1, b"b"), (2, b"c")])}
        assert log.recovery_report.clean
        assert log.recovery_report.records == 3


@pytest.mark.parametrize("calls", ["single records", "single records of many queues", "calls of several records"])
async def test_loop_gets_a_turn_while_many_callers_are_woken(log: MultiRecordLog, calls: str) -> None:
    """Callers of one batch are not all woken in one turn of the event loop, which would block it."""
    await asyncio.gather(*(log.create_queue(f"q{n}") for n in range(7)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def caller(number: int) -> tuple[int, int | None]:
        queue = f"q{number % 7}" if calls == "single records of many queues" else "q0"
        if calls == "calls of several records":
            position = await log.append_records(queue, None, [b"a", b"b"])
        else:
            position = await log.append_record(queue, None, b"a")
        return turns, position

    counting = asyncio.create_task(count_turns())
    results = await asyncio.gather(*(caller(number) for number in range(1000)))
    counting.cancel()
    assert max(Counter(turn for turn, _ in results).values()) <= CALLERS_PER_TURN
    assert [turn for turn, _ in results] == sorted(turn for turn, _ in results)
    queues = 7 if calls == "single records of many queues" else 1
    records = 2 if calls == "calls of several records" else 1
    assert [position for _, position in results] == [(n // queues + 1) * records - 1 for n in range(1000)]


async def test_batches_that_began_a_segment_are_timed_by_themselves(directory: Path) -> None:
    """The delay of a roll is distinct from the disk's usual time."""
    async with MultiRecordLog.open(directory, segment_bytes=65_536) as log:
        await log.create_queue("q")
        for _ in range(10):
            await log.append_record("q", None, bytes(30_000))
        stats = log.stats()
    assert stats.rolls == stats.roll_seconds.count == 4
    assert 0 < stats.roll_seconds.sum < stats.commit_seconds.sum


async def test_batches_are_counted_by_the_records_in_them(log: MultiRecordLog) -> None:
    """A run of three records counts as three, however it is laid out on the disk."""
    before = log.stats().commit_records.sum
    await log.append_records("q", None, [b"a", b"b", b"c"])
    assert log.stats().commit_records.sum - before == 3


async def test_positions_follow_arrival_order(log: MultiRecordLog) -> None:
    """Concurrent callers get consecutive positions in the order in which they called."""
    results = await asyncio.gather(*(log.append_record("q", None, b"%d" % n) for n in range(500)))
    assert results == list(range(500))
    assert [payload for _, payload in log.range("q")] == [b"%d" % n for n in range(500)]


async def test_concurrent_callers_share_syncs(log: MultiRecordLog) -> None:
    """A thousand callers cost at most a hundredth as many fsyncs as records."""

    async def caller() -> None:
        for _ in range(20):
            await log.append_record("q", None, b"x" * 100)

    before = log.stats()
    await asyncio.gather(*(caller() for _ in range(1000)))
    after = log.stats()
    assert after.appended_records - before.appended_records == 20_000
    assert after.syncs - before.syncs <= 200


async def test_position_of_the_caller_may_leave_a_gap(log: MultiRecordLog) -> None:
    """A position in the future is taken as it is; the gap holds nothing."""
    assert await log.append_record("q", 5, b"a") == 5
    assert log.first_position("q") == 5
    assert await log.append_records("q", 10, [b"b", b"c"]) == 11
    assert list(log.range("q")) == [(5, b"a"), (10, b"b"), (11, b"c")]
    assert log.next_position("q") == 12


async def test_nothing_to_append_returns_none(log: MultiRecordLog) -> None:
    """An empty batch writes nothing."""
    before = log.stats().commits
    assert await log.append_records("q", None, []) is None
    assert log.stats().commits == before
    with pytest.raises(QueueNotFoundError):
        await log.append_records("nowhere", None, [])


async def test_empty_payloads_are_records(log: MultiRecordLog, directory: Path) -> None:
    """A record of no bytes has a position like any other."""
    assert await log.append_records("q", None, [b"", b"x", b""]) == 2
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert list(again.range("q")) == [(0, b""), (1, b"x"), (2, b"")]


async def test_payload_is_copied_when_called(log: MultiRecordLog) -> None:
    """Changing a bytearray after the call, before the await, changes nothing in the log."""
    mutable = bytearray(b"before")
    call = log.append_record("q", None, mutable)
    batch = log.append_records("q", None, [mutable, memoryview(mutable)])
    mutable[:] = b"after!"
    await call
    await batch
    assert [payload for _, payload in log.range("q")] == [b"before"] * 3


async def test_an_append_may_create_its_queue(log: MultiRecordLog) -> None:
    """Only if it does not exist; calls that arrive together keep their order and create one queue."""
    assert await log.append_record("new", None, b"a", create=True) == 0
    assert await log.append_records("new", None, [b"b", b"c"], create=True) == 2
    assert await log.append_records("other", 7, [b"a"], create=True) == 7
    assert await log.append("third", b"a", 7, create=True) == 7
    positions = await asyncio.gather(*(log.append("fourth", b"%d" % n, create=True) for n in range(20)))
    assert positions == list(range(20))
    assert [record.payload for record in log.range("fourth")] == [b"%d" % n for n in range(20)]


async def test_creating_for_an_append_costs_nothing_once_the_queue_exists(log: MultiRecordLog) -> None:
    """The create is sent only if there is no such queue."""
    before = log.stats().commits
    assert await log.append("q", b"a", create=True) == 0
    assert log.stats().commits == before + 1


async def test_an_append_that_creates_raises_what_the_create_raises(directory: Path) -> None:
    """A wrong name, or one queue too many."""
    async with MultiRecordLog.open(directory, limits=Limits(queues=1), queues=["q"]) as log:
        with pytest.raises(QueueNameError):
            await log.append("", b"a", create=True)
        with pytest.raises(LogFullError) as caught:
            await log.append("second", b"a", create=True)
        assert caught.value.resource == "queues"


async def test_append_is_append_record_with_the_position_last(log: MultiRecordLog) -> None:
    """Without a position it takes the next one; with one a repeat is recognized."""
    assert await log.append("q", b"a") == 0
    assert await log.append("q", b"b", 5) == 5
    assert await log.append("q", b"b", 5) is None
    with pytest.raises(TypeError, match="encode it first"):
        await log.append("q", "text")  # type: ignore[call-overload]  # what a user may do


async def test_calls_of_one_batch_see_each_other(log: MultiRecordLog) -> None:
    """Create, append, truncate, delete and create again without waiting do what they do one by one."""
    results = await asyncio.gather(
        log.create_queue("r"),
        log.append_record("r", None, b"a"),
        log.append_record("r", None, b"b"),
        log.truncate("r", 0),
        log.append_record("r", None, b"c"),
        log.delete_queue("r"),
        log.append_record("r", None, b"lost"),
        log.create_queue("r"),
        log.append_record("r", None, b"d"),
        return_exceptions=True,
    )
    assert results[:6] == [True, 0, 1, 1, 2, None]
    assert isinstance(results[6], QueueNotFoundError)
    assert results[7:] == [True, 0]
    assert list(log.range("r")) == [(0, b"d")]


async def test_record_of_exactly_the_limit_is_taken(directory: Path) -> None:
    """`record_bytes` is the largest payload that is allowed, alone and among others."""
    async with MultiRecordLog.open(directory, limits=Limits(record_bytes=1_000, pending_bytes=5_000)) as log:
        await log.create_queue("q")
        assert await log.append_record("q", None, bytes(1_000)) == 0
        assert await log.append_records("q", None, [bytes(1_000), b""]) == 2
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [b"", bytes(1_001)])


async def test_every_sync_is_timed(directory: Path) -> None:
    """The counters report one duration for every sync."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"x")
        await log.sync()
        stats = log.stats()
        assert stats.syncs == stats.sync_seconds.count == 2


async def test_an_append_takes_at_least_as_long_as_its_commit(log: MultiRecordLog) -> None:
    """On both event loops: the loop's own clock may stand still, and every append is counted."""
    for count in range(1, 31):
        before = log.stats()
        await asyncio.gather(*(log.append_record("q", None, b"a") for _ in range(count % 3 + 1)))
        after = log.stats()
        took = after.append_seconds.sum - before.append_seconds.sum
        assert took >= after.commit_seconds.sum - before.commit_seconds.sum > 0
        assert after.append_seconds.count - before.append_seconds.count == count % 3 + 1


async def test_repeats_and_appends_in_the_past_are_timed_in_every_batch(log: MultiRecordLog) -> None:
    """Each call that the log decided counts once, whether its batch stores something else or not."""
    await log.append_records("q", 0, [b"a"])
    before = log.stats().append_seconds.count
    assert await log.append_records("q", 0, [b"a"]) is None
    assert log.stats().append_seconds.count - before == 1, "a repeat alone"
    with pytest.raises(PositionInPastError):
        await log.append_records("q", 0, [b"b"])
    assert log.stats().append_seconds.count - before == 2, "a refused one alone"
    calls = [(0, b"a"), (0, b"b"), (1, b"c")]
    await asyncio.gather(*(log.append_records("q", at, [one]) for at, one in calls), return_exceptions=True)
    assert log.stats().append_seconds.count - before == 5, "both, next to one that is stored"
