"""The writer: whichever way a batch is handed over, its bytes are the same; one is under way at a time; how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async import (
    LogFailedError,
    LogFullError,
    LogState,
    MultiRecordLog,
)
from mrecordlog_async.engine.commit.batch import CommitResult, Written
from mrecordlog_async.engine.commit.disk_space import Spare
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.commit.parts import Parts
from mrecordlog_async.engine.commit.writer import Writer
from tests.cached_files import CachedFiles, HangingDisk
from tests.engine import in_flight
from tests.faults import sizes
from tests.faults.disk import Disk
from tests.faults.driver import DIRECTORY, Run, repeatable
from tests.faults.histories import CASES


@contextmanager
def count_prepared() -> Iterator[list[CommitResult]]:
    """Collect the results of prepared writes while the context lasts."""
    settled, settle = list[CommitResult](), Journal.settle

    def settle_and_count(journal: Journal, written: Written) -> Any:
        result = settle(journal, written)
        settled.extend([result] if isinstance(result, CommitResult) else [])
        return result

    with patch.object(Journal, "settle", settle_and_count):
        yield settled


async def stored(directory: Path) -> tuple[int, list[bytes]]:
    """Open the log again; return the first position of "q", and its payloads."""
    async with MultiRecordLog.open(directory) as log:
        return log.first_position("q"), [payload for _, payload in log.range("q")]


async def asleep(log: MultiRecordLog) -> None:
    """Wait until the writer sleeps."""
    while not log._engine.writer.is_idle():
        await asyncio.sleep(0)


# What is the same.

APPENDS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1, 60, 700, 5_000, 33_000])), min_size=1, max_size=4
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), APPENDS),
        st.tuples(st.just("truncate"), st.tuples(st.sampled_from("ab"), st.integers(0, 9))),
        st.tuples(st.just("sleep"), st.sampled_from([0.5, 1.5])),
    ),
    max_size=25,
)


def bytes_of(steps: list[tuple[str, Any]]) -> tuple[dict[str, bytes], dict[str, bytes], int]:
    """Run *steps* one after the other; return the files before and after closing, and the number of prepared writes."""

    async def whole(run: Run) -> dict[str, bytes]:
        await run.open()
        await asyncio.gather(run.create("a"), run.create("b"))
        for kind, what in steps:
            if kind == "append":
                await asyncio.gather(*(run.append(queue, size) for queue, size in what))
            elif kind == "truncate":
                await run.truncate(*what)
            else:
                await asyncio.sleep(what)
        before = run.disk.content(DIRECTORY)
        await run.close()
        return before

    with sizes.replaced(sizes.early_roll(8_192)), count_prepared() as counted, repeatable() as loop:
        run = Run(Disk(has_prepared=True))
        run.record_moments = False
        before = loop.run_until_complete(whole(run))
        return before, run.disk.content(DIRECTORY), len(counted)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_prepared_writes_and_jobs_leave_the_same_bytes(steps: list[tuple[str, Any]]) -> None:
    """The same calls leave the same files, however they are handed over; the clock, which a COMMIT names, is fixed."""
    before, after, _ = bytes_of(steps)
    with patch.object(Writer, "_write", lambda *_: False):
        ordinary_before, ordinary_after, prepared = bytes_of(steps)
    assert prepared == 0
    assert before == ordinary_before
    assert after == ordinary_after


async def test_stats_count_what_was_acknowledged(log: MultiRecordLog) -> None:
    """A caller who reads the statistics finds its record counted."""
    before = log.stats()
    await log.append_record("q", None, b"abc")
    after = log.stats()
    assert after.appended_records - before.appended_records == 1
    assert after.appended_bytes - before.appended_bytes == 3
    assert after.commits - before.commits == after.syncs - before.syncs == 1
    assert after.append_seconds.count - before.append_seconds.count == 1


def test_crash_states_and_disk_faults_meet_prepared_writes() -> None:
    """The histories that stand for them in the fault suite have most of their batches made so, whatever the steps."""
    for name in ("few callers, prepared", "few callers, stepping, prepared"):
        with count_prepared() as counted:
            CASES[name].run(moments=False)
        assert len(counted) >= 8


# What a batch meets.


async def test_small_batches_cross_blocks_and_segments(directory: Path) -> None:
    """A log of many small records crosses blocks and segments, and everything is there after it was opened again."""
    async with MultiRecordLog.open(directory, segment_bytes=65_536) as log:
        await log.create_queue("q")
        for number in range(400):
            await log.append_record("q", None, b"%d" % number * 200)
        assert log.stats().rolls > 1
    assert await stored(directory) == (0, [b"%d" % number * 200 for number in range(400)])


async def test_a_batch_without_a_spare_is_refused(directory: Path) -> None:
    """Rolling needs the spare, and only rolling frees space."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"a")
        with patch.object(Spare, "prepare", side_effect=full):
            assert await log._engine.writer.begin_segment()
            await asleep(log)
            with pytest.raises(LogFullError):
                await log.append_record("q", None, b"b")
        assert await log.append_record("q", None, b"c") == 1
    assert await stored(directory) == (0, [b"a", b"c"])


