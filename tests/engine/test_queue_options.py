"""Options of queues and their seal: what is refused, what makes room, and what survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogFullError,
    MultiRecordLog,
    PositionInPastError,
    QueueNotFoundError,
    QueueOptions,
    QueueOptionsError,
    QueueSealedError,
    RecordTooLargeError,
)
from mrecordlog_async.maintenance.changing import open_to_change

TEN = QueueOptions(max_records=10)
TEN_NEWEST = QueueOptions(max_records=10, when_full="drop_oldest")


@pytest.fixture
async def log(directory: Path) -> AsyncIterator[MultiRecordLog]:
    """An empty log."""
    async with MultiRecordLog.open(directory) as opened:
        yield opened


def positions(log: MultiRecordLog, queue: str) -> list[int]:
    """Return the positions that a queue retains."""
    return [record.position for record in log.range(queue)]


async def test_a_full_queue_refuses_and_the_others_go_on(log: MultiRecordLog) -> None:
    """The error names the queue; records of the same batch for other queues, and those that fit, are stored."""
    await log.create_queue("noisy", options=TEN)
    await log.create_queue("quiet")
    calls = [log.append_record(queue, None, b"x") for _ in range(20) for queue in ("noisy", "quiet")]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[1::2] == [*range(20)] and results[:20:2] == [*range(10)]
    for error in results[20::2]:
        assert isinstance(error, LogFullError)
        assert (error.resource, error.queue, error.used, error.limit, error.unit) == (
            "queue",
            "noisy",
            10,
            10,
            "records",
        )
    with pytest.raises(LogFullError, match="'noisy' is full: it holds 10 of 10 records"):
        await log.append_record("noisy", None, b"x")
    with pytest.raises(LogFullError):
        await log.append_records("noisy", None, [b"x", b"y"])
    await log.truncate("noisy", 4)
    assert await log.append_records("noisy", None, [b"x"] * 5) == 14


async def test_nobody_stands_in_line_for_a_full_queue(directory: Path) -> None:
    """A log that waits for space refuses at once what a queue's own limit refuses."""
    async with MultiRecordLog.open(directory, limits=Limits(on_full="wait")) as log:
        await log.create_queue("q", options=QueueOptions(max_bytes=100))
        await log.append_record("q", None, bytes(60))
        with pytest.raises(LogFullError, match="60 of 100 bytes"):
            await log.append_record("q", None, bytes(41))
        await log.append_record("q", None, bytes(40))
        assert log.queue_summary("q").bytes == 100


@pytest.mark.parametrize("options", [TEN, TEN_NEWEST])
async def test_a_call_larger_than_the_limit_never_fits(log: MultiRecordLog, options: QueueOptions) -> None:
    """It is refused at once, and nothing is dropped for it."""
    await log.create_queue("q", options=options)
    await log.append_record("q", None, b"x")
    with pytest.raises(RecordTooLargeError, match="11 records exceed max_records"):
        await log.append_records("q", None, [b"x"] * 11)
    assert positions(log, "q") == [0]


async def test_a_repeat_is_recognized_before_any_limit_or_seal(log: MultiRecordLog) -> None:
    """So a lost answer never looks like a refusal."""
    await log.create_queue("q", options=TEN)
    await log.append_records("q", 0, [b"x"] * 10)
    assert await log.append_records("q", 0, [b"x"] * 10) is None
    await log.seal_queue("q")
    assert await log.append_records("q", 0, [b"x"] * 10) is None
    with pytest.raises(PositionInPastError):
        await log.append_record("q", 9, b"other")
    with pytest.raises(QueueSealedError):
        await log.append_record("q", 10, b"x")


async def test_the_oldest_records_make_room(directory: Path, log: MultiRecordLog) -> None:
    """Down to 90 % at a time, by count or by bytes, including for many records of one batch; they are counted."""
    await log.create_queue("q", options=TEN_NEWEST)
    await log.append_records("q", None, [b"x"] * 10)
    assert await log.append_record("q", None, b"x") == 10
    assert positions(log, "q") == [*range(2, 11)]
    assert await log.append_records("q", None, [b"x"] * 10) == 20
    assert positions(log, "q") == [*range(11, 21)]
    assert await asyncio.gather(*(log.append_record("q", None, b"x") for _ in range(25))) == [*range(21, 46)]
    assert positions(log, "q") == [*range(37, 46)]
    assert log.stats().dropped_records == log.stats().truncated_records == 37
    await log.configure_queue("q", QueueOptions(max_bytes=100, when_full="drop_oldest"))
    await log.append_record("q", 50, bytes(95))
    assert positions(log, "q") == [50]
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert again.queue_options("q") == QueueOptions(max_bytes=100, when_full="drop_oldest")
        assert positions(again, "q") == [50]


async def test_a_seal_is_final(directory: Path, log: MultiRecordLog) -> None:
    """Appends of the same batch after it are refused, those before it stored; even after a restart, until deleted."""
    await log.create_queue("q")
    first = asyncio.ensure_future(log.append_record("q", None, b"x"))
    await asyncio.sleep(0)
    sealed = asyncio.ensure_future(log.seal_queue("q"))
    await asyncio.sleep(0)
    late = asyncio.gather(*(log.append_record("q", None, b"y") for _ in range(3)), return_exceptions=True)
    assert (await first, await sealed) == (0, 1)
    assert [type(error) for error in await late] == [QueueSealedError] * 3
    with pytest.raises(QueueSealedError, match="ends before position 1"):
        await log.seal_queue("q")
    await log.configure_queue("q", TEN)
    assert log.queue_summary("q").sealed
    assert [record async for record in log.tail("q")] == [*log.range("q")]
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert again.queue_summary("q").sealed and again.queue_options("q") == TEN
        with pytest.raises(QueueSealedError):
            await again.append_records("q", None, [b"x"])
        await again.delete_queue("q")
        await again.create_queue("q")
        assert await again.append_record("q", None, b"x") == 0


