"""Releasing the directory: a dead loop, a forgotten log, a forked child, and discarded errors."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mrecordlog_async import (
    LogFailedError,
    LogLockedError,
    LogState,
    MultiRecordLog,
    PersistPolicy,
    PositionInPastError,
)
from mrecordlog_async.engine import open_async
from mrecordlog_async.engine.commit import upkeep
from mrecordlog_async.engine.commit.dead_segments import DeadSegments
from mrecordlog_async.engine.commit.disk_space import Spare
from mrecordlog_async.engine.commit.upkeep import Timer
from mrecordlog_async.engine.intake.commands import AppendGroup
from mrecordlog_async.storage.os_filesystem import OsFileSystem


class Slow(OsFileSystem):
    """Releases its lock late, as on a busy machine."""

    def close(self, handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("/LOCK"):
            for _ in range(50):
                os.sched_yield()
                os.stat("/")
        super().close(handle)


def test_directory_is_free_for_the_next_loop(directory: Path) -> None:
    """A log whose loop ended without close can be opened at once in another one; close is then a no-op."""
    logs = []

    async def leave_open(number: int) -> None:
        log = await MultiRecordLog.open(directory, filesystem=Slow())
        await log.create_queue(f"q{number}")
        logs.append(log)

    for number in range(20):
        asyncio.run(leave_open(number))

    async def close_all() -> None:
        for log in logs:
            await log.close()
            assert log.state is LogState.CLOSED
        async with MultiRecordLog.open(directory) as log:
            assert len(log.list_queues()) == 20

    asyncio.run(close_all())


@pytest.mark.parametrize(("owner", "step"), [(Spare, "discard"), (DeadSegments, "shrink")])
async def test_directory_is_free_after_a_close_that_failed_half_way(
    directory: Path, owner: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails when the files are closed, close raises it, and the log can be opened again in this process."""
    log = await MultiRecordLog.open(directory)
    await log.create_queue("q")
    await log.append("q", b"x")
    held = set(os.listdir("/proc/self/fd"))

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, fail)
        with pytest.raises(MemoryError):
            await log.close()
    assert len(set(os.listdir("/proc/self/fd"))) < len(held)
    async with MultiRecordLog.open(directory) as log:
        assert [payload for _, payload in log.range("q")] == [b"x"]


