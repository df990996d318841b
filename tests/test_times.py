"""Times of records in an open log, after restarts, and in logs that are only read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog, QueueNotFoundError, ReadOnlyLog
from mrecordlog_async.model import TICK_NS, time_of_tick
from mrecordlog_async.support.clock import Clock
from tests.clocks import opening

SEGMENT = 2 * 32_768


class WallClock:
    """The clock of the machine, which the test sets, in ticks of 0.1 s."""

    def __init__(self, tick: int) -> None:
        self.tick = tick

    def time_ns(self) -> int:
        """Return the time, a little after the tick."""
        return self.tick * TICK_NS + 12_345_678


@pytest.fixture
def clock() -> WallClock:
    """The clock that COMMITs get their time from."""
    return WallClock(16_000_000_000)


def times_of(log: Any, queue: str = "q") -> dict[int, datetime | None]:
    """Return the time of each retained record."""
    return {record.position: log.time_of(queue, record.position) for record in log.range(queue)}


async def fill(log: MultiRecordLog, clock: WallClock, *, step: int = 3) -> dict[int, datetime]:
    """Append over several segments, in several ways, while the clock moves on; return the times."""
    due: dict[int, datetime] = {}
    for number in range(60):
        clock.tick += step
        if number % 3 == 0:
            await log.append_record("q", None, b"x" * 1_000)
            due[log.next_position("q") - 1] = time_of_tick(clock.tick)
        elif number % 3 == 1:
            last = await log.append_records("q", log.next_position("q") + number % 2, [b"y" * 500] * 5)
            assert last is not None
            due |= dict.fromkeys(range(last - 4, last + 1), time_of_tick(clock.tick))
        else:
            queues = ["q", *"abcde"]
            futures = [log.append_soon(name, b"z" * 10) for name in queues]
            due[await futures[0]] = time_of_tick(clock.tick)
            await asyncio.gather(*futures)
    return due


@pytest.mark.parametrize("step", [3, -1])
async def test_times_are_the_same_after_every_restart(directory: Path, clock: WallClock, step: int) -> None:
    """Open, reopened and only read, each record has the time of its batch, even if the clock goes backwards."""
    async with opening(directory, Clock(clock.time_ns), segment_bytes=SEGMENT) as log:
        for queue in ["q", *"abcde"]:
            await log.create_queue(queue)
        due = await fill(log, clock, step=step)
        await log.truncate("q", 20)
        due = {position: time for position, time in due.items() if position > 20}
        assert times_of(log) == due
        readers = await asyncio.to_thread(
            lambda: (ReadOnlyLog.open(directory), ReadOnlyLog.open(directory, keep_records=False))
        )
        assert times_of(readers[0]) == due
        clock.tick += step
        due[await log.append("q", b"x")] = time_of_tick(clock.tick)
        await asyncio.to_thread(_compare_after_refresh, *readers, due)
    clock.tick += 1_000
    for _ in range(2):
        async with opening(directory, Clock(clock.time_ns), segment_bytes=SEGMENT) as log:
            assert times_of(log) == due
            for time in {*due.values()}:
                first = min(position for position, stored_at in due.items() if stored_at >= time)
                found = log.position_at("q", time)
                assert found <= first
                assert next(iter(log.range("q", found, limit=1))).position == first


def _compare_after_refresh(reader: ReadOnlyLog, stored: ReadOnlyLog, due: dict[int, datetime]) -> None:
    """Compare what the two see after another append."""
    assert reader.refresh()
    assert stored.refresh()
    assert times_of(reader) == due
    for time in due.values():
        assert stored.position_at("q", time) == reader.position_at("q", time)
    oldest = reader.queue_summary("q").oldest_time
    assert stored.summary()["q"].oldest_time == oldest == min(due.items())[1]


async def test_the_time_of_a_batch_is_known_before_its_callers_wake(log: MultiRecordLog) -> None:
    """A record has a time as soon as its append returns, one that is not later than now."""
    before = datetime.now(UTC)
    position = await log.append("q", b"x")
    time = log.time_of("q", position)
    assert time is not None
    assert before - timedelta(seconds=0.1) <= time <= datetime.now(UTC)
    assert time.microsecond % 100_000 == 0
    summary = log.queue_summary("q")
    assert summary.oldest_time == time
    assert summary.age_seconds is not None
    assert 0 <= summary.age_seconds < 600


async def test_reads_start_at_a_time(log: MultiRecordLog, clock: WallClock) -> None:
    """range, runs, held and tail take a time, and begin with the first record stored then or later."""
    log._engine.opened.journal.clock = Clock(clock.time_ns)
    for number in range(5):
        clock.tick += 10
        await log.append("q", b"%d" % number)
    second = time_of_tick(clock.tick - 30)
    later = second + timedelta(seconds=0.3)
    assert [record.position for record in log.range("q", second)] == [1, 2, 3, 4]
    assert [record.position for record in log.range("q", later, limit=2)] == [2, 3]
    assert log.runs("q", later)[0].first_position == 2
    assert log.inspection.held("q", later)[0].first_position == 2
    assert (await anext(log.tail("q", later))).position == 2
    assert log.position_at("q", second - timedelta(days=900)) == 0
    assert log.position_at("q", datetime.now(UTC)) == 5


async def test_a_program_that_replaces_the_time_dates_records_with_it(
    log: MultiRecordLog, clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the tests of applications do, with freezegun for example."""
    monkeypatch.setattr("time.time_ns", clock.time_ns)
    assert log.time_of("q", await log.append("q", b"x")) == time_of_tick(clock.tick)


async def test_times_of_what_is_not_there(log: MultiRecordLog) -> None:
    """Truncated, skipped and unassigned positions have no time, and an empty queue has no age."""
    assert log.queue_summary("q").oldest_time is None
    assert log.queue_summary("q").age_seconds is None
    for position in (3, 7):
        await log.append_record("q", position, b"x")
    assert [log.time_of("q", position) is not None for position in (2, 3, 5, 7, 8)] == [False, True, False, True, False]
    await log.truncate("q", 3)
    assert log.time_of("q", 3) is None
    assert log.queue_summary("q").oldest_time == log.time_of("q", 7)
    await log.truncate("q", 7)
    assert log.queue_summary("q").oldest_time is None
    assert log.position_at("q", datetime.now(UTC)) == 8


async def test_mistakes_with_times(log: MultiRecordLog) -> None:
    """A time in the future, one without a zone and a number are refused with what to do."""
    calls: list[Callable[[Any], object]] = [
        lambda time: log.position_at("q", time),
        lambda time: log.range("q", time),
        lambda time: log.runs("q", time),
        lambda time: log.tail("q", time),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="in the future"):
            call(datetime.now(UTC) + timedelta(days=1))
        with pytest.raises(ValueError, match=r"no time zone: use datetime.now\(UTC\)"):
            call(datetime.now())  # the mistake under test
    with pytest.raises(TypeError, match="must be a datetime"):
        log.position_at("q", 1.5e9)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(QueueNotFoundError):
        log.position_at("nowhere", datetime.now(UTC))
    with pytest.raises(QueueNotFoundError):
        log.time_of("nowhere", 0)


async def test_times_survive_a_kill(directory: Path, clock: WallClock) -> None:
    """A log that was not closed is read with the times that its callers saw."""
    log = await opening(directory, Clock(clock.time_ns))
    await log.create_queue("q")
    for _ in range(5):
        clock.tick += 7
        await log.append("q", b"x")
    due = times_of(log)
    assert await asyncio.to_thread(lambda: times_of(ReadOnlyLog.open(directory))) == due
    await log.close()
