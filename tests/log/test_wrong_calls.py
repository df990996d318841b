"""Wrong calls: each is a clear error, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    ConsumerNameError,
    Limits,
    LogClosedError,
    LogFullError,
    LogLockedError,
    MultiRecordLog,
    PositionInPastError,
    QueueNameError,
    QueueNotFoundError,
)
from mrecordlog_async import errors as all_errors
from mrecordlog_async.cli.errors import explain
from mrecordlog_async.protocol.problems import detail_of
from tests.conftest import contents

POSITION_MAX = 2**63 - 2


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "\ud800", 7, None, b"bytes", ["list"]])
async def test_bad_queue_names(log: MultiRecordLog, name: Any) -> None:
    """A name is text of 1 to 255 bytes in UTF-8; anything else is refused by every call."""
    with pytest.raises(QueueNameError):
        await log.create_queue(name)
    with pytest.raises(QueueNameError):
        await log.append_record(name, None, b"x")
    with pytest.raises(QueueNameError):
        await log.truncate(name, 0)
    with pytest.raises(QueueNameError):
        await log.delete_queue(name)
    with pytest.raises(QueueNameError):
        log.range(name)
    assert contents(log) == {"q": (0, 0, [])}


async def test_an_unknown_queue_says_how_to_create_it(log: MultiRecordLog) -> None:
    """Over HTTP and in a shell, the words are those for there."""
    with pytest.raises(QueueNotFoundError, match="create it with create_queue, or append with create=True") as unknown:
        await log.append("nowhere", b"x")
    assert explain(unknown.value, {}) == "queue 'nowhere' does not exist"
    assert "create=1" in detail_of(unknown.value)


async def test_a_log_is_opened_and_not_made() -> None:
    """The first guess of many is the class itself."""
    with pytest.raises(
        TypeError, match=re.escape("open a log with `async with MultiRecordLog.open(directory) as log`")
    ):
        MultiRecordLog("./wal")  # type: ignore[arg-type]


async def test_a_log_that_is_closed_is_not_entered(directory: Path) -> None:
    """Its block would begin, and fail at the first call in it."""
    async with MultiRecordLog.open(directory) as log:
        pass
    with pytest.raises(LogClosedError, match="open it again"):
        async with log:
            raise AssertionError


async def test_a_directory_that_this_process_has_open_says_so(directory: Path) -> None:
    """Advice about workers would lead astray."""
    async with MultiRecordLog.open(directory):
        with pytest.raises(LogLockedError, match="is open in this process already: one directory has one open log"):
            await MultiRecordLog.open(directory)


def test_a_process_of_another_container_may_have_the_number_of_this_one() -> None:
    """A process that seems to wait for itself leads its operator astray."""
    assert f"is in use by process {os.getpid()} of another container" in str(LogLockedError("wal", os.getpid()))


async def test_a_consumer_is_not_entered_twice(log: MultiRecordLog) -> None:
    """Leaving the inner block would end the outer one, too."""
    async with log.consumer("q", "c") as consumer:
        with pytest.raises(RuntimeError, match="the consumer 'c' is entered already"):
            await consumer.__aenter__()
        assert not await consumer.batch(timeout=0)
    async with consumer:  # after it was left, it may be
        assert not await consumer.batch(timeout=0)


async def test_readers_in_another_event_loop_say_so(log: MultiRecordLog) -> None:
    """Those that wait would wait for ever, or fail with a sentence about futures."""

    async def read() -> None:
        await anext(log.tail("q"))

    with pytest.raises(LogClosedError, match="the log belongs to another event loop"):
        await asyncio.to_thread(asyncio.run, read())


async def test_readers_of_the_disk_in_another_event_loop_say_so(directory: Path) -> None:
    """On another loop, calls that would read from the disk are refused before they wait; the log's own continue."""
    limits = Limits(memory_bytes=1 << 20, beyond_memory="disk")
    async with MultiRecordLog.open(directory, limits=limits, queues=["q"]) as log:
        for _ in range(40):
            await log.append("q", bytes(100_000))
        assert log.memory_first("q") > 0, "the first records are on the disk"
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.fetch("q", 0),
            lambda: anext(aiter(log.read("q"))),
            lambda: anext(log.tail("q", 0)),
            lambda: log.tail("q", 0).batch(),
            lambda: anext(aiter(log.tail("q", 0).available())),
            lambda: log.inspection.load("q", 0, runs_max=1),
        ]
        for call in calls:

            async def elsewhere(call: Callable[[], Awaitable[object]] = call) -> None:
                async with asyncio.timeout(60):
                    await call()

            with pytest.raises(LogClosedError, match="the log belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await anext(log.tail("q", 0))).position == 0


async def test_unknown_queue(log: MultiRecordLog) -> None:
    """Every call on a queue that does not exist reports it."""
    for call in (
        log.append_record("nowhere", None, b"x"),
        log.append_records("nowhere", 3, [b"x"]),
        log.truncate("nowhere", 0),
        log.delete_queue("nowhere"),
    ):
        with pytest.raises(QueueNotFoundError, match="queue 'nowhere' does not exist"):
            await call
    for read in (log.range, log.runs, log.first_position, log.next_position, log.last_position):
        with pytest.raises(QueueNotFoundError):
            read("nowhere")


@pytest.mark.parametrize(
    ("position", "error"),
    [(-1, ValueError), (POSITION_MAX + 1, ValueError), (True, TypeError), (1.0, TypeError), ("1", TypeError)],
)
async def test_bad_positions(log: MultiRecordLog, position: Any, error: type[Exception]) -> None:
    """A position is an int in 0 … 2**63 - 2."""
    with pytest.raises(error):
        await log.append_record("q", position, b"x")
    with pytest.raises(error):
        await log.truncate("q", position)
    assert contents(log) == {"q": (0, 0, [])}


class Strange(int):
    """An int that compares and adds in its own way."""

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: int) -> bool:
        return True

    def __gt__(self, other: int) -> bool:
        return True

    def __add__(self, other: int) -> int:
        return 5

    __hash__ = int.__hash__
    __le__, __ge__, __sub__, __radd__ = __lt__, __gt__, __add__, __add__


