"""A clock that is wrong by years when the log is opened, or while it is open: what is removed for its age, and when."""

from __future__ import annotations

import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions
from mrecordlog_async.engine.readers import expiry
from mrecordlog_async.storage.end_note import NO_DOUBT, ClockDoubt, EndNote, decode_end_note
from tests.clocks import opening
from tests.engine.test_retention import Clocks, expire, opened, positions

HOUR, DAY, YEAR = 3_600.0, 86_400.0, 365.25 * 86_400
WEEK = QueueOptions(max_age=7 * DAY)
SOON = QueueOptions(max_age=HOUR)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Clocks that the test sets."""
    monkeypatch.setattr(expiry, "SLEEP_SECONDS_MAX", 1_000.0)
    return Clocks()


async def begin(directory: Path, clocks: Clocks, options: QueueOptions = WEEK) -> None:
    """Make a log with two records, the second of them a minute younger."""
    async with opened(directory, clocks, queues={"q": options}) as log:
        for payload in (b"0", b"1"):
            await log.append("q", payload)
            clocks.pass_by(60)


def doubts(caplog: pytest.LogCaptureFixture) -> int:
    """Return how often the log said that the clock is in doubt."""
    return sum("the clock is in doubt" in record.getMessage() for record in caplog.records)


async def test_a_clock_ten_years_ahead_for_an_hour_removes_nothing(directory: Path, clocks: Clocks) -> None:
    """While the log is open: neither the jump, nor what is stored in that hour, nor the jump back."""
    await begin(directory, clocks)
    async with opened(directory, clocks) as log:
        clocks.wall += 10 * YEAR
        for number in range(6):
            clocks.pass_by(HOUR / 6)
            await log.append("q", b"%d" % number)
            assert await expire(log) == 0
        clocks.wall -= 10 * YEAR
        clocks.pass_by(HOUR)
        assert await expire(log) == 0
        assert len(positions(log)) == 8
    async with opened(directory, clocks) as log:  # the records of that hour age from here on
        clocks.pass_by(7 * DAY - 60)
        assert await expire(log) == 1
        assert positions(log) == [2, 3, 4, 5, 6, 7]
        clocks.pass_by(2 * HOUR)  # a queue is truncated at most once in a hundredth of its age
        assert await expire(log) == 1
        assert positions(log) == []


@pytest.mark.parametrize("years", [10, -10, -53.8], ids=["ahead", "behind", "in 1970"])
@pytest.mark.parametrize("restarts", [1, 2], ids=["one opening", "two openings"])
async def test_a_log_that_is_opened_by_a_wrong_clock_loses_nothing(
    directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture, years: float, restarts: int
) -> None:
    """What is stored then has the wrong time, and proves nothing; each opening says once that it waits."""
    await begin(directory, clocks)
    clocks.wall += years * YEAR
    for number in range(restarts):
        async with opened(directory, clocks) as log:
            await log.append("q", b"%d" % number)
            clocks.pass_by(500)
            assert await expire(log) == await expire(log) == 0
    assert doubts(caplog) == restarts
    clocks.wall -= years * YEAR
    async with opened(directory, clocks) as log:
        assert await expire(log) == 0
        assert len(positions(log)) == 2 + restarts
        clocks.pass_by(7 * DAY + 1)
        assert await expire(log) == 1
        assert positions(log) == []


@pytest.mark.parametrize("years", [10, -50], ids=["ahead", "behind"])
async def test_a_clock_that_is_set_in_time_is_used_as_if_it_had_been_right(
    directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture, years: float
) -> None:
    """A machine gets its time after it has started: records age by that, and what is too old goes at once."""
    caplog.set_level(logging.INFO)
    await begin(directory, clocks, SOON)
    clocks.pass_by(HOUR - 90)  # the first record is half a minute short of its age
    clocks.wall += years * YEAR
    async with opened(directory, clocks) as log:
        await log.append("q", b"2")
        clocks.pass_by(120)
        assert await expire(log) == 0
        clocks.wall -= years * YEAR
        assert await expire(log) == 1
        assert positions(log) == [2]
        clocks.pass_by(HOUR - 130)
        assert await expire(log) == 0
        clocks.pass_by(11)
        assert await expire(log) == 1
    assert "records are removed for their age again: the clock was set" in caplog.text


async def test_a_log_that_was_closed_for_a_month_removes_after_ten_minutes(
    directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock may be right: then it is believed, and the next opening does not wait."""
    caplog.set_level(logging.INFO)
    await begin(directory, clocks)
    clocks.pass_by(30 * DAY)
    async with opened(directory, clocks) as log:
        await log.append("q", b"2")
        for _ in range(59):
            clocks.pass_by(10)
            assert await expire(log) == 0
        clocks.pass_by(10)
        assert await expire(log) == 1
        assert positions(log) == [2]
    assert doubts(caplog) == 1
    assert "again: the log has been open for 10 min" in caplog.text
    clocks.pass_by(HOUR)
    caplog.clear()
    async with opened(directory, clocks) as log:
        assert await expire(log) == 0
    assert not doubts(caplog)


