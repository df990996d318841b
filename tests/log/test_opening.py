"""Opening: what it takes, creates and refuses, and which loop the log belongs to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    LogClosedError,
    LogFailedError,
    LogLockedError,
    LogState,
    MultiRecordLog,
    QueueNameError,
    QueueOptions,
)


async def test_open_as_await_and_as_context(directory: Path) -> None:
    """Both ways give the same log; leaving the context closes it."""
    log = await MultiRecordLog.open(directory)
    states = [log.state]
    await log.close()
    states.append(log.state)
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == []
        states.append(log.state)
    states.append(log.state)
    assert states == [LogState.OPEN, LogState.CLOSED, LogState.OPEN, LogState.CLOSED]


async def test_open_creates_the_queues_it_is_given(directory: Path) -> None:
    """Those that exist keep their records; all others are created in one batch."""
    names = ["a", "b", "c"]
    async with MultiRecordLog.open(directory, queues=names[:1]) as log:
        await log.append("a", b"1")
    async with MultiRecordLog.open(directory, queues=names) as log:
        assert log.list_queues() == names
        assert log.next_position("a") == 1
        assert log.stats().commits == 1
    with pytest.raises(TypeError, match=r"pass \['orders'\]"):
        MultiRecordLog.open(directory, queues="orders")


async def test_options_that_a_queue_does_not_get_are_reported(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue keeps its options, whatever the program declares later; the log says so once for all of them."""
    queues = dict.fromkeys("abcde", QueueOptions(max_age=0.1))
    for declared in (queues, queues, list(queues)):
        async with MultiRecordLog.open(directory, queues=declared):
            pass
    assert not caplog.records
    changed = queues | dict.fromkeys("bcde", QueueOptions(max_records=1))
    async with MultiRecordLog.open(directory, queues=changed) as log:
        assert log.queue_options("b") == queues["b"]
    assert [record.getMessage() for record in caplog.records] == [
        "existing queues keep options other than those of queues=; see configure_queue: 'b', 'c', 'd' and 1 more"
    ]


WRONG_OPTIONS: list[dict[str, Any]] = [
    {"persist_policy": "always"},
    {"persist_policy": {}},
    {"limits": {"queues": 1}},
    {"limits": ()},
    {"queues": {"a": {"max_records": 1}}},
    {"queues": {"a": QueueOptions}},
]


@pytest.mark.parametrize("wrong", WRONG_OPTIONS, ids=repr)
def test_open_refuses_options_of_another_type(directory: Path, wrong: dict[str, Any]) -> None:
    """The error says what is expected, before anything is created."""
    with pytest.raises(TypeError, match=r"must be (PersistPolicy|Limits|QueueOptions), not (str|dict|tuple|type)"):
        MultiRecordLog.open(directory, **wrong)
    assert not directory.exists()


async def test_open_gives_the_directory_back_if_a_queue_cannot_be_created(directory: Path) -> None:
    """The log is closed before the error is raised."""
    with pytest.raises(QueueNameError):
        await MultiRecordLog.open(directory, queues=["good", ""])
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() in ([], ["good"])
        assert log.recovery_report.clean


async def test_a_log_that_was_not_awaited_says_so(directory: Path) -> None:
    """`open` without await returns no log; the error says what to write."""
    opening: Any = MultiRecordLog.open(directory)
    with pytest.raises(AttributeError, match=r"'create_queue': write `log = await MultiRecordLog.open"):
        await opening.create_queue("q")
    assert not directory.exists()


async def test_a_log_shows_where_it_is_and_its_state(directory: Path) -> None:
    """In a debugger or a log line, the log names its directory."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        assert repr(log) == f"<MultiRecordLog {str(directory)!r}, open, queues: 1>"
    assert "closed" in repr(log)


async def test_cancelled_open_gives_the_directory_back(directory: Path) -> None:
    """Cancelling open at any moment leaves no lock behind."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    for turns in range(6):
        opening = asyncio.ensure_future(_open(directory))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        if isinstance(result, MultiRecordLog):
            await result.close()
    while True:
        try:
            async with MultiRecordLog.open(directory) as log:
                assert log.queue_exists("q")
                return
        except LogLockedError:
            await asyncio.sleep(0)  # the abandoned thread is still on its way out