async def test_a_position_counts_as_its_number(directory: Path) -> None:
    """A subclass of int decides nothing: a record at a taken position would make the log unreadable."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append_records("q", None, [b"x"] * 10)
        for position in (Strange(3), Strange(300)):
            with pytest.raises(PositionInPastError) if position.real < 10 else nullcontext():
                await log.append_record("q", position, b"other")
        assert log.next_position("q") == 301
        assert await log.truncate("q", Strange(4)) == 5
    async with MultiRecordLog.open(directory) as log:
        assert [record.position for record in log.range("q")] == [*range(5, 10), 300]


class Alone(str):
    """A str that equals nothing else."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


async def test_a_new_name_equals_its_text(directory: Path) -> None:
    """A subclass of str with another idea of equality could be created twice: the log could not be opened again."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.create_consumer("q", "c")
        with pytest.raises(QueueNameError, match="convert it to a plain str"):
            await log.create_queue(Alone("q"))
        with pytest.raises(QueueNameError, match="convert it to a plain str"):
            await log.append(Alone("q"), b"x", create=True)
        with pytest.raises(ConsumerNameError, match="convert it to a plain str"):
            await log.create_consumer("q", Alone("c"))
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == ["q"]
        assert list(log.consumers("q")) == ["c"]


async def test_the_last_position_can_be_used_and_none_after_it(log: MultiRecordLog, directory: Path) -> None:
    """A queue whose positions are used up refuses appends and still truncates and reopens."""
    assert await log.append_record("q", POSITION_MAX, b"end") == POSITION_MAX
    with pytest.raises(LogFullError):
        await log.append_record("q", None, b"x")
    with pytest.raises(LogFullError):
        await log.append_records("q", POSITION_MAX, [b"x", b"y"])
    assert await log.truncate("q", POSITION_MAX) == 1
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert again.next_position("q") == POSITION_MAX + 1


@pytest.mark.parametrize("payload", ["text", 5, None, [b"x"], 1.5])
async def test_bad_payloads(log: MultiRecordLog, payload: Any) -> None:
    """A payload is a bytes-like object; the error comes from the call, before anything is awaited."""
    with pytest.raises(TypeError, match="payload"):
        _ = log.append_record("q", None, payload)
    with pytest.raises(TypeError, match="payload"):
        _ = log.append_records("q", None, [b"fine", payload])
    with pytest.raises(TypeError, match="append_records"):
        _ = log.append_records("q", None, b"one payload")  # type: ignore[arg-type]  # the mistake under test
    assert contents(log) == {"q": (0, 0, [])}


@pytest.mark.parametrize(
    "error",
    [
        all_errors.QueueNotFoundError("q"),
        all_errors.QueueExistsError("q"),
        all_errors.QueueNameError("q" * 300, "is too long"),
        all_errors.PositionInPastError("q", 7, 12),
        all_errors.PositionInPastError("q", 7, 12, outcome_unknown=True),
        all_errors.RecordTooLargeError(10, 5),
        all_errors.LogFullError("memory", 10, 5),
        all_errors.LogFullError("space"),
        all_errors.LogClosedError(),
        all_errors.LogFailedError("EIO", "unknown"),
        all_errors.LogLockedError("/somewhere", 12),
        all_errors.CorruptionError("wal-0", 64, "bad"),
    ],
)
def test_errors_survive_pickling_with_their_facts(error: all_errors.RecordLogError) -> None:
    """A task in another process can send its error home."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
    assert str(error.copy()) == str(error)
