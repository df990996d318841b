"""Runs the real `MultiRecordLog` over the forgetful disk, the same way every time.

1. The clock is virtual: when nothing is ready, the loop jumps to its next timer. If there is no timer either, some call
   hangs that should have ended, and `Hanging` is raised.
2. The log's thread is replaced by jobs on the loop, each of which begins a few turns after it was submitted. So new
   calls arrive while a batch is being written, and the n-th call to the disk is the same one in every run. A
   `SteppingThread` pauses before every call to the disk and lets the loop turn meanwhile, as with a real thread.
3. Results are recorded inside the future, at the moment they are set. Before every call to the disk, the whole disk is
   recorded together with what had been promised by then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar, TypeVarTuple
from unittest.mock import patch

from mrecordlog_async import Limits, LogFailedError, MultiRecordLog, PersistPolicy, ReadOnlyLog, RecordLogError
from mrecordlog_async.engine import open_async
from mrecordlog_async.engine.commit.open import ID_STEP_BITS
from mrecordlog_async.engine.commit.thread import FileTurns, ThreadProgress
from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.intake.commands import AppendGroup, Command
from mrecordlog_async.engine.intake.controls import Attached, ChangeRule, TruncateQueue
from mrecordlog_async.engine.running import EngineOptions
from mrecordlog_async.format.controls import NO_OWNER
from mrecordlog_async.maintenance.placed_log import PlacedLog, open_placed_log
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.model import TICK_NS
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.support.clock import Clock

from .disk import WRITES, Disk, Fault, Snapshot
from .disk_thread import ModelDiskThread
from .judge import ID_STEP, Bounds, Call, Model, State, Verdict, Violation, as_payloads, state_of

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

DIRECTORY = "/data/wal"
COPY = "/data/copy"
FIRST_QUEUE_ID = 1_000
EMPTY = State(FIRST_QUEUE_ID, ())
SEGMENT_BYTES = 32_768
HAND_OVER_TURNS = 3
STEP_TURNS = 2
UNEVENTFUL = (
    *("read", "read_into", "size", "list_names", "open", "open_directory", "lock", "links", "space_of"),
    *(
        "duplicate",
        "set_direct",
        "recycles",
        "is_at",
        "is_alone",
        "is_replaceable",
        "mode",
        "drop_cache",
        "open_writes",
    ),
)
"""Calls that change nothing: the moment before them is the same as the moment before the next call."""
TIME_NS = 1_767_225_600_000_000_000
LOG_ID = b"the-log's-own-id"


class Hanging(Violation):
    """Nothing is ready and no timer runs, but a call is still waiting."""


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        self.now += 1e-6  # each turn takes time, so that a timer that is early by a rounding error still fires
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Hanging("a call waits for ever")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, whose futures report their results to `next_call`."""

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        self.next_call: Call | None = None
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def add_reader(self, fd: Any, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
        """Watch a disk thread of the model, whose calls to the disk are turns of this loop."""
        assert isinstance(fd, ModelDiskThread)
        fd.later = partial(self._call_later, STEP_TURNS)
        fd.on_ring = partial(self.call_soon, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        """Watch it no more."""
        assert isinstance(fd, ModelDiskThread)
        fd.on_ring = int
        return True

    def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Run a job of the threads that gather and read some turns after it was submitted, as a turn of this loop."""
        future: asyncio.Future[Result] = super().create_future()
        self._call_later(HAND_OVER_TURNS, partial(_run_into, future, func, args))
        return future

    def _call_later(self, turns: int, callback: Callable[[], object]) -> None:
        if turns:
            self.call_soon(self._call_later, turns - 1, callback)
        else:
            callback()

    def create_future(self) -> asyncio.Future[Any]:
        call, self.next_call = self.next_call, None
        return super().create_future() if call is None else _TellingFuture(call, self)


def _run_into(future: asyncio.Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    result, error = None, None
    try:
        result = work(*arguments)
    except BaseException as caught:
        error = caught
    _tell(future, result, error)


class _TellingFuture(asyncio.Future[Any]):
    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.call = call

    def set_result(self, result: Any) -> None:
        super().set_result(result)
        self.call.answer(result)

    def set_exception(self, exception: Any) -> None:
        super().set_exception(exception)
        self.call.fail(exception)


class LoopThread:
    """Replaces `LogThread`: runs one job after the other, each a few turns of the loop after it was submitted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ending: concurrent.futures.Future[Any] | None = None
        self._jobs: deque[Callable[[], Callable[[], object]]] = deque()
        self._running = False
        self.progress = ThreadProgress()
        self.turns = FileTurns(self.progress)
        self.on_job: Callable[[], object] = int  # never called: the watch would tick in virtual time

    def call(self, work: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        """See `LogThread`."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self._jobs.append(lambda: self._finish(future, work, arguments))
        self._start()
        return future

    def hand_over(
        self, report: Callable[[Any, BaseException | None], object], work: Callable[..., Any], *arguments: object
    ) -> None:
        """See `LogThread`."""
        self._jobs.append(lambda: self._do(report, work, arguments))
        self._start()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
        """See `LogThread`."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self._jobs.append(lambda: self._finish(future, work, arguments))
        self._start()
        return future

    def end(self, last: Callable[[], None]) -> tuple[concurrent.futures.Future[Any], bool]:
        """See `LogThread`."""
        is_first = self._ending is None
        if self._ending is None:
            self._ending = self.submit(last)
        return self._ending, is_first

    def _start(self) -> None:
        if not self._running and self._jobs:
            self._running = True
            self._turn(HAND_OVER_TURNS)

    def _turn(self, left: int) -> None:
        if left:
            self.loop.call_soon(self._turn, left - 1)
            return
        self._begin(self._jobs.popleft())

    def _do(
        self,
        report: Callable[[Any, BaseException | None], object],
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> Callable[[], object]:
        """Do the work, and return the call that reports its result."""
        result, error = None, None
        self.turns.begin_job()
        try:
            result = work(*arguments)
        except BaseException as caught:
            error = caught
        self.turns.end_job()
        return partial(report, result, error)

    def _finish(
        self,
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> Callable[[], object]:
        """Do the work, and return the call that reports its result to the waiting future."""
        return self._do(partial(_tell, future), work, arguments)

    def _begin(self, job: Callable[[], Callable[[], object]]) -> None:
        self._end(job())

    def _end(self, tell: Callable[[], object]) -> None:
        tell()
        self._running = False
        self._start()


class SteppingThread(LoopThread):
    """Runs each job on a real thread, from one call to the disk to the next, with turns of the loop in between.

    Only the thread or the loop runs at any time, so every run is the same.
    """

    def _begin(self, job: Callable[[], Callable[[], object]]) -> None:
        self._step(_Stepper(job))

    def _step(self, stepper: _Stepper) -> None:
        if stepper.go_on():
            self._wait(stepper, STEP_TURNS)
        else:
            self._end(stepper.tell)

    def _wait(self, stepper: _Stepper, left: int) -> None:
        if left:
            self.loop.call_soon(self._wait, stepper, left - 1)
        else:
            self._step(stepper)


class _Stepper:
    """A job on its own thread, and the baton that decides whether the thread or the loop runs."""

    def __init__(self, job: Callable[[], Callable[[], object]]) -> None:
        self.tell: Callable[[], object] = lambda: None
        self._job = job
        self._alive = True
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def go_on(self) -> bool:
        """Let the job run to its next call to the disk. Return False if it has ended."""
        self._go.release()
        self._paused.acquire()
        return self._alive

    def pause(self) -> None:
        """On the job's thread: let the loop turn."""
        self._paused.release()
        self._go.acquire()

    def _work(self) -> None:
        self._go.acquire()
        _steppers.current = self
        try:
            self.tell = self._job()
        finally:
            self._alive = False
            self._paused.release()


_steppers = threading.local()


def pause_job() -> None:
    """Pause if this is the thread of a job that runs step by step."""
    stepper: _Stepper | None = getattr(_steppers, "current", None)
    if stepper is not None:
        stepper.pause()


def _tell(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any], result: Any, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _tell_taken(commands: list[Command]) -> list[Command]:
    for command in commands:
        for future in command.futures if isinstance(command, AppendGroup) else [command.future]:
            if isinstance(future, _TellingFuture) and not future.done():
                future.call.taken()
    return commands


@dataclass(slots=True)
class Moment:
    """The disk before one call to it, or in the middle of a write, and what a crash at this moment may leave.

    bounds: after a power cut. killed: after the death of the process. absent: the log need not exist yet.
    """

    snapshot: Snapshot
    bounds: Bounds
    killed: Bounds
    call: str
    number: int
    absent: bool = False


@dataclass(slots=True)
class Life:
    """The time from one opening of a log to the next: its calls and all its moments.

    first_batch: the number of the first batch that can be written in it.
    """

    model: Model
    first_batch: int = 0
    moments: list[Moment] = field(default_factory=list)


class Run:
    """One history being run. Histories use its methods for everything that they do to the log."""

    def __init__(
        self,
        disk: Disk | None = None,
        policy: PersistPolicy | None = None,
        limits: Limits | None = None,
        directory: str = DIRECTORY,
    ) -> None:
        self.policy = policy or PersistPolicy.always()
        self.limits = limits or Limits()
        self.directory = directory
        self.segment_bytes = SEGMENT_BYTES
        self.recycle = True
        self.lives = [Life(Model.under(self.policy, EMPTY))]
        self.disk = disk or Disk()
        self.copies: list[Run] = []
        self.written: dict[int, Bounds] = {}  # by batch: what was promised when the batch was written
        self.before: dict[str, bytes] = {}  # the files at a moment that a history chose
        self.halves = 0  # writes that were recorded half-way
        self.by_taking = False  # calls count in the order in which the writer takes them, because some wait in line
        self.shown: list[tuple[Model, Bounds, State]] = []  # what readers saw during the run
        self.loop: asyncio.AbstractEventLoop | None = None
        self._original: list[Run] = []  # what this is a copy of
        self.opened = False
        self.holders: dict[tuple[str, str], Attached] = {}  # by queue and consumer: the last result of "attach"
        self.ended_holders: set[tuple[int, int]] = set()  # queue id and epoch: from before a crash under a weak policy
        self.unfinished = False  # a copy that is still being made
        self.log: MultiRecordLog | None = None
        self.placed: PlacedLog | None = None  # `log` without its records
        self.stopped: BaseException | None = None
        self.in_doubt: Mapping[str, int] = {}  # what the last close named: the lowest position by queue
        self.seen: State | None = None  # what a reader saw at the end of the history
        self.record_moments = True
        self.each_call: Callable[[], None] | None = None  # called before each call and inside each write
        self.on_expiry: Callable[[TruncateQueue], None] | None = None  # called before retention truncates
        self._counter = 0
        self._watch(self.disk)

    @property
    def model(self) -> Model:
        """The calls of the present life."""
        return self.lives[-1].model

    # What histories do.

    async def open(self) -> None:
        """Open the log, check it against the calls so far, and begin a new life. A copy that failed does not exist."""
        if self.unfinished:
            return
        opening = MultiRecordLog.open(
            self.directory,
            filesystem=self.disk,
            segment_bytes=self.segment_bytes,
            persist_policy=self.policy,
            limits=self.limits,
            recycle=self.recycle,
        )
        self.loop = asyncio.get_running_loop()
        was_closed = not self.opened or self.disk.exists(f"{self.directory}/CLOSED")
        self.log, self.placed = await opening, None
        assert self.log._engine.expiry is not None
        self.log._engine.expiry._submit = self._expire
        self.opened = True
        state = self._state(self.log)
        Verdict(self.model).check(state, self.model.bounds(), "reopened")
        first_batch = self.log._engine.opened.journal.end.last_batch + 1
        self.lives.append(Life(Model.under(self.policy, state, was_closed), first_batch))
        self._note_fence(self.log)
        self.note("opened")

    async def open_without_records(self, policy: PersistPolicy | None = None) -> None:
        """Open the log as `mrecordlog truncate DIR` does, with *policy* or that of the run, and begin a new life."""
        policy = policy or self.policy
        self.loop = asyncio.get_running_loop()
        was_closed = not self.opened or self.disk.exists(f"{self.directory}/CLOSED")
        self.placed = await open_placed_log(
            self.directory,
            EngineOptions(policy, self.limits),
            filesystem=self.disk,
            segment_bytes=self.segment_bytes,
        )
        self.log = self.placed.log
        state = self._look(self.directory)
        Verdict(self.model).check(state, self.model.bounds(), "reopened without records")
        first_batch = self.log._engine.opened.journal.end.last_batch + 1
        self.lives.append(Life(Model.under(policy, state, was_closed), first_batch))
        self._note_fence(self.log)
        self.note("opened")

    def _expire(self, command: Command) -> None:
        """Make a truncate of the log's retention as a call of the model."""
        assert isinstance(command, TruncateQueue)
        assert command.queue_id is not None
        if self.on_expiry is not None:
            self.on_expiry(command)
        holder = (command.queue_id, 0)
        call = self.begin("truncate", command.queue, position=command.position, holder=holder, forced=True)
        call.add_done_callback(partial(_pass_on, command.future))

    def _note_fence(self, log: MultiRecordLog) -> None:
        """Note the first call, which the log makes itself: it ends the holders from before a crash."""
        if log._engine.fence is None:
            return
        call = self.model.add(Call(0, "fence", ""))

        def ended(fence: asyncio.Future[object]) -> None:
            if call.outcome != "open":
                return
            error = fence.exception()
            if error is None:
                call.answer(None)
            else:
                call.fail(error)

        log._engine.fence.add_done_callback(ended)

    async def close(self) -> None:
        """Close the log and check that no handle stays open. Only a failed log may report calls as in doubt."""
        if self.unfinished:
            return
        assert self.log is not None
        self.in_doubt = {}
        try:
            await self.log.close()
        except LogFailedError as error:
            self.in_doubt = error.in_doubt
            if self.log.inspection.failure is None or not error.in_doubt or self.policy.syncs_each_batch:
                raise Violation(f"close of a log without doubts says {error}") from error
        self.log = self.placed = None
        self.note("closed")
        alone = all(other.log is None for other in (*self.copies, *self._original))
        if (alone and self.disk.open_handles()) or self.disk.misuse:
            raise Violation(f"after close {self.disk.open_handles()} handles are open; {self.disk.misuse}")

    async def kill(self) -> None:
        """Let the process die. Call `open` for the next process, which finds the disk as it is."""
        self.note("killed")
        if not self.policy.syncs_each_batch:
            self.ended_holders |= {(held.queue_id, held.epoch) for held in self.holders.values()}
        fault, calls, names = self.disk.fault, self.disk.calls, self.disk.call_names
        old, self.log, self.placed = self.log, None, None
        self.disk.on_call = lambda call: None
        self.disk = self.disk.snapshot().kill()
        self.disk.fault, self.disk.calls, self.disk.call_names = fault, calls, list(names)
        for copy in self.copies:
            assert copy.log is None, "the death of a process with two logs is not modelled"
            copy.disk = self.disk
        for call in self.model.calls:
            if call.outcome == "open":
                call.outcome = "cancelled"
        if old is not None:
            old._engine._unclosed.detach()  # a process that died prints no warning
            old._engine._writer_task.cancel()
            await asyncio.wait([old._engine._writer_task])
            # Nor does the next process know of it: it neither waits for the log nor releases it.
            open_async._ending.pop(self.directory, None)
            open_async._held.pop(self.directory, None)
        self._watch(self.disk)

    def use(self, disk: Disk) -> None:
        """Continue with another disk; call `open` for it."""
        self.disk = disk
        self._watch(disk)

    def begin(self, kind: str, queue: str = "", **details: Any) -> asyncio.Task[object]:
        """Make a call without waiting for it."""
        return asyncio.get_running_loop().create_task(self._make(Call(0, kind, queue, **details)))

    async def do(self, kind: str, queue: str = "", **details: Any) -> object:
        """Make a call and wait for its result; errors are recorded, not raised."""
        return await self._make(Call(0, kind, queue, **details))

    async def create(self, queue: str) -> object:
        return await self.do("create", queue)

    async def delete(self, queue: str) -> object:
        return await self.do("delete", queue)

    async def truncate(self, queue: str, position: int) -> object:
        return await self.do("truncate", queue, position=position)

    async def sync(self) -> object:
        return await self.do("sync")

    async def drain(self) -> object:
        return await self.do("sync", forced=True)

    async def append(self, queue: str, *sizes: int, position: int | None = None) -> object:
        """Append records of these sizes, with payloads that no other call appends."""
        return await self.do("append", queue, position=position, payloads=self.payloads(*sizes))

    def begin_append(
        self, queue: str, *sizes: int, position: int | None = None, soon: bool = False
    ) -> asyncio.Task[object]:
        return self.begin("append", queue, position=position, payloads=self.payloads(*sizes), soon=soon)

    async def attach(self, queue: str, consumer: str, **details: Any) -> object:
        """Attach to a consumer, and remember what the next calls of its holder carry."""
        held = await self.do("attach", queue, consumer=consumer, **details)
        if isinstance(held, Attached):
            self.holders[queue, consumer] = held
        return held

    def begin_move(self, kind: str, queue: str, consumer: str, position: int) -> asyncio.Task[object]:
        """Begin to acknowledge or to seek for the last holder that this run attached."""
        held = self.holders.get((queue, consumer), Attached(0, 0, 0))
        holder = (held.queue_id, held.epoch)
        return self.begin(kind, queue, consumer=consumer, position=position, holder=holder)

    async def acknowledge(self, queue: str, consumer: str, position: int) -> object:
        return await self.begin_move("acknowledge", queue, consumer, position)

    async def seek(self, queue: str, consumer: str, position: int) -> object:
        return await self.begin_move("seek", queue, consumer, position)

    async def idle(self, seconds: float = 2.5) -> None:
        """Let timers run."""
        await asyncio.sleep(seconds)

    async def turns(self, count: int) -> None:
        """Let the loop turn *count* times."""
        for _ in range(count):
            await asyncio.sleep(0)

    def payloads(self, *sizes: int) -> tuple[bytes, ...]:
        """Return payloads. Each begins with a unique number, as far as its size allows."""
        made = []
        for size in sizes:
            self._counter += 1
            made.append((b"<%d>" % self._counter * (size // 3 + 1))[:size])
        return as_payloads(made)

    async def take_snapshot(self, *, link: bool = True) -> Run:
        """Copy the log as `mrecordlog snapshot` does. The copy is a separate run, which may be opened."""
        copy = Run(self.disk, self.policy, self.limits, COPY)
        copy.unfinished, copy._counter = True, 1_000  # its own payloads, which the log never held
        self.copies.append(copy)
        copy._original.append(self)
        self._watch(self.disk)
        before = self.model.bounds()
        try:
            snapshot(self.directory, COPY, link=link, filesystem=self.disk)
        except (OSError, RecordLogError):
            return copy
        copy.unfinished = False
        state = self._look(COPY)
        self.shown.append((self.model, Bounds(before.at_least, len(self.model.calls)), state))
        copy.lives[0].model.base = state
        return copy

    def _look(self, directory: str) -> State:
        """Read a log without faults, and without counting the calls."""
        with self._unnoticed():
            return state_of(ReadOnlyLog.open(directory, filesystem=self.disk).recovered.queues)

    def _state(self, log: MultiRecordLog) -> State:
        """Return what an open log holds, in memory and on the disk."""
        with self._unnoticed():
            return state_of(log._engine.queues, LogDirectory(self.disk, self.directory))

    @contextmanager
    def _unnoticed(self) -> Iterator[None]:
        """Use the disk without faults, and without counting the calls."""
        disk = self.disk
        kept = disk.on_call, disk.fault, disk.calls
        disk.on_call, disk.fault = lambda call: None, None
        yield
        disk.on_call, disk.fault, disk.calls = kept
        del disk.call_names[disk.calls :]

    def check_shown(self) -> None:
        """Check what readers saw during the run against the results of the calls."""
        for model, bounds, state in self.shown:
            Verdict(model).check(state, bounds, "shown by a snapshot")

    def note(self, call: str) -> None:
        """Record this moment, before *call*, for this log and its copies."""
        if self.record_moments:
            snapshot, number = self.disk.snapshot(), self.disk.calls
            for run in (self, *self.copies):
                run._note(Moment(snapshot, run._bounds(), run.model.bounds_of_kill(), call, number, run.unfinished))
        if call in WRITES:
            for run in (self, *self.copies):
                run._note_batch()

    # Steps.

    def _note(self, moment: Moment) -> None:
        self.lives[-1].moments.append(moment)

    def _note_batch(self) -> None:
        if self.log is not None:
            self.written[self.log._engine.opened.journal.end.last_batch + 1] = self._bounds()

    def _bounds(self) -> Bounds:
        return self.model.bounds(self.loop.time() if self.loop is not None else 0.0)

    def _watch(self, disk: Disk) -> None:
        def on_call(call: str) -> None:
            if self.each_call is not None:
                self.each_call()
            if call not in UNEVENTFUL:
                self.note(call)
            pause_job()

        def on_half_written() -> None:
            if self.each_call is not None:
                self.each_call()
            self.halves += 1
            self.note("half of a write")
            pause_job()

        disk.on_call, disk.on_half_written = on_call, on_half_written

    async def _make(self, call: Call) -> object:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self.log is None:
            return None
        call.tick = time.time_ns() // TICK_NS
        if self.by_taking:
            call.number, call.on_taken = -1, partial(self.model.place, call)
        else:
            self.model.add(call)  # numbered when it is made: that is the order of arrival
        if call.kind != "truncate" or self.placed is None:  # whose result is not what its future holds
            loop.next_call = call
        try:
            value = await _coroutine(self.log, self.placed, call)
        except asyncio.CancelledError:
            call.outcome = "cancelled" if call.outcome == "open" else call.outcome
            raise
        except (RecordLogError, OSError) as error:
            call.fail(error)
            return error
        finally:
            loop.next_call = None
        if call.outcome != "answered":
            call.answer(value)  # the call needed no future
        if call.holder in self.ended_holders:
            raise Violation(f"a holder from before a crash moved consumer {call.consumer!r} of {call.queue!r}")
        return value


def _pass_on(future: asyncio.Future[object], made: asyncio.Task[object]) -> None:
    """Pass the result of a call on to who waits for it; a call that was not made is cancelled."""
    result = None if made.cancelled() else made.result()
    if isinstance(result, BaseException):
        future.set_exception(result)
    elif result is None:
        future.cancel()
    else:
        future.set_result(result)


def _coroutine(log: MultiRecordLog, placed: PlacedLog | None, call: Call) -> Coroutine[Any, Any, object]:
    if call.soon:
        return _append_soon(log, call)
    if call.kind == "append" and len(call.payloads) == 1:
        return log.append_record(call.queue, call.position, call.payloads[0])
    if call.kind == "append":
        return log.append_records(call.queue, call.position, call.payloads)
    if call.kind == "create":
        return log.create_queue(call.queue, exist_ok=call.exist_ok, options=call.options)
    if call.kind == "delete":
        return log.delete_queue(call.queue, past_consumers=call.forced)
    if call.kind == "truncate":
        assert call.position is not None
        queue_id = call.holder[0] if call.holder is not None else None
        return (placed or log).truncate(call.queue, call.position, queue_id=queue_id, past_consumers=call.forced)
    if call.kind == "sync":
        return log.drain() if call.forced else log.sync()
    if call.kind == "configure":
        return _configure(log, placed, call)
    return _setting(log, call)


async def _configure(log: MultiRecordLog, placed: PlacedLog | None, call: Call) -> None:
    if placed is not None:
        await placed.count([call.queue])
    await log.configure_queue(call.queue, call.options)


def _setting(log: MultiRecordLog, call: Call) -> Coroutine[Any, Any, object]:
    """Return a call about consumers or options."""
    queue, consumer, position, holder = call.queue, call.consumer, call.position, call.holder
    if call.kind == "attach":
        owner = uuid.UUID(bytes=call.owner) if call.owner != NO_OWNER else None
        return log.inspection.attach_consumer(
            queue, consumer, create=True, start=position, owner=owner, take_over=call.forced
        )
    if call.kind == "consume":
        return log.create_consumer(queue, consumer, start=position)
    if call.kind == "release":
        return log.delete_consumer(queue, consumer)
    if call.kind == "seal":
        return log.seal_queue(queue)
    if call.kind in ("rule", "unrule"):  # the rule alone: what else such a call does are calls like any other
        return _change_rule(log, queue, consumer, call.kind == "unrule", call.exist_ok)
    assert position is not None
    if call.kind == "move":
        return log.seek_consumer(queue, consumer, position)
    assert holder is not None
    if call.kind == "seek":
        return log.seek_consumer(queue, consumer, position, queue_id=holder[0], epoch=holder[1])
    assert call.kind == "acknowledge"
    return log.inspection.acknowledge(queue, consumer, position, queue_id=holder[0], epoch=holder[1])


async def _append_soon(log: MultiRecordLog, call: Call) -> object:
    return await log.append_soon(call.queue, *call.payloads)


async def _change_rule(log: MultiRecordLog, pattern: str, consumer: str, is_deleted: bool, exist_ok: bool) -> object:
    return await log._submit(ChangeRule, pattern, consumer, is_deleted, exist_ok)


History = Callable[[Run], Awaitable[None]]


def _drawn(bits: int) -> int:
    return ID_STEP if bits == ID_STEP_BITS else FIRST_QUEUE_ID


@contextmanager
def without_chance() -> Iterator[None]:
    """Replace the log's random numbers and its clock by fixed ones."""
    with (
        patch("mrecordlog_async.engine.commit.open.secrets.randbits", _drawn),
        patch("mrecordlog_async.engine.commit.open.secrets.token_bytes", lambda length: LOG_ID[:length]),
        patch("time.time_ns", lambda: TIME_NS),
        patch("mrecordlog_async.support.clock.SYSTEM", Clock(lambda: TIME_NS, lambda: TIME_NS)),
    ):
        yield


@contextmanager
def repeatable(thread: type[LoopThread] = LoopThread) -> Iterator[VirtualLoop]:
    """Replace time, chance and threads by the virtual loop and its jobs."""
    loop, take = VirtualLoop(), Admission.take
    with (
        patch("mrecordlog_async.engine.open_async.LogThread", thread),
        # Each step of spilling takes a turn of the loop.
        patch("mrecordlog_async.engine.spilling.spill.perf_counter", count().__next__),
        patch("mrecordlog_async.engine.spilling.spill.REST_SECONDS", 0),
        patch.object(Admission, "take", lambda self: _tell_taken(take(self))),
        without_chance(),
    ):
        try:
            yield loop
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with suppress(Violation):
                loop.run_until_complete(asyncio.sleep(0))
                loop.run_until_complete(asyncio.sleep(1))
            loop.close()
            _forget_logs(loop)


def _forget_logs(loop: asyncio.AbstractEventLoop) -> None:
    """Let no later run find the logs that *loop* left open: its thread cannot release them without it."""
    for path, held in list(open_async._held.items()):
        if held.thread.loop is loop:
            del open_async._held[path]
            open_async._ending.pop(path, None)


def run_history(history: History, run: Run, fault: Fault | None = None, thread: type[LoopThread] = LoopThread) -> Run:
    """Run *history* to its end, close the log, and return the run. Open errors (OSError) end it early."""

    async def whole() -> None:
        run.disk.fault = fault
        try:
            await history(run)
        except (OSError, RecordLogError) as error:
            run.stopped = error
        for copy in run.copies:
            if copy.log is not None:
                await copy.close()
        if run.log is not None:
            log = run.log
            await run.close()  # a log that was just opened still ends the holders from before a crash
            run.seen = run._state(log)  # reads continue even if the log has failed
        await run.turns(9)  # for the rest of an opening that failed

    with repeatable(thread) as loop:
        loop.run_until_complete(whole())
    run.check_shown()
    return run
