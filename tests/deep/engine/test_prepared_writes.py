"""Prepared writes of a log, on real files: what they store, and every way in which a log ends while one is under way.

The C part is compiled here, so that a test decides when a write goes on and how it ends. `tests/deep/compiled` shows
what the queue does by itself, and `tests/faults` what crashes and faults leave.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import CorruptionError, LogFailedError, LogState, MultiRecordLog
from mrecordlog_async.engine import open_async
from mrecordlog_async.engine.commit import thread as thread_module
from mrecordlog_async.engine.commit import upkeep
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.commit.thread import ThreadProgress, _Write
from tests.compiled.jobs_core import COMPILER, CoreJobs, build, reset
from tests.engine import in_flight

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="they are Linux's"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
]


class Interrupt(BaseException):
    """Raised at a line, as the handler of a signal may."""


class NoRoom:
    """A queue that finds no memory for a write."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def write(self, *_: object) -> bool:
        """Fail."""
        raise MemoryError


class Core:
    """The compiled C part, and the queues that logs made of it."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.made: list[weakref.ref[CoreJobs]] = []

    def make(self) -> CoreJobs:
        """Make a queue."""
        jobs = CoreJobs(self.library)
        self.made.append(weakref.ref(jobs))
        return jobs

    def hold(self) -> None:
        """Have the next write wait inside its system call."""
        self.library.seam["held"].value = 0
        self.library.seam["holds"].value = 1

    def is_held(self) -> bool:
        """Return whether a write waits."""
        return bool(self.library.seam["held"].value)

    def go_on(self) -> None:
        """Let writes go on."""
        self.library.seam["holds"].value = 0

    def script(self, *taken: int) -> None:
        """Have the next writes take these numbers of bytes, or fail with a negative errno."""
        reset(self.library)
        self.library.seam_array[: len(taken)] = taken

    def written(self) -> int:
        """Return how many writes were tried since the last script."""
        return int(self.library.seam["write_count"].value)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    """Have logs use the queue that is compiled here."""
    made = Core(build())
    reset(made.library)
    monkeypatch.setattr(thread_module, "new_jobs", made.make)
    yield made
    reset(made.library)


async def asleep(log: MultiRecordLog) -> None:
    """Wait until the writer sleeps, and the log's thread waits for a job."""
    thread = log._engine.thread
    while not log._engine.writer.is_idle() or (thread._write is not None and not thread._write._jobs.is_idle()):
        await asyncio.sleep(0)


async def opened(directory: Path) -> MultiRecordLog:
    """Open a log with a queue, whose next append is a prepared write."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q", exist_ok=True)
    await log.append_record("q", None, b"first")
    await asleep(log)
    return log


async def held(core: Core) -> None:
    """Wait until a write waits."""
    while not core.is_held():
        await asyncio.sleep(0.001)


async def records(directory: Path) -> list[bytes]:
    """Open the log again; return its payloads."""
    async with MultiRecordLog.open(directory) as log:
        return [payload for _, payload in log.range("q")]


def descriptors() -> int:
    """Return how many descriptors are open."""
    return len(os.listdir("/proc/self/fd"))


def log_threads() -> int:
    """Return how many threads of logs this process has."""
    return sum(thread.name == "mrecordlog" for thread in threading.enumerate())


# What it stores.


async def test_small_batches_are_prepared_writes(directory: Path, core: Core) -> None:
    """One caller's records, with the log's bookkeeping as it is for any batch."""
    log = await opened(directory)
    core.script()
    before = log.stats()
    for number in range(20):
        assert await log.append_record("q", None, b"%d" % number) == number + 1
    after = log.stats()
    assert core.written() == 20
    assert after.appended_records - before.appended_records == 20
    assert after.commits - before.commits == after.syncs - before.syncs == 20
    assert after.sync_seconds.count - before.sync_seconds.count == 20
    assert after.sync_seconds.sum > before.sync_seconds.sum
    await log.close()
    assert await records(directory) == [b"first", *(b"%d" % number for number in range(20))]


async def test_records_cross_blocks_and_segments(directory: Path, core: Core) -> None:
    """After a roll they go to the next segment; what does not fit into a block is the writer's."""
    expected = [b"%d" % number * 300 for number in range(300)]
    async with MultiRecordLog.open(directory, segment_bytes=65_536) as log:
        await log.create_queue("q")
        for payload in expected:
            await log.append_record("q", None, payload)
        assert log.stats().rolls > 1
        assert core.written() > 200
    assert await records(directory) == expected