async def _open(directory: Path) -> MultiRecordLog:
    return await MultiRecordLog.open(directory)


async def test_second_open_is_refused_with_the_owners_pid(log: MultiRecordLog, directory: Path) -> None:
    """One writer per directory, even within a process; the message names the owner and the way out."""
    import os

    with pytest.raises(LogLockedError) as caught:
        await MultiRecordLog.open(directory)
    assert caught.value.owner_pid == os.getpid()
    assert "Pass that log on, or close it first" in str(caught.value)
    assert "run `mrecordlog serve`" in str(LogLockedError("wal", 1 + os.getpid()))
    assert await log.append_record("q", None, b"still works") == 0


def test_another_event_loop_is_refused(directory: Path) -> None:
    """A log belongs to the loop that opened it: using it from another raises at once."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_open(directory))
    loop.run_until_complete(log.create_queue("q"))

    async def use() -> None:
        with pytest.raises(LogClosedError, match="event loop"):
            await log.append_record("q", None, b"x")
        with pytest.raises(LogClosedError, match="event loop"):
            await log.truncate("q", 0)

    asyncio.run(use())
    loop.run_until_complete(log.close())
    loop.close()


@pytest.mark.parametrize(
    ("closes", "error", "reason"),
    [(True, LogClosedError, "the log is closed"), (False, LogFailedError, "the event loop ended")],
    ids=["closed", "loop ended"],
)
def test_a_log_that_has_ended_says_so_on_any_loop(
    directory: Path, closes: bool, error: type[Exception], reason: str
) -> None:
    """Nobody is sent back to a loop that no longer helps."""

    async def end() -> MultiRecordLog:
        log = await MultiRecordLog.open(directory)
        if closes:
            await log.close()
        return log

    log = asyncio.run(end())

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: log.append("q", b"x"),
        lambda: log.truncate("q", 0),
        log.sync,
        log.drain,
    ]

    async def use() -> None:
        for call in calls:
            with pytest.raises(error, match=reason):
                await call()
        with pytest.raises(error, match=reason):
            log.append_soon("q", b"x")

    asyncio.run(use())


def test_a_second_loop_of_the_thread_cannot_join_a_waiting_group(directory: Path) -> None:
    """Not even while records wait that the log's own loop appended: the record is withdrawn, the others are stored."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_open(directory))
    loop.run_until_complete(log.create_queue("q"))
    waiting = loop.create_task(log.append_record("q", None, b"of its own loop"))
    loop.run_until_complete(asyncio.sleep(0))
    assert not waiting.done()
    with pytest.raises(LogClosedError, match="event loop"):
        asyncio.run(asyncio.wait_for(log.append_record("q", None, b"of another"), 60))
    assert loop.run_until_complete(waiting) == 0
    assert [bytes(payload) for _, payload in log.range("q")] == [b"of its own loop"]
    loop.run_until_complete(log.close())
    loop.close()


def test_a_loop_that_moves_to_another_thread_takes_its_log_along(directory: Path) -> None:
    """Opened on one thread, used on the one that runs the loop afterwards; the first one is refused then."""
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(_open(directory))
    loop.run_until_complete(log.create_queue("q"))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for position in range(2):
            appended = asyncio.run_coroutine_threadsafe(log.append_record("q", None, b"x"), loop)
            assert appended.result(60) == position
        with pytest.raises(LogClosedError, match="event loop"):
            asyncio.run(asyncio.wait_for(log.append_record("q", None, b"y"), 60))
        asyncio.run_coroutine_threadsafe(log.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_loop_that_ends_without_close_gives_the_directory_back(directory: Path) -> None:
    """Acknowledged records are found, the lock is released, and nothing hangs."""

    async def forget() -> None:
        log = await MultiRecordLog.open(directory)
        await log.create_queue("q")
        assert await log.append_record("q", None, b"kept") == 0

    asyncio.run(forget())

    async def look() -> None:
        while True:
            try:
                async with MultiRecordLog.open(directory) as log:
                    assert list(log.range("q")) == [(0, b"kept")]
                    return
            except LogLockedError:
                await asyncio.sleep(0)

    asyncio.run(look())
