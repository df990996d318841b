"""Closing the log, and cancelling calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    MultiRecordLog,
)
from tests.conftest import contents


async def test_calls_on_a_closed_log_raise(directory: Path) -> None:
    """After close every call reports that the log is closed; closing again is allowed."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    await log.close()
    await log.close()
    for call in (log.append_record("q", None, b"x"), log.create_queue("r"), log.truncate("q", 0), log.sync()):
        with pytest.raises(LogClosedError):
            await call
    with pytest.raises(LogClosedError):
        log.range("q")


async def test_close_finishes_what_was_called_before(directory: Path) -> None:
    """Appends in flight are stored and acknowledged before close returns."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    calls = [asyncio.ensure_future(log.append_record("q", None, b"x")) for _ in range(100)]
    await asyncio.sleep(0)
    await log.close()
    assert [call.result() for call in calls] == list(range(100))
    async with MultiRecordLog.open(directory) as again:
        assert again.next_position("q") == 100


async def test_close_refuses_callers_who_wait_for_room(directory: Path) -> None:
    """Callers in line when the log closes get an error; none is left waiting."""
    limits = Limits(memory_bytes=10_000, on_full="wait")
    log = await MultiRecordLog.open(directory, limits=limits)
    await log.create_queue("q")
    calls = [asyncio.ensure_future(log.append_record("q", None, bytes(4000))) for _ in range(8)]
    await calls[0]
    await log.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    stored = [result for result in results if isinstance(result, int)]
    assert stored == list(range(len(stored)))
    assert all(isinstance(result, int | LogClosedError) for result in results)
    assert len(stored) < len(results)


async def test_cancelling_before_the_writer_took_it_withdraws(log: MultiRecordLog) -> None:
    """A call cancelled while it still waits is certainly not stored; its neighbours are, without a hole."""
    calls = [asyncio.ensure_future(log.append_record("q", None, b"%d" % n)) for n in range(10)]
    if asyncio.get_running_loop().get_task_factory() is None:  # eager tasks wait already
        await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results[::2]] == [asyncio.CancelledError] * 5
    assert results[1::2] == [0, 1, 2, 3, 4]
    assert [payload for _, payload in log.range("q")] == [b"1", b"3", b"5", b"7", b"9"]


async def test_cancel_storm_leaves_no_hole_and_no_half(log: MultiRecordLog, directory: Path) -> None:
    """Whenever callers cancel, each call is stored whole or not at all, and positions stay contiguous."""

    async def caller(name: int) -> None:
        for round_ in range(20):
            call = asyncio.ensure_future(
                log.append_records("q", None, [b"%d %d %d" % (name, round_, n) for n in range(3)])
            )
            for _ in range((name * 7 + round_) % 5):
                await asyncio.sleep(0)
            if (name + round_) % 3 == 0:
                call.cancel()
            await asyncio.wait([call])

    await asyncio.gather(*(caller(name) for name in range(50)))
    await log.sync()
    records = list(log.range("q"))
    assert [position for position, _ in records] == list(range(len(records)))
    groups = [payload.rsplit(b" ", 1) for _, payload in records]
    assert all(groups[i][0] == groups[i + 1][0] == groups[i + 2][0] for i in range(0, len(groups), 3))
    before = contents(log)
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert contents(again) == before
