"""A log that fails: which calls get an error, which error, and when."""

from __future__ import annotations

import asyncio
import errno
import logging
import pickle
from functools import partial
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogFailedError, LogState, MultiRecordLog, PersistAction, PersistPolicy
from mrecordlog_async.engine.intake.commands import AppendGroup
from tests.cached_files import FailingSyncs, HangingDisk

NEVER = PersistPolicy.never()
FLUSH = PersistPolicy.always(action=PersistAction.FLUSH)
FAR = PersistPolicy.interval(1_000.0)


class FailingInTheNextSegment(FailingSyncs):
    """A disk that fails once it is armed and another segment has been named."""

    armed = False

    def sync_directory(self, handle: int) -> None:
        super().sync_directory(handle)
        self.failing = self.armed


class HangingThenFailing(HangingDisk):
    """A disk whose syncs fail once they go on."""

    failing = False

    def sync(self, handle: int) -> None:
        super().sync(handle)
        if self.failing:
            raise OSError(errno.EIO, "the medium was removed")


async def failed(log: MultiRecordLog) -> None:
    """Wait until the log has failed."""
    while log.state is not LogState.FAILED:
        await asyncio.sleep(0.001)


async def with_unsynced_records(directory: Path, policy: PersistPolicy, disk: FailingSyncs) -> MultiRecordLog:
    """Open a log with synced and unsynced records in "a", unsynced ones in "b", nothing in "c"; the disk fails then."""
    log = await MultiRecordLog.open(directory, persist_policy=policy, filesystem=disk)
    for queue in "abc":
        await log.create_queue(queue)
    await log.append_records("a", None, [b"1", b"2"])
    await log.append_record("c", None, b"1")
    await log.sync()
    disk.failing = True
    await log.append_records("a", None, [b"3", b"4"])
    await log.append_record("a", None, b"5")
    await log.append_record("b", 7, b"1")
    return log


@pytest.mark.parametrize("policy", [NEVER, FLUSH, FAR], ids=["never", "flush", "interval"])
async def test_close_tells_what_could_not_be_synced(directory: Path, policy: PersistPolicy) -> None:
    """Acknowledged changes that never reached the medium are named by queue and first position, on every call."""
    disk = FailingSyncs()
    log = await with_unsynced_records(directory, policy, disk)
    for _ in range(2):
        with pytest.raises(LogFailedError, match="queue 'a' from position 2, queue 'b' from position 7") as caught:
            await log.close()
        assert (caught.value.written, caught.value.in_doubt) == ("acknowledged", {"a": 2, "b": 7})
        assert "medium was removed" in caught.value.cause
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.in_doubt) == (str(caught.value), caught.value.in_doubt)
    assert log.state is LogState.CLOSED
    disk.failing = False
    async with MultiRecordLog.open(directory) as log:
        assert log.next_position("b") == 8


async def test_the_lowest_position_in_doubt_is_named(directory: Path) -> None:
    """Even where the first change that was not synced concerns a later one: an acknowledgement comes after appends."""
    disk = FailingSyncs()
    log = await MultiRecordLog.open(directory, persist_policy=NEVER, filesystem=disk)
    await log.append_records("q", None, [b"0", b"1", b"2", b"3"], create=True)
    held = await log.inspection.attach_consumer("q", "c", create=True)
    await log.append_record("other", None, b"0", create=True)
    await log.append_records("other", None, [b"1", b"2"])
    await log.sync()
    disk.failing = True
    await log.append_record("q", None, b"4")
    await log.inspection.acknowledge("q", "c", 0, queue_id=held.queue_id, epoch=held.epoch)
    await log.append_record("other", None, b"3")
    await log.truncate("other", 1)
    with pytest.raises(LogFailedError) as caught:
        await log.close()
    assert caught.value.in_doubt == {"q": 1, "other": 1}


async def test_single_records_of_many_callers_are_in_doubt(directory: Path) -> None:
    """They are stored together for all their queues; each queue is named with the first that was not synced."""
    disk = FailingSyncs()
    log = await MultiRecordLog.open(directory, persist_policy=NEVER, queues=["a", "b", "c"], filesystem=disk)
    await log.append_records("a", None, [b"0", b"1"])
    await log.sync()
    disk.failing = True
    for _ in range(2):
        await asyncio.gather(*(log.append_record(queue, None, b"x") for queue in "ab"))
    with pytest.raises(LogFailedError) as caught:
        await log.close()
    assert (caught.value.written, caught.value.in_doubt) == ("acknowledged", {"a": 2, "b": 0})