async def test_appends_in_line_are_refused_by_the_seal(directory: Path) -> None:
    """They were called before it, but not stored."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=100_000, on_full="wait")) as log:
        await log.create_queue("q")
        await log.create_queue("full")
        await log.append_record("full", None, bytes(90_000))
        waiting = asyncio.ensure_future(log.append_record("q", None, bytes(20_000)))
        await asyncio.sleep(0)
        await log.seal_queue("q")
        assert not waiting.done()
        await log.truncate("full", 0)
        with pytest.raises(QueueSealedError):
            await waiting


async def test_a_full_memory_names_the_largest_queue(directory: Path) -> None:
    """Not the queue that happened to ask."""
    async with MultiRecordLog.open(directory, limits=Limits(memory_bytes=100_000)) as log:
        await log.create_queue("forgotten")
        await log.create_queue("q")
        await log.append_record("forgotten", None, bytes(90_000))
        with pytest.raises(LogFullError, match="queue 'forgotten' holds the most"):
            await log.append_record("q", None, bytes(20_000))


@pytest.mark.parametrize(
    "options",
    [
        {"keep": "for ever"},
        {"when_full": "explode"},
        {"max_records": 0},
        {"max_records": 1.5},
        {"max_bytes": -1},
        {"max_bytes": True},
        {"max_age": 0},
        {"max_age": float("nan")},
        {"max_age": "1 day"},
        {"when_full": "drop_oldest"},
        {"keep": "until_acknowledged", "when_full": "drop_oldest", "max_records": 5},
        {"keep": "until_acknowledged", "max_age": 60},
        {"keep_at_least": 60},
        {"keep": "until_acknowledged", "keep_at_least": 0},
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, object]) -> None:
    """Where they are made, with the values that contradict."""
    with pytest.raises(ValueError, match=r"must be|cannot be combined|needs"):
        QueueOptions(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_a_limit_that_is_too_large_names_the_largest() -> None:
    """The advice fits the value."""
    with pytest.raises(ValueError, match=r"max_bytes must be None or an integer in 1 … 9223372036854775807, not 2\d+$"):
        QueueOptions(max_bytes=2**64 + 10**19)
    with pytest.raises(
        ValueError, match=r"max_age must be None or seconds above 0 and at most 9223372036, not 100000000000\.0$"
    ):
        QueueOptions(max_age=1e11)


@pytest.mark.parametrize(
    "options",
    [
        QueueOptions(),
        QueueOptions(keep="until_acknowledged", max_bytes=5, max_records=7),
        QueueOptions(keep="until_acknowledged", keep_at_least=3600),
        QueueOptions(max_age=0.25, max_bytes=2**63 - 1, when_full="drop_oldest"),
    ],
)
async def test_options_are_read_as_they_were_written(directory: Path, options: QueueOptions) -> None:
    """From memory, from the table of a segment, and after they were replaced."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("new", options=options)
        await log.create_queue("old", options=TEN)
        await log.configure_queue("old", options)
        assert log.queue_options("new") == log.queue_options("old") == options
        assert not await log.create_queue("new", options=TEN, exist_ok=True)
    async with MultiRecordLog.open(directory) as log:
        assert log.queue_options("new") == log.queue_options("old") == options


async def test_limits_below_what_is_stored_are_refused(log: MultiRecordLog) -> None:
    """A queue that drops its oldest records drops them with the next append."""
    await log.append_records("q", None, [b"xx"] * 20, create=True)
    for options in (TEN, QueueOptions(max_bytes=39)):
        with pytest.raises(QueueOptionsError, match=r"is below the (20|40) that it holds"):
            await log.configure_queue("q", options)
    await log.configure_queue("q", TEN_NEWEST)
    assert len(positions(log, "q")) == 20
    await log.append_record("q", None, b"x")
    assert positions(log, "q") == [*range(12, 21)]
    with pytest.raises(QueueNotFoundError):
        await log.configure_queue("nowhere", TEN)
    with pytest.raises(QueueNotFoundError):
        await log.seal_queue("nowhere")


async def test_a_log_without_its_records_drops_none(directory: Path, log: MultiRecordLog) -> None:
    """Opened for its positions alone, it cannot know which records to drop: the append is refused instead."""
    await log.create_queue("q", options=TEN_NEWEST)
    await log.append_records("q", None, [b"x"] * 10)
    await log.close()
    async with (await open_to_change(directory)).log as changing:
        with pytest.raises(LogFullError, match="'q' is full"):
            await changing.append_record("q", None, b"x")


async def test_a_limit_counts_single_records_of_its_own_batch(log: MultiRecordLog) -> None:
    """A limit below what earlier calls of the batch have stored is refused, even if one of them looked before that."""
    await log.append_records("q", None, [b"x", b"x"], create=True)
    results = await asyncio.gather(
        log.configure_queue("q", QueueOptions(max_records=1)),
        *(log.append("q", b"y") for _ in range(3)),
        log.configure_queue("q", QueueOptions(max_records=4)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [QueueOptionsError, int, int, int, QueueOptionsError]
    assert log.queue_options("q") == QueueOptions()