def test_forgotten_log_gives_the_directory_back(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log without references releases its directory when collected, with a ResourceWarning."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.01)

    async def forget() -> None:
        log = await MultiRecordLog.open(directory)
        await log.create_queue("q")
        reference = weakref.ref(log._engine)
        del log
        for _ in range(1000):  # until the writer sleeps; its clock for the idle mark holds the log until it is due
            gc.collect()
            if reference() is None:
                break
            await asyncio.sleep(0.01)
        assert reference() is None
        async with MultiRecordLog.open(directory) as again:
            assert again.list_queues() == ["q"]

    with pytest.warns(ResourceWarning, match="never closed"):
        asyncio.run(forget())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_log_forgotten_after_its_loop_was_closed_gives_the_directory_back(
    directory: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """An idle log whose loop was closed, and its tasks not cancelled, ends its thread and can be opened at once."""

    async def leave_open() -> threading.Thread:
        log = await MultiRecordLog.open(directory, filesystem=Slow())
        return log._engine.thread._thread

    loop = new_loop()
    thread = loop.run_until_complete(leave_open())
    loop.close()
    with pytest.warns(ResourceWarning, match="never closed"):
        gc.collect()

    async def again() -> None:
        async with MultiRecordLog.open(directory):
            pass

    asyncio.run(again())
    thread.join(60)
    assert not thread.is_alive()


class Held(Slow):
    """A disk on which one step of opening or closing waits until the log is opened again."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.waits, self.goes_on = threading.Event(), threading.Event()

    def drop_cache(self, handle: int) -> None:
        self._reach("open")
        super().drop_cache(handle)

    def rename(self, old: str, new: str) -> None:
        if new.endswith("CLOSED"):
            self._reach("close")
        super().rename(old, new)

    def _reach(self, step: str) -> None:
        if step == self._step:
            self.waits.set()
            self.goes_on.wait()


@pytest.mark.parametrize("step", ["open", "close"])
def test_directory_is_free_after_an_open_or_close_that_was_cancelled(
    directory: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next open in this process waits until the log's thread has released the directory."""
    files = Held(step)
    wait_for_release = open_async._wait_for_release

    async def cancel_at_step() -> None:
        opening = MultiRecordLog.open(directory, filesystem=files)
        task = asyncio.ensure_future((await opening).close() if step == "close" else opening)
        await asyncio.to_thread(files.waits.wait)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.wait(others)
        assert task.cancelled()

    def let_go(path: str, holder: Any) -> None:
        files.goes_on.set()
        wait_for_release(path, holder)

    async def open_again() -> list[str]:
        async with MultiRecordLog.open(directory) as log:
            return log.list_queues()

    async def create() -> None:
        async with MultiRecordLog.open(directory, queues=["q"]):
            pass

    asyncio.run(create())
    asyncio.run(cancel_at_step())
    monkeypatch.setattr(open_async, "_wait_for_release", let_go)
    assert asyncio.run(open_again()) == ["q"]
    assert not open_async._ending


def test_directory_is_free_after_an_open_that_was_cancelled_while_it_waited(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next open waits for that one too, which has taken the lock by then."""
    closing, opening, waits = Held("close"), Held("open"), threading.Event()
    wait_for_release = open_async._wait_for_release

    def note(path: str, holder: Any) -> None:
        waits.set()
        wait_for_release(path, holder)

    def let_go(path: str, holder: Any) -> None:
        opening.goes_on.set()
        wait_for_release(path, holder)

    async def cancel_while_it_waits() -> None:
        log = await MultiRecordLog.open(directory, filesystem=closing, queues=["q"])
        closed = asyncio.ensure_future(log.close())
        await asyncio.to_thread(closing.waits.wait)
        monkeypatch.setattr(open_async, "_wait_for_release", note)
        opened = asyncio.ensure_future(MultiRecordLog.open(directory, filesystem=opening))
        await asyncio.to_thread(waits.wait)
        opened.cancel()
        await asyncio.wait([opened])
        closing.goes_on.set()
        await closed
        await asyncio.to_thread(opening.waits.wait)
        monkeypatch.setattr(open_async, "_wait_for_release", let_go)
        async with MultiRecordLog.open(directory) as again:
            assert again.list_queues() == ["q"]

    asyncio.run(cancel_while_it_waits())
    assert not open_async._ending


class HeldSync(OsFileSystem):
    """A disk on which syncs of files wait once it is told to hold them."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def sync(self, handle: int) -> None:
        self.goes_on.wait()
        super().sync(handle)


async def test_open_waits_for_a_log_that_still_stores_although_its_close_was_cancelled(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling stops the waiting, not the closing: the next open finds what the log was storing then."""
    files, wait_for_release = HeldSync(), open_async._wait_for_release

    def let_go(path: str, holder: Any) -> None:
        files.goes_on.set()
        wait_for_release(path, holder)

    log = await MultiRecordLog.open(directory, filesystem=files, persist_policy=PersistPolicy.never(), queues=["q"])
    await log.append("q", b"a")
    files.goes_on.clear()
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    monkeypatch.setattr(open_async, "_wait_for_release", let_go)
    async with MultiRecordLog.open(directory) as again:
        assert [record.payload for record in again.range("q")] == [b"a"]
    assert log.state is LogState.CLOSED
    assert not open_async._held


NEW_LOOPS = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
NewLoop = Callable[[], asyncio.AbstractEventLoop]


async def open_with_a_record(directory: Path) -> MultiRecordLog:
    log = await MultiRecordLog.open(directory, queues=["q"])
    await log.append("q", b"a")
    return log


async def payloads_after(directory: Path, payload: bytes) -> list[bytes]:
    """Open the log, append *payload*, and return what it holds."""
    async with MultiRecordLog.open(directory) as log:
        await log.append("q", payload)
        return [record.payload for record in log.range("q")]


def stop_while_it_closes(loop: asyncio.AbstractEventLoop, log: MultiRecordLog) -> tuple[Any, Any]:
    """Stop *loop* as close has begun, before an append is stored; return the close and the append."""

    async def begin() -> tuple[Any, Any]:
        appended = log.append_soon("q", b"not stored")
        loop.call_soon(loop.call_soon, loop.stop)
        return asyncio.ensure_future(log.close()), appended

    begun = loop.create_task(begin())
    loop.run_forever()
    assert log.state is LogState.CLOSING
    return begun.result()


@NEW_LOOPS
@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
def test_directory_is_free_after_a_loop_that_was_stopped_during_close(
    directory: Path, new_loop: NewLoop, closed: bool
) -> None:
    """The next open releases what the old loop will not, although the program still has the log."""
    loop = new_loop()
    log = loop.run_until_complete(open_with_a_record(directory))
    ends = stop_while_it_closes(loop, log)
    if closed:
        loop.close()
    found = asyncio.run(payloads_after(directory, b"b"))
    assert found in ([b"a", b"b"], [b"a", b"not stored", b"b"])
    if closed:
        with pytest.warns(ResourceWarning, match="never closed"):
            del log, ends
            gc.collect()
    else:
        loop.run_until_complete(asyncio.wait(ends))
        assert isinstance(ends[1].exception(), LogFailedError | None)
        loop.close()


@NEW_LOOPS
def test_a_loop_that_goes_on_after_its_directory_was_released_stores_nothing(
    directory: Path, new_loop: NewLoop
) -> None:
    """Every call that waits there ends, close without an error, and the log that is open by then is not touched."""
    loop = new_loop()
    log = loop.run_until_complete(open_with_a_record(directory))
    log._engine.thread.hand_over(lambda result, error: None, directory.stat)  # something to be done before the release
    closing, appended = stop_while_it_closes(loop, log)

    async def other() -> list[bytes]:
        async with MultiRecordLog.open(directory) as taken_over:
            await asyncio.to_thread(go_on)
            await taken_over.append("q", b"b")
            return [record.payload for record in taken_over.range("q")]

    def go_on() -> None:
        loop.run_until_complete(asyncio.wait([closing, appended]))

    found = asyncio.run(other())
    assert closing.exception() is None
    assert log.state is LogState.CLOSED
    if appended.exception() is None:  # it was on the log's thread before the loop stopped
        assert found == [b"a", b"not stored", b"b"]
    else:
        assert isinstance(appended.exception(), LogFailedError)
        assert found == [b"a", b"b"]
    assert asyncio.run(payloads_after(directory, b"c")) == [*found, b"c"]
    loop.close()


@NEW_LOOPS
def test_directory_is_free_after_the_loop_of_an_open_log_was_closed(directory: Path, new_loop: NewLoop) -> None:
    """Nothing can be stored by it any more, so the next open takes the directory although the program has the log."""
    loop = new_loop()
    log = loop.run_until_complete(open_with_a_record(directory))
    loop.close()
    assert asyncio.run(payloads_after(directory, b"b")) == [b"a", b"b"]
    assert log.directory == str(directory)
    with pytest.warns(ResourceWarning, match="never closed"):
        del log
        gc.collect()


@NEW_LOOPS
def test_a_log_whose_loop_only_rests_keeps_its_directory(directory: Path, new_loop: NewLoop) -> None:
    """Its loop may go on at any time: another open is refused, and the log stores what comes next."""
    loop = new_loop()
    log = loop.run_until_complete(open_with_a_record(directory))
    with pytest.raises(LogLockedError):
        asyncio.run(payloads_after(directory, b"b"))
    assert loop.run_until_complete(log.append("q", b"c")) == 1
    loop.run_until_complete(log.close())
    loop.close()


FORKING = """
import asyncio, os, sys
from mrecordlog_async import LogClosedError, MultiRecordLog
from mrecordlog_async.storage.os_filesystem import OsFileSystem

class Forking(OsFileSystem):
    "Forks while the log is opened: the child lives on until the pipe is closed."
    child = 0
    def list_names(self, path):
        if not self.child:
            self.child = fork()
        return super().list_names(path)

reading, writing = os.pipe()
lives, say = os.pipe()

def fork():
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(say, b"!")
        os.read(reading, 1)
        os._exit(0)
    os.read(lives, 1)
    return child

async def main():
    files = Forking() if sys.argv[2] == "opening" else OsFileSystem()
    log = await MultiRecordLog.open(sys.argv[1], filesystem=files)
    child = files.child if sys.argv[2] == "opening" else fork()
    await log.create_queue("q")
    await log.close()
    async with MultiRecordLog.open(sys.argv[1]) as log:
        print(log.list_queues())
    held = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
    print([name for name in held if name.startswith(sys.argv[1]) or "eventfd" in name])
    os.close(writing)
    os.waitpid(child, 0)

asyncio.run(main())
"""


def run_program(
    program: str, *arguments: str | Path, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own; with these options of Python."""
    command = [sys.executable, *options, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("moment", ["opening", "open"])
def test_forked_child_keeps_nothing(directory: Path, moment: str) -> None:
    """Whenever the child was forked: the parent's close frees the directory while the child lives."""
    run = run_program(FORKING, directory, moment)
    assert run.stdout.splitlines() == ["['q']", "[]"], run.stderr


RELEASED = """
import asyncio, os, sys
from mrecordlog_async import MultiRecordLog

loop = asyncio.new_event_loop()
log = loop.run_until_complete(MultiRecordLog.open(sys.argv[1]).__aenter__())
loop.close()

async def open_again():
    async with MultiRecordLog.open(sys.argv[1]):
        pass

asyncio.run(open_again())
handles = [os.open(sys.argv[1], os.O_RDONLY) for _ in range(20)]
if os.fork() == 0:
    print(len([handle for handle in handles if os.path.exists(f"/proc/self/fd/{handle}")]), flush=True)
    os._exit(0)
os.wait()
"""


def test_forked_child_closes_nothing_of_others(directory: Path) -> None:
    """The log's loop is closed, and the next opener released it: its descriptors have the numbers of other files."""
    run = run_program(RELEASED, directory, options=("-W", "ignore"))
    assert run.stdout == "20\n", run.stderr


CLOSING = """
import asyncio, os, sys
from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.commit import dead_segments
from mrecordlog_async.storage.os_filesystem import OsFileSystem

dead_segments.SHRINK_BYTES = 4_096
other, parent = os.open("/dev/null", os.O_RDONLY), os.getpid()

class Forking(OsFileSystem):
    "Forks after each close, when the descriptor is that of another file already."
    def close(self, handle):
        if os.getpid() != parent:
            return super().close(handle)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        super().close(handle)
        os.dup2(other, handle)
        if os.fork() == 0:
            print(name, os.path.exists(f"/proc/self/fd/{handle}"), flush=True)
            os._exit(0)
        os.wait()
        os.close(handle)

async def main():
    async with MultiRecordLog.open(sys.argv[1], segment_bytes=65_536, filesystem=Forking(), queues=["q"]) as log:
        for _ in range(4):
            await log.append("q", bytes(60_000))
        await log.truncate("q", 3)
        journal = log._engine.opened.journal
        while journal.space.unfreed or journal.reclaimable():
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_child_that_is_forked_during_a_close_closes_nothing_of_others(directory: Path) -> None:
    """Of a removed segment, the directory and the lock: what was closed is none of the log's descriptors any more."""
    run = run_program(CLOSING, directory, options=("-W", "ignore"))
    closed = dict(line.rsplit(" ", 1) for line in run.stdout.splitlines())
    assert set(closed.values()) == {"True"}, run.stdout + run.stderr
    assert closed.keys() >= {directory.name, "LOCK"}
    assert any(name.endswith("(deleted)") for name in closed), run.stdout


FORGETTING = """
import asyncio, gc, os, sys
from mrecordlog_async import LogLockedError, MultiRecordLog
from mrecordlog_async.engine import open_async

loop = asyncio.new_event_loop()
log = loop.run_until_complete(MultiRecordLog.open(sys.argv[1]).__aenter__())
if os.fork() == 0:
    del log  # not the loop: asyncio would close what the parent waits with
    gc.collect()
    open_async.RELEASE_SECONDS = 0  # the thread that would release the directory is the parent's
    held = bool(open_async._ending)
    try:
        asyncio.run(MultiRecordLog.open(sys.argv[1]).__aenter__())
    except LogLockedError:
        print("the parent has it;", "waited" if held else "refused at once", flush=True)
    os._exit(0)
os.wait()
loop.run_until_complete(log.close())
"""


def test_forked_child_that_forgets_the_log_releases_nothing(directory: Path) -> None:
    """The log is the parent's: the child gets no warning for it, and never waits for its release."""
    run = run_program(FORGETTING, directory, options=("-W", "always"))
    assert run.stdout == "the parent has it; refused at once\n", run.stderr
    assert "never closed" not in run.stderr


CALLING = """
import asyncio, os, sys
from mrecordlog_async import LogClosedError, MultiRecordLog

loop = asyncio.new_event_loop()
log = loop.run_until_complete(MultiRecordLog.open(sys.argv[1]).__aenter__())

async def call():
    calls = {
        "append": lambda: log.append("q", b"x"),
        "append_soon": lambda: log.append_soon("q", b"x"),
        "truncate": lambda: log.truncate("q", 0),
        "sync": log.sync,
        "drain": log.drain,
    }
    for name, begin in calls.items():
        try:
            await begin()
        except LogClosedError as error:
            print(name, error, sep=": ", flush=True)

if os.fork() == 0:
    asyncio.run(call())
    os._exit(0)
os.wait()
loop.run_until_complete(log.close())
"""


def test_forked_child_is_told_that_the_log_is_not_its_own(directory: Path) -> None:
    """Every change says so, on the child's own event loop as well."""
    run = run_program(CALLING, directory)
    said = "the log belongs to the process that opened it, not to its forked child"
    calls = ("append", "append_soon", "truncate", "sync", "drain")
    assert run.stdout.splitlines() == [f"{call}: {said}" for call in calls], run.stderr


class Payload(bytes):
    """A payload that a weak reference can watch."""


@pytest.mark.parametrize("way", ["position", "records", "queue"])
async def test_refused_calls_leave_no_garbage(log: MultiRecordLog, way: str) -> None:
    """A discarded error and its payload are freed at once, without a garbage collection."""
    await log.append_records("q", 0, [b"a", b"b"])
    calls: dict[str, Any] = {
        "position": lambda: log.append_record("q", 0, b"x" * 1_000_000),
        "records": lambda: log.append_records("q", 0, [b"x" * 1_000_000, b"y"]),
        "queue": lambda: log.append_record("nowhere", None, b"x" * 1_000_000),
    }
    for _ in range(3):  # everything that is created once exists by now
        with pytest.raises((PositionInPastError, LookupError, Exception)):
            await calls[way]()
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            try:
                await calls[way]()
            except Exception as error:
                del error
        await asyncio.sleep(0)
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, bytes | BaseException | asyncio.Future)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_withdrawn_records_leave_every_column() -> None:
    """A group whose callers gave up keeps queue, payload and future of the others, in their places."""
    group = AppendGroup()
    loop = asyncio.get_running_loop()
    for number in range(6):
        group.queues.append(f"q{number}")
        group.payloads.append(b"%d" % number)
        group.futures.append(loop.create_future())
    for number in (0, 3, 5):
        group.futures[number].cancel()
    waiting = [group.futures[number] for number in (1, 2, 4)]
    assert not group.withdrawn()
    assert (group.queues, group.payloads, group.futures) == (["q1", "q2", "q4"], [b"1", b"2", b"4"], waiting)


class Clock:
    """An event loop's clock that notes what is set and cancelled."""

    def __init__(self) -> None:
        self.set: list[float] = []
        self.cancelled = 0

    def time(self) -> float:
        return 0.0

    def call_later(self, seconds: float, callback: object) -> Clock:
        self.set.append(seconds)
        return self

    def cancel(self) -> None:
        self.cancelled += 1


def test_interval_counts_from_the_oldest_unsynced_batch() -> None:
    """A steady flow of batches does not postpone the sync: the running timer is kept."""
    clock: Any = Clock()
    timer = Timer(clock, lambda: None)
    for _ in range(10):
        timer.arm(0.3)
    assert (clock.set, clock.cancelled) == ([0.3], 0)
    timer._ring()
    timer.arm(0.3)
    assert clock.set == [0.3, 0.3]