async def test_calls_that_wait_in_line_end_with_a_log_that_fails(directory: Path) -> None:
    """Those that were never taken are not stored, and say so."""
    disk, limits = HangingThenFailing(), Limits(pending_bytes=200_000, record_bytes=150_000, on_full="wait")
    log = await MultiRecordLog.open(directory, filesystem=disk, limits=limits)
    await log.create_queue("q")
    disk.failing = True
    disk.goes_on.clear()
    calls = [asyncio.ensure_future(log.append_records("q", None, [bytes(100_000)])) for _ in range(6)]
    await asyncio.to_thread(disk.waits.wait)
    disk.goes_on.set()
    _, waiting = await asyncio.wait(calls, timeout=30)
    assert not waiting, "they wait for ever"
    assert {type(call.exception()) for call in calls} == {LogFailedError}
    await log.close()


def test_every_call_that_waits_ends_with_its_loop(directory: Path) -> None:
    """Whether its batch is being stored, waits for the writer, or waits in line: an error says what is known."""
    disk, ended = HangingDisk(), dict[str, BaseException | None]()

    def note(name: str, future: asyncio.Future[int]) -> None:
        ended[name] = future.exception()
        if name == "in flight":
            disk.goes_on.set()

    async def leave() -> None:
        limits = Limits(record_bytes=5_000, pending_bytes=5_000)
        log = await MultiRecordLog.open(directory, queues=["a", "b"], limits=limits, filesystem=disk)
        disk.goes_on.clear()
        futures = {"in flight": log.append_soon("a", b"1"), "also in flight": log.append_soon("b", b"1")}
        await asyncio.to_thread(disk.waits.wait)
        futures["pending"] = log.append_soon("a", bytes(3_000))
        for name, future in futures.items():
            future.add_done_callback(partial(note, name))
        waiting.append(asyncio.ensure_future(log.append("a", bytes(4_000))))
        await asyncio.sleep(0)
        assert log.inspection.pending_records == 4

    waiting: list[asyncio.Future[int]] = []
    asyncio.run(leave())
    assert {name: type(error) for name, error in ended.items()} == dict.fromkeys(ended, LogFailedError)
    written = {name: error.written for name, error in ended.items() if isinstance(error, LogFailedError)}
    assert written == {"in flight": "unknown", "also in flight": "unknown", "pending": "no"}
    assert waiting[0].done()


async def test_calls_taken_when_memory_ran_out_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer takes the calls of a batch one by one: if that fails, those taken before get the error."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append("q", b"first")

        def fail(_: AppendGroup) -> bool:
            raise MemoryError

        monkeypatch.setattr(AppendGroup, "withdrawn", fail)
        calls = [log.append_records("q", None, [b"1", b"2"]), log.append("q", b"3"), log.truncate("q", 0)]
        errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        assert [error.written for error in errors if isinstance(error, LogFailedError)] == ["no"] * 3
    async with MultiRecordLog.open(directory) as log:
        assert [payload for _, payload in log.range("q")] == [b"first"]


async def test_leaving_the_context_tells_it_too(directory: Path) -> None:
    """`async with` ends with the error, whichever way the log was opened."""
    disk = FailingSyncs()
    with pytest.raises(LogFailedError) as caught:
        async with MultiRecordLog.open(directory, persist_policy=NEVER, filesystem=disk) as log:
            await log.create_queue("q")
            await log.append_record("q", None, b"1")
            disk.failing = True
    assert caught.value.in_doubt == {"q": 0}
    disk.failing = False
    opened = await MultiRecordLog.open(directory, persist_policy=NEVER, filesystem=disk)
    with pytest.raises(LogFailedError):
        async with opened as log:
            await log.append_record("q", None, b"2")  # synced, because it is the first batch of this opening
            await log.append_record("q", None, b"3")
            disk.failing = True


async def test_another_exception_is_not_hidden(directory: Path) -> None:
    """An exception that leaves the block is unchanged; what close would have raised is added as a note."""
    disk = FailingSyncs()
    with pytest.raises(KeyError) as left:
        async with MultiRecordLog.open(directory, persist_policy=NEVER, filesystem=disk) as log:
            await log.create_queue("q")
            await log.append_record("q", None, b"1")
            disk.failing = True
            raise KeyError("mine")
    assert "queue 'q' from position 0" in left.value.__notes__[0]