@pytest.mark.parametrize("taken", [0, 300, 4_096, -errno.EINVAL])
async def test_write_that_is_not_whole_is_for_the_logs_thread(directory: Path, core: Core, taken: int) -> None:
    """The record is stored as if the disk had taken it at once. It writes the next ones of this segment, too."""
    log = await opened(directory)
    await log.append_record("q", None, b"w" * 40_000)  # reserves space, and ends early in a block
    await asleep(log)
    core.script(taken)
    await log.append_record("q", None, b"x" * 20_000)
    await log.append_record("q", None, b"y")
    assert core.written() == 1
    await log.close()
    assert await records(directory) == [b"first", b"w" * 40_000, b"x" * 20_000, b"y"]


async def test_failed_write_fails_the_log(directory: Path, core: Core) -> None:
    """The caller in flight learns that its record may be stored, later ones that nothing was; reads go on."""
    log = await opened(directory)
    core.script(-errno.EIO)
    assert "Input/output error" in (await in_flight.failed(log, b"x", b"y")).cause
    assert core.written() == 1
    assert log.state is LogState.FAILED
    assert [payload for _, payload in log.range("q")] == [b"first"]
    await log.close()
    assert await records(directory) in ([b"first"], [b"first", b"x"])


async def test_write_whose_end_finds_no_memory_fails_the_log(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller gets an error, and nobody waits for ever; what it wrote is there after the next opening."""
    log = await opened(directory)

    def settle(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "settle", settle)
        with pytest.raises(LogFailedError):
            await asyncio.wait_for(log.append("q", b"second"), 20)
    assert log.state is LogState.FAILED
    await log.close()
    assert await records(directory) == [b"first", b"second"]


async def test_error_of_the_notes_about_a_write_fails_the_log(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is on the disk by then; its caller gets an error, and closing ends."""
    log = await opened(directory)
    core.script()
    end, loops = ThreadProgress.end, threading.current_thread()

    def no_memory(progress: ThreadProgress) -> None:
        if threading.current_thread() is loops:
            raise MemoryError
        end(progress)

    with monkeypatch.context() as patched:
        patched.setattr(ThreadProgress, "end", no_memory)
        with pytest.raises(LogFailedError) as raised:
            await asyncio.wait_for(log.append("q", b"second"), 20)
    assert raised.value.written == "unknown"
    assert core.written() == 1
    await asyncio.wait_for(log.close(), 20)
    assert await records(directory) == [b"first", b"second"]


@pytest.mark.parametrize("place", ["_settled", "settle"])
async def test_interrupt_while_a_write_is_reported_leaves_nobody_waiting(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The caller gets a result or an error, and the record is there."""
    log = await opened(directory)
    interrupts = [Interrupt()]

    def interrupted(call: Callable[..., object]) -> Callable[..., object]:
        def interrupt(*arguments: object) -> object:
            if interrupts:
                raise interrupts.pop()
            return call(*arguments)

        return interrupt

    heard: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context.get("exception")))
    with monkeypatch.context() as patched:
        where: Any = thread_module if place == "_settled" else _Write
        patched.setattr(where, place, interrupted(getattr(where, place)))
        append = asyncio.create_task(log.append("q", b"second"))
        (outcome,) = await asyncio.wait_for(asyncio.gather(append, return_exceptions=True), 20)
    assert not interrupts
    assert outcome == 1 or isinstance(outcome, LogFailedError)
    await asyncio.wait_for(log.close(), 20)
    assert await records(directory) == [b"first", b"second"]


async def test_write_that_never_began_has_no_result_of_another(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log fails, and its journal ends where the disk does."""
    log = await opened(directory)
    for number in range(3):
        await log.append("q", b"%d" % number)
    journal, write = log._engine.opened.journal, log._engine.thread._write
    assert write is not None
    before = journal.end
    with monkeypatch.context() as patched:
        patched.setattr(write, "_jobs", NoRoom(write._jobs))
        with pytest.raises(LogFailedError):
            await asyncio.wait_for(log.append("q", b"never"), 20)
    await asyncio.wait_for(log.close(), 20)
    assert journal.end == before
    assert await records(directory) == [b"first", b"0", b"1", b"2"]


async def test_openings_without_a_thread_leave_no_descriptor(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have no thread left; a service that tries again must not run out of descriptors too."""
    await (await opened(directory)).close()

    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    loop = asyncio.get_running_loop()
    open_ones = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError):
                thread_module.LogThread(loop, writes=True)
    assert len(os.listdir("/proc/self/fd")) == open_ones


async def test_link_count_that_is_not_reported_is_for_the_logs_thread(directory: Path, core: Core) -> None:
    """It looks in its own way. A prepared write is tried again in the next segment, not for each batch."""
    async with MultiRecordLog.open(directory, segment_bytes=65_536) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"first")
        await asleep(log)
        core.script()
        core.library.seam["links_errno"].value = errno.ENOSYS
        for number in range(5):
            assert await log.append_record("q", None, b"x") == number + 1
        assert core.library.seam["links_calls"].value == 1
        core.library.seam["links_errno"].value = 0
        while log.stats().rolls == 0:
            await log.append_record("q", None, b"z" * 9_000)
        await asleep(log)
        assert core.written() == 0
        await log.append_record("q", None, b"y")
        await log.append_record("q", None, b"y")
        assert core.written() > 0


async def test_linked_segment_is_left_by_a_roll(directory: Path, core: Core) -> None:
    """The write is not begun, the log's thread looks again, and the writer rolls, as without prepared writes."""
    log = await opened(directory)
    segment = directory / "wal-00000000000000000000"
    os.link(segment, directory.parent / "copy")
    copied = (directory.parent / "copy").read_bytes()
    core.script()
    assert await log.append_record("q", None, b"x") == 1
    assert core.written() == 0
    assert log.stats().rolls == 1
    await asleep(log)
    assert await log.append_record("q", None, b"y") == 2
    assert core.written() == 1
    assert (directory.parent / "copy").read_bytes() == copied
    await log.close()
    assert await records(directory) == [b"first", b"x", b"y"]


@pytest.mark.parametrize("name", ["LOCK", "wal-00000000000000000000"])
async def test_removed_lock_or_segment_fails_the_log(directory: Path, core: Core, name: str) -> None:
    """Nothing is written where another process may write, or where it would be lost."""
    log = await opened(directory)
    core.script()
    (directory / name).unlink()
    with pytest.raises(LogFailedError, match="was removed while the log is open"):
        await log.append_record("q", None, b"x")
    assert core.written() == 0
    await log.close()


async def test_no_descriptor_for_the_bell_leaves_all_to_the_logs_thread(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that can be opened is as good without it."""

    def new_jobs() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(thread_module, "new_jobs", new_jobs)
    log = await opened(directory)
    core.script()
    assert await log.append_record("q", None, b"x") == 1
    assert core.written() == 0
    await log.close()
    assert await records(directory) == [b"first", b"x"]


def test_loop_that_watches_no_descriptors_has_no_prepared_writes(directory: Path, core: Core) -> None:
    """Such as those of Windows: the log's thread stores small batches."""

    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, *_: Any) -> None:  # type: ignore[override]  # it takes whatever it is given
            raise NotImplementedError

    async def append() -> None:
        log = await opened(directory)
        core.script()
        assert await log.append_record("q", None, b"x") == 1
        assert core.written() == 0
        await log.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(append())


# Jobs of the log's thread meanwhile.


def wait_for(done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.001)


async def state_end_in_flight(directory: Path, core: Core) -> list[bytes] | str:
    """Have the log's thread state the end of the log while a batch is in flight, and the loop stand still.

    Return what the log then holds, or why it does not open.
    """
    log = await opened(directory)
    core.hold()
    future = log.append_soon("q", b"in flight")
    await held(core)
    thread, journal = log._engine.thread, log._engine.opened.journal
    stated = thread.submit(journal.write_closed, 0)
    threading.Timer(0.1, core.go_on).start()
    stated.result(20)  # the loop does not turn
    wait_for(lambda: b"in flight" in (directory / "wal-00000000000000000000").read_bytes())
    copy = directory.parent / "copy"
    subprocess.run(["cp", "-r", str(directory), str(copy)], check=True)  # as a process that dies now leaves it
    await future
    await log.close()
    try:
        return await records(copy)
    except CorruptionError as error:
        return str(error)


async def test_every_job_of_the_logs_thread_waits_for_the_write_under_way(directory: Path, core: Core) -> None:
    """While the loop stands still, the log's thread states the end. It is past the batch in flight: the log opens."""
    assert await state_end_in_flight(directory, core) == [b"first", b"in flight"]


async def test_jobs_that_did_not_wait_would_be_noticed(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that bug, the log does not open again."""
    settle, loops = _Write.settle, threading.current_thread()
    monkeypatch.setattr(_Write, "settle", lambda self: settle(self) if threading.current_thread() is loops else None)
    assert "CLOSED says the log ends here" in await state_end_in_flight(directory, core)


async def test_small_batch_does_not_overtake_a_job_of_the_logs_thread(directory: Path, core: Core) -> None:
    """While it has one, it gets the batch as its next job."""
    log = await opened(directory)
    core.script()
    runs, goes_on = threading.Event(), threading.Event()

    def job() -> None:
        runs.set()
        goes_on.wait(20)

    done = log._engine.thread.submit(job)
    runs.wait(20)
    future = log.append_soon("q", b"x")
    await in_flight.begun(log)
    goes_on.set()
    assert await future == 1
    assert done.done()
    assert core.written() == 0
    await asleep(log)
    assert await log.append_record("q", None, b"y") == 2
    assert core.written() == 1
    await log.close()


async def test_hanging_write_is_reported_while_it_hangs(
    directory: Path, core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    """The watch sees a prepared write as it sees a job of the log's thread."""
    caplog.set_level(logging.WARNING, "mrecordlog_async")
    log = await opened(directory)
    core.hold()
    future = log.append_soon("q", b"x")
    await held(core)
    watch = log._engine.disk_watch
    assert watch.under_way_seconds() > 0
    while "a commit has been under way" not in caplog.text:
        await asyncio.sleep(0.05)
    core.go_on()
    await future
    assert watch.under_way_seconds() == 0
    while "it responds again" not in caplog.text:
        await asyncio.sleep(0.05)
    await log.close()


# How it ends.


async def test_close_waits_for_the_write_in_flight(directory: Path, core: Core) -> None:
    """What was handed over before close is stored and acknowledged."""
    log = await opened(directory)
    core.hold()
    future = log.append_soon("q", b"x")
    await held(core)
    closing = asyncio.create_task(log.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    core.go_on()
    await closing
    assert await future == 1
    assert await records(directory) == [b"first", b"x"]


async def test_cancelled_caller_does_not_stop_the_write(directory: Path, core: Core) -> None:
    """Cancelling stops the waiting; the record is stored, and the next caller is served."""
    log = await opened(directory)
    core.hold()
    caller = asyncio.create_task(log.append_record("q", None, b"x"))
    await held(core)
    caller.cancel()
    core.go_on()
    assert await log.append_record("q", None, b"y") == 2
    await log.close()
    assert await records(directory) == [b"first", b"x", b"y"]


def test_loop_that_ends_refuses_the_batch_in_flight(directory: Path, core: Core) -> None:
    """The caller gets an error; the directory is released after the write, and the log opens again."""
    found: list[BaseException | None] = []

    def end(done: asyncio.Future[int]) -> None:
        found.append(done.exception())
        core.go_on()  # only now: the batch was in flight when the loop ended

    async def leave() -> None:
        log = await opened(directory)
        core.hold()
        log.append_soon("q", b"x").add_done_callback(end)
        await held(core)

    asyncio.run(leave())
    assert isinstance(found[0], LogFailedError)
    assert asyncio.run(records(directory)) == [b"first", b"x"]
    wait_for(lambda: log_threads() == 0)


async def left_in_flight(directory: Path, core: Core) -> tuple[MultiRecordLog, asyncio.Future[int]]:
    """Return a log and an append whose write has begun, and goes on while nothing runs on the loop."""
    log = await opened(directory)
    core.hold()
    future = log.append_soon("q", b"x")
    await held(core)
    return log, future


def test_loop_that_stopped_is_released_by_the_next_opener_after_the_write(directory: Path, core: Core) -> None:
    """It closed without its log: who opens the directory next waits for the write, and finds the record."""
    loop = asyncio.new_event_loop()

    log, future = loop.run_until_complete(left_in_flight(directory, core))
    loop.close()
    threading.Timer(0.1, core.go_on).start()
    assert asyncio.run(records(directory)) == [b"first", b"x"]
    assert not future.done()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del log, future, loop
        gc.collect()
    wait_for(lambda: log_threads() == 0)


def test_loop_that_goes_on_hears_of_what_was_written_meanwhile(directory: Path, core: Core) -> None:
    """It stood still during the write, and acknowledges the record when it turns again."""
    loop = asyncio.new_event_loop()

    async def come_back(log: MultiRecordLog, future: asyncio.Future[int]) -> None:
        assert await future == 1
        assert await log.append_record("q", None, b"y") == 2
        await log.close()

    log, future = loop.run_until_complete(left_in_flight(directory, core))
    core.go_on()
    time.sleep(0.05)
    loop.run_until_complete(come_back(log, future))
    loop.close()
    assert asyncio.run(records(directory)) == [b"first", b"x", b"y"]


async def test_log_that_nobody_closed_is_collected_while_its_loop_runs(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop watches the bell, and keeps nothing else. The thread ends with the log."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.01)
    log = await opened(directory)
    await log.append_record("q", None, b"x")
    found = weakref.ref(log._engine)
    with pytest.warns(ResourceWarning, match="was never closed"):
        del log
        while found() is not None:
            await asyncio.sleep(0.01)  # its clock for the idle mark holds the log until it is due
            gc.collect()
    while log_threads():
        await asyncio.sleep(0.001)
    while any(made() is not None for made in core.made):  # the loop hears of the end, and forgets the bell
        await asyncio.sleep(0.001)
        gc.collect()
    assert await records(directory) == [b"first", b"x"]


async def test_caller_keeps_its_log_while_its_write_is_in_flight(
    directory: Path, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else refers to the log, and the record is stored all the same."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.01)
    log = await opened(directory)
    core.hold()
    future = log.append_soon("q", b"x")
    await held(core)
    del log
    gc.collect()
    core.go_on()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert await future == 1
        del future
        while open_async._held:
            await asyncio.sleep(0.01)
            gc.collect()
    assert await records(directory) == [b"first", b"x"]


async def test_logs_that_were_closed_leave_neither_descriptors_nor_threads(directory: Path, core: Core) -> None:
    """Whether they are forgotten or kept."""
    kept = []
    await (await opened(directory)).close()
    before = descriptors()
    for number in range(40):
        log = await MultiRecordLog.open(directory)
        await log.append_record("q", None, b"%d" % number)
        await log.append_record("q", None, b"%d" % number)
        await log.close()
        kept.append(log)
        await asyncio.sleep(0)
    while log_threads():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert descriptors() <= before


async def test_fork_while_a_write_is_in_flight(directory: Path, core: Core) -> None:
    """The child closes its copies and ends; the parent's record is stored, and its lock is free after the close."""
    log = await opened(directory)
    core.hold()
    future = log.append_soon("q", b"x")
    await held(core)
    jobs = core.made[-1]()
    assert jobs is not None
    copies = [jobs.fileno(), *log._engine.opened.handles()]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        left = [handle for handle in copies if os.path.exists(f"/proc/self/fd/{handle}")]
        os.write(writing, repr((left, log.state is LogState.CLOSED)).encode())
        os._exit(0)
    del jobs
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.read(reading, 100) == b"([], True)"
    os.close(reading)
    os.close(writing)
    core.go_on()
    assert await future == 1
    assert await log.append_record("q", None, b"y") == 2
    await log.close()
    assert await records(directory) == [b"first", b"x", b"y"]


EXIT = """
import asyncio, os, sys
from pathlib import Path
from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.commit import thread
from tests.compiled.jobs_core import CoreJobs, build

core = build()
thread.new_jobs = lambda: CoreJobs(core)

async def main():
    log = await MultiRecordLog.open(sys.argv[1])
    await log.create_queue("q")
    await log.append_record("q", None, b"first")
    made = log._engine.thread._write
    while not log._engine.writer.is_idle() or not made._jobs.is_idle():
        await asyncio.sleep(0)
    core.seam["holds"].value = 1
    log.append_soon("q", b"x")
    while not core.seam["held"].value:
        await asyncio.sleep(0.001)
    if sys.argv[2] == "exit":
        sys.exit(7)
    elif sys.argv[2] == "raise":
        raise ValueError
    return log

if sys.argv[2] == "kept":
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["exit", "raise", "kept"])
def test_exit_does_not_wait_for_a_write_that_hangs(directory: Path, way: str) -> None:
    """The process ends, the lock is free, and the log opens: the record in flight was not acknowledged."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(EXIT), str(directory), way],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == {"exit": 7, "raise": 1, "kept": 0}[way], done.stderr
    assert asyncio.run(records(directory)) in ([b"first"], [b"first", b"x"])


CHOSEN = """
import asyncio, sys
from mrecordlog_async import MultiRecordLog

async def main():
    log = await MultiRecordLog.open(sys.argv[1])
    print(log._engine.thread._write is not None)
    await log.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("setting", ["MRECORDLOG_DISK_THREAD=0", "MRECORDLOG_PURE=1"])
def test_prepared_writes_can_be_turned_off(directory: Path, setting: str) -> None:
    """By itself, or with the rest of the compiled room."""
    name, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN, str(directory)], capture_output=True, env={**os.environ, name: value}, check=True
    )
    assert done.stdout == b"False\n"