async def test_shared_segment_is_left_by_a_roll(directory: Path) -> None:
    """A segment that got a second name meanwhile is not written any more: the next batch is in a new one."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await asleep(log)
        await log.append_record("q", None, b"a")
        name = f"wal-{log._engine.opened.journal.end.segment:020}"
        os.link(directory / name, directory.parent / "copy")
        copied = (directory.parent / "copy").read_bytes()
        assert await log.append_record("q", None, b"b") == 1
        assert log.stats().rolls == 1
        await asleep(log)
        assert await log.append_record("q", None, b"c") == 2
        assert (directory.parent / "copy").read_bytes() == copied
    assert await stored(directory) == (0, [b"a", b"b", b"c"])


async def test_what_is_handed_over_twice_stays_before_later_calls(directory: Path) -> None:
    """Records are stored in the order of the calls, even if the first one was already on its way."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await asleep(log)
        os.link(directory / f"wal-{log._engine.opened.journal.end.segment:020}", directory.parent / "copy")
        first = log.append_soon("q", b"a")
        await in_flight.begun(log)
        later = [log.append_soon("q", b"b"), log.append_soon("q", b"c")]
        assert await asyncio.gather(first, *later) == [0, 1, 2]
    assert await stored(directory) == (0, [b"a", b"b", b"c"])


# One at a time, and how it ends.


class Failing(CachedFiles):
    """A disk whose syncs fail, from some moment on."""

    def __init__(self) -> None:
        self.error: OSError | None = None

    def sync(self, handle: int) -> None:
        if self.error is not None:
            raise self.error
        super().sync(handle)


async def test_calls_made_meanwhile_wait_for_the_batch_in_flight(directory: Path) -> None:
    """A command that arrives while a batch is stored is planned on what that batch left."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await asleep(log)
        first = asyncio.create_task(log.append_record("q", None, b"x"))
        await in_flight.begun(log)
        assert log.inspection.pending_records == 1
        rest = [log.append_record("q", 1, b"y"), log.truncate("q", 0), log.append_record("q", None, b"z")]
        assert await asyncio.gather(first, *rest) == [0, 1, 1, 2]
    assert await stored(directory) == (1, [b"y", b"z"])


async def test_close_waits_for_the_batch_in_flight(directory: Path) -> None:
    """What was handed over before close is stored and acknowledged."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    await asleep(log)
    appended = asyncio.create_task(log.append_record("q", None, b"x"))
    await in_flight.begun(log)
    await log.close()
    assert await appended == 0
    assert await stored(directory) == (0, [b"x"])