async def test_failed_sync_of_the_timer_is_logged_at_once(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The program's log has it once, with cause, queues and what to do; the next call reports it too."""
    disk = FailingSyncs()
    log = await with_unsynced_records(directory, FAR, disk)
    log._engine.writer._upkeep._on_sync()  # the interval is over
    await failed(log)
    [entry] = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert entry.name == "mrecordlog_async"
    for fact in (str(directory), "medium was removed", "queue 'a' from position 2", "open it again"):
        assert fact in entry.getMessage()
    with pytest.raises(LogFailedError) as caught:
        await log.append_record("a", None, b"6")
    assert (caught.value.written, caught.value.in_doubt) == ("no", {"a": 2, "b": 7})
    with pytest.raises(LogFailedError):
        await log.close()
    assert len([entry for entry in caplog.records if entry.levelno >= logging.ERROR]) == 1


async def test_failed_log_under_always_is_logged_and_closes_without_error(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing acknowledged is in doubt, so close raises nothing; the failure is still logged."""
    disk = FailingSyncs()
    async with MultiRecordLog.open(directory, filesystem=disk) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"1")
        disk.failing = True
        with pytest.raises(LogFailedError) as caught:
            await log.append_record("q", None, b"2")
        assert (caught.value.written, dict(caught.value.in_doubt)) == ("unknown", {})
    [entry] = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert "medium was removed" in entry.getMessage()


async def test_what_a_roll_or_a_sync_brought_to_the_medium_is_not_in_doubt(directory: Path) -> None:
    """Rolling syncs the finished segment, so only what came after it is named."""
    disk = FailingSyncs()
    log = await MultiRecordLog.open(directory, persist_policy=NEVER, segment_bytes=32_768, filesystem=disk)
    await log.create_queue("q")
    before = log.segments
    while log.segments == before:
        await log.append_record("q", None, bytes(10_000))
    last = log.last_position("q")
    disk.failing = True
    with pytest.raises(LogFailedError) as caught:
        await log.close()
    assert caught.value.in_doubt == {"q": last}


async def test_what_reclaiming_brought_to_the_medium_is_not_in_doubt(directory: Path) -> None:
    """A segment is removed once a synced batch says that it is dead; that batch vouches for all before it."""
    disk = FailingSyncs()
    log = await MultiRecordLog.open(directory, persist_policy=NEVER, segment_bytes=32_768, filesystem=disk)
    for queue in ("q", "large"):
        await log.create_queue(queue)
    while len(log.segments) == 1:
        await log.append_record("large", None, bytes(10_000))
    await log.append_record("q", None, b"0")
    await log.truncate("large", log.next_position("large") - 1)
    while len(log.segments) > 1:
        await asyncio.sleep(0.001)
    await log.append_record("q", None, b"1")
    disk.failing = True
    with pytest.raises(LogFailedError) as caught:
        await log.close()
    assert caught.value.in_doubt == {"q": 1}


async def test_what_a_roll_synced_is_not_in_doubt_where_the_next_sync_fails(directory: Path) -> None:
    """The batch for which the log rolled fails; those before it are on the medium since the roll."""
    disk = FailingInTheNextSegment()
    log = await MultiRecordLog.open(directory, persist_policy=NEVER, segment_bytes=32_768, filesystem=disk)
    await log.create_queue("q")
    await log.append_record("q", None, bytes(20_000))
    disk.armed = True
    with pytest.raises(LogFailedError):
        await asyncio.gather(log.append_record("q", None, bytes(20_000)), log.create_queue("synced"))
    assert log.segments[-1] == 1
    await log.close()


async def test_a_failure_is_passed_on_once(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An application need not poll: it is called, and a task that waits goes on."""
    disk = FailingSyncs()
    called: list[LogFailedError] = []
    log = await MultiRecordLog.open(directory, filesystem=disk, on_failure=called.append)
    await log.create_queue("q")
    waiting = asyncio.create_task(log.failed())
    await log.append_record("q", None, b"1")
    assert not called
    disk.failing = True
    for _ in range(2):
        with pytest.raises(LogFailedError):
            await log.append_record("q", None, b"2")
    error = await waiting
    assert [error] == called == [await log.failed()]
    assert error is not None and "medium was removed" in error.cause
    (line,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert line.__dict__["facts"]["cause"] == error.cause
    await log.close()


async def test_a_log_that_closes_never_failed(directory: Path) -> None:
    """A task that waits for a failure is not left waiting."""
    called: list[LogFailedError] = []
    log = await MultiRecordLog.open(directory, on_failure=called.append)
    waiting = asyncio.create_task(log.failed())
    await log.close()
    assert await waiting is None
    assert not called


async def test_a_hook_that_raises_does_not_hide_the_failure(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged, and the log is failed as without it."""

    def hook(error: LogFailedError) -> None:
        raise ValueError("in the hook")

    disk = FailingSyncs()
    log = await MultiRecordLog.open(directory, filesystem=disk, on_failure=hook)
    disk.failing = True
    with pytest.raises(LogFailedError):
        await log.create_queue("q")
    assert await log.failed() is not None
    assert "on_failure" in caplog.text
    await log.close()
