"""`consumer_visible_seconds`: how long acknowledged records had been stored, each counted once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from mrecordlog_async import Limits, MultiRecordLog, QueueOptions
from mrecordlog_async.engine.commit.writer import SPANS_MAX
from mrecordlog_async.metrics import CONSUMERS_COUNTED
from mrecordlog_async.support.clock import Clock
from tests.clocks import opening

Keep = Literal["until_truncated", "until_acknowledged"]


class SetTime:
    """A wall clock that a test sets. seconds: since 1970."""

    seconds = 1_000_000.0

    def __call__(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def now() -> SetTime:
    """What the log's clock shows."""
    return SetTime()


@pytest.fixture
async def log(directory: Path, now: SetTime) -> AsyncIterator[MultiRecordLog]:
    """A log with the queue `q`, whose consumer `c` has no record yet."""
    async with opening(directory, Clock(wall_ns=now)) as opened:
        await opened.create_queue("q")
        await opened.create_consumer("q", "c")
        yield opened


async def acknowledge(log: MultiRecordLog, position: int, consumer: str = "c", queue: str = "q") -> None:
    """Acknowledge up to *position*."""
    async with log.consumer(queue, consumer) as holder:
        await holder.acknowledge(position)


def visible(log: MultiRecordLog, consumer: str = "c") -> tuple[int, float]:
    """Return how many records a consumer has acknowledged, and the seconds that they had been stored, together."""
    found = log.stats().consumer_visible_seconds.get(consumer)
    return (found.count, round(found.sum, 6)) if found is not None else (0, 0.0)


@pytest.mark.parametrize("keep", ["until_truncated", "until_acknowledged"])
async def test_each_record_counts_with_its_time(log: MultiRecordLog, now: SetTime, keep: Keep) -> None:
    """Even if its acknowledgement removes it; what is acknowledged twice counts once."""
    await log.configure_queue("q", QueueOptions(keep=keep))
    for _ in range(3):
        await log.append_records("q", None, [b"a", b"b"])
        now.seconds += 10
    await acknowledge(log, 2)
    assert visible(log) == (3, 30 + 30 + 20)
    now.seconds += 1
    await acknowledge(log, 2)
    await acknowledge(log, 5)
    assert visible(log) == (6, 80 + 21 + 11 + 11)


@pytest.mark.parametrize("together", [1, 3])
async def test_loose_records_count_with_their_times(log: MultiRecordLog, now: SetTime, together: int) -> None:
    """Records of single appends have the times of their blocks."""
    for _ in range(6):
        await log.append("q", b"a")
        now.seconds += 1
    for position in range(together - 1, 6, together):
        await acknowledge(log, position)
    assert visible(log) == (6, 6 + 5 + 4 + 3 + 2 + 1)


async def test_what_nobody_acknowledges_does_not_count(log: MultiRecordLog, now: SetTime) -> None:
    """A seek, an operator and a truncate move a consumer without giving it records."""
    await log.append_records("q", None, [b"x"] * 10)
    now.seconds += 5
    async with log.consumer("q", "c") as consumer:
        await consumer.seek(3)
    await log.seek_consumer("q", "c", 4)
    await log.truncate("q", 5, past_consumers=True)
    assert visible(log) == (0, 0)
    await acknowledge(log, 7)
    assert visible(log) == (2, 10)


async def test_positions_without_records_do_not_count(log: MultiRecordLog, now: SetTime) -> None:
    """A queue may have gaps of any length between its records."""
    for position in (5, 6, 1 << 40, 1 << 50):
        await log.append("q", b"x", position=position)
        now.seconds += 1
    await acknowledge(log, 1 << 40)
    assert visible(log) == (3, 4 + 3 + 2)


async def test_many_times_are_grouped(log: MultiRecordLog, now: SetTime) -> None:
    """What an acknowledgement takes has a bound, though it may be of a night; every record counts."""
    times = 20 * SPANS_MAX
    for _ in range(times):
        await log.append_records("q", None, [b"x", b"y"])
        now.seconds += 1
    before = log.stats()
    assert before.consumer_visible_seconds == {}
    await acknowledge(log, 2 * times - 1)
    count, seconds = visible(log)
    assert count == 2 * times
    exact = times * (times + 1)
    assert exact <= seconds <= exact * (1 + 2 / SPANS_MAX)


async def test_a_clock_that_went_back_makes_no_time_negative(log: MultiRecordLog, now: SetTime) -> None:
    """The record was stored in the future: it counts with zero."""
    await log.append("q", b"x")
    now.seconds -= 100
    await log.append("q", b"x")
    now.seconds += 10
    await acknowledge(log, 1)
    assert visible(log) == (2, 10)


async def test_consumers_beyond_the_first_hundred_share_a_histogram(log: MultiRecordLog, now: SetTime) -> None:
    """A name for each user does not make /metrics very long."""
    await log.append("q", b"x")
    now.seconds += 2
    for number in range(CONSUMERS_COUNTED + 3):
        await log.create_consumer("q", f"c{number}", start=0)
        await acknowledge(log, 0, f"c{number}")
    assert visible(log, "c0") == visible(log, f"c{CONSUMERS_COUNTED - 1}") == (1, 2)
    assert visible(log, "") == (3, 6)
    assert len(log.stats().consumer_visible_seconds) == CONSUMERS_COUNTED + 1


async def test_records_on_the_disk_count_with_the_times_of_their_places(directory: Path, now: SetTime) -> None:
    """No acknowledgement reads the disk: a place has the time of its newest record."""
    limits = Limits(memory_bytes=1 << 20, beyond_memory="disk")
    async with opening(directory, Clock(wall_ns=now), limits=limits) as log:
        await log.create_queue("q", options=QueueOptions(keep="until_acknowledged"))
        await log.create_consumer("q", "c")
        while not log.memory_first("q"):
            await log.append_records("q", None, [bytes(1_000)] * 50)
        now.seconds += 60
        end = log.next_position("q")
        await acknowledge(log, end - 1)
        assert visible(log) == (end, 60 * end)