async def test_cancelled_caller_does_not_withdraw_what_is_in_flight(directory: Path) -> None:
    """Cancelling stops the waiting; the record is stored, and the next caller is served."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await asleep(log)
        appended = asyncio.create_task(log.append_record("q", None, b"x"))
        await in_flight.begun(log)
        appended.cancel()
        assert await log.append_record("q", None, b"y") == 1
    assert await stored(directory) == (0, [b"x", b"y"])


async def test_failed_sync_fails_the_log(directory: Path) -> None:
    """The caller in flight learns that the outcome is unknown, those after it that nothing was stored; reads go on."""
    disk = Failing()
    log = await MultiRecordLog.open(directory, filesystem=disk)
    await log.create_queue("q")
    await log.append_record("q", None, b"x")
    await asleep(log)
    disk.error = OSError(5, "the disk failed")
    await in_flight.failed(log, b"y", b"z")
    assert log.state is LogState.FAILED
    assert log.inspection.pending_records == 0
    assert [payload for _, payload in log.range("q")] == [b"x"]
    with pytest.raises(LogFailedError):
        await log.append_record("q", None, b"w")
    disk.error = None
    await log.close()


async def test_error_on_the_way_of_a_batch_fails_the_log(directory: Path) -> None:
    """Whatever goes wrong from taking a group to the next one, its callers get an error or were acknowledged."""
    for method in ("_store", "_apply", "_acknowledge", "_end_batch"):
        log = await MultiRecordLog.open(directory / method)
        await log.create_queue("q")
        await asleep(log)
        with patch.object(Writer, method, side_effect=MemoryError):
            found: list[object] = await asyncio.gather(log.append_record("q", None, b"x"), return_exceptions=True)
        assert found == [0] if method == "_end_batch" else isinstance(found[0], LogFailedError)
        assert log.state is LogState.FAILED
        await log.close()


async def test_error_between_the_parts_of_a_batch_fails_the_log(directory: Path) -> None:
    """No call waits for ever that the disk refused and that is in no part yet; it was not stored."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for method in ("next", "withdraw_given_up", "_is_tried"):
        log = await MultiRecordLog.open(directory / method)
        await log.create_queue("q")
        await asleep(log)
        calls = [log.append_records("q", None, [b"x", b"y"]), log.truncate("q", 0), log.append("q", b"z")]
        refused = patch.multiple(Journal, prepare=lambda *_: None, commit=Mock(side_effect=full))
        with refused, patch.object(Parts, method, side_effect=MemoryError):
            found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        assert [error.written for error in found if isinstance(error, LogFailedError)] == ["no"] * 3
        await log.close()


def test_loop_that_ends_refuses_the_batch_in_flight(directory: Path) -> None:
    """The caller of a batch in flight gets an error, the directory is released, and the log opens again."""
    found: list[BaseException | None] = []
    disk = HangingDisk()

    def end(done: asyncio.Future[int]) -> None:
        found.append(done.exception())
        disk.goes_on.set()  # only now: the batch was in flight when the loop ended

    async def leave() -> None:
        log = await MultiRecordLog.open(directory, filesystem=disk)
        await log.create_queue("q")
        await asleep(log)
        disk.goes_on.clear()
        future = log.append_soon("q", b"x")
        future.add_done_callback(end)
        await in_flight.begun(log)

    asyncio.run(leave())
    assert len(found) == 1
    assert isinstance(found[0], LogFailedError)

    async def again() -> None:
        async with MultiRecordLog.open(directory) as log:
            assert log.next_position("q") in (0, 1)

    asyncio.run(again())


async def test_group_that_cannot_be_begun_is_not_joined(log: MultiRecordLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory to wake the writer, the caller gets the error, and the appends after it do not wait for ever."""
    await log.append("q", b"first")
    await asleep(log)

    class Full:
        def call_soon(self, *_: object) -> None:
            raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(log._engine.writer, "_loop", Full())
        with pytest.raises(MemoryError):
            await log.append("q", b"refused")
    assert await asyncio.wait_for(log.append("q", b"second"), 20) == 1
    assert [payload for _, payload in log.range("q")] == [b"first", b"second"]


async def test_half_a_record_gives_nobody_the_position_of_another(log: MultiRecordLog) -> None:
    """Without memory for a part of a record, the log fails, and stores none of those that wait with it."""
    await log.append("q", b"first")
    waiting = [log.append_soon("q", b"second")]
    group = log._admission._singles.group
    assert group is not None
    group.payloads.append(b"half")
    waiting.append(log.append_soon("q", b"third"))
    for future in waiting:
        with pytest.raises(LogFailedError):
            await future
    assert [payload for _, payload in log.range("q")] == [b"first"]