async def test_the_third_opening_in_a_row_does_not_wait(
    directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is restarted every minute removes as well, though it is never open for ten minutes."""
    await begin(directory, clocks)
    clocks.pass_by(30 * DAY)
    for removed in (0, 0, 1):
        clocks.pass_by(60)
        async with opened(directory, clocks) as log:
            assert await expire(log) == removed
            await log.append("q", b"new")
    assert doubts(caplog) == 2
    clocks.pass_by(30 * DAY)
    async with opened(directory, clocks) as log:  # the fourth
        assert await expire(log) == 1
        await log.append("q", b"new")
        clocks.pass_by(601)
        assert await expire(log) == 0
    clocks.wall += YEAR
    async with opened(directory, clocks) as log:  # open for ten minutes, a log begins a new row
        assert await expire(log) == 0


async def test_a_right_opening_ends_the_row(directory: Path, clocks: Clocks) -> None:
    """Two doubtful openings, a right one, and another two: none of them removes."""
    await begin(directory, clocks)
    for _ in range(2):
        clocks.wall += 10 * YEAR
        for _ in range(2):
            async with opened(directory, clocks) as log:
                assert await expire(log) == 0
        clocks.wall -= 10 * YEAR
        async with opened(directory, clocks) as log:
            assert await expire(log) == 0
            assert positions(log) == [0, 1]


async def test_a_clock_that_jumps_at_each_opening_makes_no_row(directory: Path, clocks: Clocks) -> None:
    """Ahead, right, ahead: the one in between is before the newest record, and no third one like the others."""
    await begin(directory, clocks)
    for years in (10, -10, 10, -10, 10):
        clocks.wall += years * YEAR
        async with opened(directory, clocks) as log:
            await log.append("q", b"x")
            assert await expire(log) == 0
    assert len(await contents(directory, clocks)) == 7


async def contents(directory: Path, clocks: Clocks) -> list[int]:
    """Return the positions of the records that a log holds."""
    async with opened(directory, clocks) as log:
        return positions(log)


async def test_a_row_begins_again_where_its_note_is_lost(directory: Path, clocks: Clocks) -> None:
    """Nothing depends on `LAST_END`: without it, a third opening waits like the first one."""
    await begin(directory, clocks)
    clocks.pass_by(30 * DAY)
    for _ in range(4):
        async with opened(directory, clocks) as log:
            assert await expire(log) == 0
        (directory / "LAST_END").unlink()


async def test_a_short_pause_changes_nothing(directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture) -> None:
    """Closed for less than a day, or less than the age, a log removes at once; so it does after a small step back."""
    await begin(directory, clocks, SOON)
    clocks.pass_by(DAY - 200)
    async with opened(directory, clocks) as log:
        assert await expire(log) == 1
        await log.configure_queue("q", WEEK)
        await log.append("q", b"2")
        clocks.pass_by(2 * DAY)
        await log.append("q", b"3")
    clocks.pass_by(6 * DAY)
    async with opened(directory, clocks) as log:
        assert await expire(log) == 1
        assert positions(log) == [3]
        clocks.pass_by(60)
        await log.append("q", b"4")
    clocks.wall -= 30
    async with opened(directory, clocks) as log:
        clocks.pass_by(500)
        assert await expire(log) == 0
        clocks.pass_by(DAY)
        assert await expire(log) == 1
    assert not doubts(caplog)


async def test_nothing_is_said_of_a_log_that_has_nothing_to_remove(
    directory: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """A log without an age, and one whose queues are empty, is used by any clock without a word."""
    async with opened(directory, clocks, queues={"q": WEEK, "other": QueueOptions()}) as log:
        await log.append("other", b"0")
    clocks.wall += YEAR
    async with opened(directory, clocks) as log:
        assert await expire(log) == 0
    assert not doubts(caplog)


async def test_only_queues_with_a_shorter_age_wait(directory: Path, clocks: Clocks) -> None:
    """Six days are within the age of one queue, and far beyond that of another one."""
    async with opened(directory, clocks, queues={"soon": SOON, "week": WEEK}) as log:
        await log.append("week", b"0")
        clocks.pass_by(DAY * 1.5)
        await log.append("soon", b"0")
    clocks.pass_by(6 * DAY)
    async with opened(directory, clocks) as log:
        assert await expire(log) == 1
        assert (positions(log, "week"), positions(log, "soon")) == ([], [0])
        clocks.pass_by(601)
        assert await expire(log) == 1
        assert positions(log, "soon") == []


async def test_acknowledged_records_wait_too(directory: Path, clocks: Clocks) -> None:
    """`keep_at_least` is an age as well."""
    options = QueueOptions(keep="until_acknowledged", keep_at_least=HOUR)
    await begin(directory, clocks, options)
    clocks.wall += YEAR
    async with opened(directory, clocks, consumers={"q": ["c"]}) as log:
        async with log.consumer("q", "c") as consumer:
            await consumer.acknowledge(1)
        assert await expire(log) == 0
        assert positions(log) == [0, 1]
        clocks.pass_by(601)
        assert await expire(log) == 1


async def test_a_queue_that_gets_an_age_meanwhile_waits_too(directory: Path, clocks: Clocks) -> None:
    """The doubt is about the clock, whichever queues had an age when the log was opened."""
    await begin(directory, clocks)
    clocks.wall += YEAR
    async with opened(directory, clocks) as log:
        await log.configure_queue("q", SOON)
        assert await expire(log) == 0
        clocks.pass_by(601)
        assert await expire(log) == 1


@pytest.mark.parametrize("jump", [10 * YEAR, 8 * DAY], ids=["years", "days"])
async def test_a_kill_right_after_a_jump_removes_nothing(
    directory: Path, clocks: Clocks, tmp_path: Path, jump: float
) -> None:
    """Nobody has noted that the clock was set while the log was open: the times of the last records say it."""
    await begin(directory, clocks)
    async with opened(directory, clocks) as log:
        await expire(log)
        clocks.pass_by(50)
        clocks.wall += jump
        for number in range(5):
            await log.append("q", b"%d" % number)
            clocks.pass_by(2)
        shutil.copytree(directory, killed := tmp_path / "killed")
    for _ in range(2):
        clocks.pass_by(20)
        async with opened(killed, clocks) as log:
            assert await expire(log) == 0
            assert len(positions(log)) == 7
    clocks.wall -= jump
    async with opened(killed, clocks) as log:
        clocks.pass_by(601)
        assert await expire(log) == 0


YEARS = [1960, 1970, 1985, 2038, 2106, 2262, 2400, 9999, 30_000]


@pytest.mark.parametrize("year", YEARS)
async def test_times_of_any_clock_are_read(directory: Path, clocks: Clocks, year: int) -> None:
    """Nothing raises: not storing, not opening, not removing, and not looking at the times, then or later."""
    before = clocks.wall
    async with opened(directory, clocks, queues={"q": SOON}) as log:
        await log.append("q", b"0")
        clocks.wall = (year - 1969.5) * YEAR
        await log.append("q", b"1")
        await expire(log)
    async with opened(directory, clocks) as log:
        await log.append("q", b"2")
        await expire(log)
        batch = await log.fetch("q")
        assert batch is not None
        assert [time.year for time in batch.times() if time] == [2023, *[min(max(year, 1970), 2262)] * 2]
    clocks.wall = before
    async with opened(directory, clocks) as log:
        await expire(log)
        assert [payload for _, payload in log.range("q")] == [b"0", b"1", b"2"]
        assert log.queue_summary("q").age_seconds is not None
        assert log.position_at("q", datetime(2023, 1, 1, tzinfo=UTC)) == 0
        assert log.time_of("q", 1) is not None


def test_the_note_of_a_row_is_text_that_may_be_anything() -> None:
    """What cannot be read counts as no row; the cause of a failure keeps its line."""
    for doubt in (ClockDoubt(2, 17_000_000_000), ClockDoubt(1, 5, is_behind=True), ClockDoubt(0, 7), NO_DOUBT):
        note = EndNote(3, "disk", doubt)
        assert decode_end_note(note.encode()) == note
    assert decode_end_note(EndNote(1, "x" * 9_000, ClockDoubt(1, 5)).encode()).doubt == ClockDoubt(1, 5)
    for text in (b"", b"openings with the clock in doubt: 2", b"openings with the clock in doubt: x, y", b"\xff\n" * 9):
        assert decode_end_note(text).doubt == NO_DOUBT


async def test_copies_and_readers_are_not_concerned(directory: Path, clocks: Clocks, tmp_path: Path) -> None:
    """A reader removes nothing, and a log that is opened without retention neither."""
    await begin(directory, clocks)
    clocks.pass_by(YEAR)
    shutil.copytree(directory, tmp_path / "copy")
    async with opening(tmp_path / "copy", clocks.clock, retention=False) as log:
        assert isinstance(log, MultiRecordLog)
        assert positions(log) == [0, 1]
