"""Runs the real `MultiRecordLog` over the forgetful disk, the same way every time.

1. The clock is virtual: when nothing is ready the loop jumps to its next timer, and when there is none either, a call
   hangs that should have ended: `Hanging` is raised.
2. The log's thread is replaced by jobs on the loop, each begun a few turns after it was handed over. So calls go on
   coming while a batch is on its way, and the n-th call to the disk is always the same one.
3. Answers are noted at the moment they are given, inside the future, and before every call to the disk the whole disk
   is noted together with what had been promised by then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from mrecordlog_async import Limits, LogFailedError, MultiRecordLog, PersistPolicy, RecordLogError

from .disk import Disk, Fault, Snapshot
from .judge import Bounds, Call, Model, State, Verdict, Violation, as_payloads, state_of

DIRECTORY = "/data/wal"
FIRST_QUEUE_ID = 1_000
EMPTY = State(FIRST_QUEUE_ID, ())
SEGMENT_BYTES = 32_768
HAND_OVER_TURNS = 3
TIME_NS = 1_767_225_600_000_000_000
LOG_ID = b"the-log's-own-id"


class Hanging(Violation):
    """Nothing is ready and no timer runs, but somebody waits."""


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        self.now += 1e-6  # a turn takes time: a timer that is early by a rounding error comes round
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Hanging("a call waits for ever")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is made up, and whose futures tell `next_call` of their answers."""

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        self.next_call: Call | None = None
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def create_future(self) -> asyncio.Future[Any]:
        call, self.next_call = self.next_call, None
        return super().create_future() if call is None else _TellingFuture(call, self)


class _TellingFuture(asyncio.Future[Any]):
    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.call = call

    def set_result(self, result: Any) -> None:
        self.call.answer(result)
        super().set_result(result)

    def set_exception(self, exception: Any) -> None:
        self.call.fail(exception)
        super().set_exception(exception)


class LoopThread:
    """Stands in for `LogThread`: one job after the other, each some turns of the loop after it was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[Callable[[], object]] = deque()
        self._running = False

    def call(self, work: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        """See `LogThread`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.append(lambda: _finish(future, work, arguments))
        self._start()
        return future

    def submit(self, work: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
        """See `LogThread`."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self._jobs.append(lambda: _finish(future, work, arguments))
        self._start()
        return future

    def shutdown(self, wait: bool = True) -> None:
        """See `LogThread`."""

    def _start(self) -> None:
        if not self._running and self._jobs:
            self._running = True
            self._turn(HAND_OVER_TURNS)

    def _turn(self, left: int) -> None:
        if left:
            self._loop.call_soon(self._turn, left - 1)
            return
        self._jobs.popleft()()
        self._running = False
        self._start()


def _finish(
    future: asyncio.Future[Any] | concurrent.futures.Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    result, error = None, None
    try:
        result = work(*arguments)
    except BaseException as caught:
        error = caught
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


@dataclass(slots=True)
class Moment:
    """The disk before one call to it, and what a crash right there may leave."""

    snapshot: Snapshot
    bounds: Bounds
    call: str
    number: int


@dataclass(slots=True)
class Life:
    """One opening of a log to the next: its calls and all its moments."""

    model: Model
    moments: list[Moment] = field(default_factory=list)


class Run:
    """One history being run: what histories call. Everything they do to the log goes through here."""

    def __init__(self, disk: Disk | None = None, policy: PersistPolicy | None = None, limits: Limits | None = None):
        self.policy = policy or PersistPolicy.always()
        self.limits = limits or Limits()
        self.segment_bytes = SEGMENT_BYTES
        self.lives = [Life(Model(EMPTY, self.policy.syncs_each_batch))]
        self.disk = disk or Disk()
        self.log: MultiRecordLog | None = None
        self.stopped: BaseException | None = None
        self.seen: State | None = None  # what a reader saw at the end of the history
        self.record_moments = True
        self.each_call: Callable[[], None] | None = None  # told before each call and inside each write
        self._counter = 0
        self._watch(self.disk)

    @property
    def model(self) -> Model:
        """The calls of the present life."""
        return self.lives[-1].model

    # What histories do.

    async def open(self) -> None:
        """Open the log, hold it against the calls so far, and begin a new life."""
        opening = MultiRecordLog.open(
            DIRECTORY,
            filesystem=self.disk,
            segment_bytes=self.segment_bytes,
            persist_policy=self.policy,
            limits=self.limits,
        )
        self.log = await opening
        state = state_of(self.log._queues)
        Verdict(self.model).check(state, self.model.bounds(), "reopened")
        self.lives.append(Life(Model(state, self.policy.syncs_each_batch)))
        self.note("opened")

    async def close(self) -> None:
        """Close the log; afterwards no handle is left. Only a failed log may say that answered calls are in doubt."""
        assert self.log is not None
        try:
            await self.log.close()
        except LogFailedError as error:
            if self.log.failure is None or not error.in_doubt or self.policy.syncs_each_batch:
                raise Violation(f"close of a log without doubts says {error}") from error
        self.log = None
        self.note("closed")
        if self.disk.open_handles() or self.disk.misuse:
            raise Violation(f"after close {self.disk.open_handles()} handles are open; {self.disk.misuse}")

    async def kill(self) -> None:
        """Let the process die and the next one find the disk; call `open` for it."""
        self.note("killed")
        fault, calls, names = self.disk.fault, self.disk.calls, self.disk.call_names
        old, self.log = self.log, None
        self.disk.on_call = lambda call: None
        self.disk = self.disk.snapshot().kill()
        self.disk.fault, self.disk.calls, self.disk.call_names = fault, calls, list(names)
        for call in self.model.calls:
            if call.outcome == "open":
                call.outcome = "cancelled"
        if old is not None:
            old._writer_task.cancel()
            await asyncio.wait([old._writer_task])
        self._watch(self.disk)

    def use(self, disk: Disk) -> None:
        """Go on with another disk; call `open` for it."""
        self.disk = disk
        self._watch(disk)

    def begin(self, kind: str, queue: str = "", **details: Any) -> asyncio.Task[object]:
        """Make a call without waiting for it."""
        return asyncio.get_running_loop().create_task(self._make(Call(0, kind, queue, **details)))

    async def do(self, kind: str, queue: str = "", **details: Any) -> object:
        """Make a call and wait for its answer; errors are noted, not raised."""
        return await self._make(Call(0, kind, queue, **details))

    async def create(self, queue: str) -> object:
        return await self.do("create", queue)

    async def delete(self, queue: str) -> object:
        return await self.do("delete", queue)

    async def truncate(self, queue: str, position: int) -> object:
        return await self.do("truncate", queue, position=position)

    async def sync(self) -> object:
        return await self.do("sync")

    async def append(self, queue: str, *sizes: int, position: int | None = None) -> object:
        """Append records of these sizes with payloads that no other call made."""
        return await self.do("append", queue, position=position, payloads=self.payloads(*sizes))

    def begin_append(self, queue: str, *sizes: int, position: int | None = None) -> asyncio.Task[object]:
        return self.begin("append", queue, position=position, payloads=self.payloads(*sizes))

    async def idle(self, seconds: float = 2.5) -> None:
        """Let timers run."""
        await asyncio.sleep(seconds)

    async def turns(self, count: int) -> None:
        """Let the loop turn *count* times."""
        for _ in range(count):
            await asyncio.sleep(0)

    def payloads(self, *sizes: int) -> tuple[bytes, ...]:
        """Make payloads; each begins with a number of its own as far as its size allows."""
        made = []
        for size in sizes:
            self._counter += 1
            made.append((b"<%d>" % self._counter * (size // 3 + 1))[:size])
        return as_payloads(made)

    def note(self, call: str) -> None:
        """Note this moment, before *call*."""
        life = self.lives[-1]
        if self.record_moments:
            life.moments.append(Moment(self.disk.snapshot(), life.model.bounds(), call, self.disk.calls))

    # Steps.

    def _watch(self, disk: Disk) -> None:
        def note(call: str) -> None:
            if self.each_call is not None:
                self.each_call()
            if call not in ("read", "size", "names", "open", "open_directory", "lock", "links"):
                self.note(call)

        disk.on_call = note
        disk.on_half_written = lambda: self.each_call() if self.each_call is not None else None

    async def _make(self, call: Call) -> object:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self.log is None:
            return None
        self.model.add(call)  # numbered when it is made: that is the order of arrival
        loop.next_call = call
        try:
            value = await _coroutine(self.log, call)
        except asyncio.CancelledError:
            call.outcome = "cancelled" if call.outcome == "open" else call.outcome
            raise
        except (RecordLogError, OSError) as error:
            call.fail(error)
            return error
        finally:
            loop.next_call = None
        if call.outcome != "answered":
            call.answer(value)  # it needed no future
        return value


def _coroutine(log: MultiRecordLog, call: Call) -> Coroutine[Any, Any, object]:
    if call.kind == "append" and len(call.payloads) == 1:
        return log.append_record(call.queue, call.position, call.payloads[0])
    if call.kind == "append":
        return log.append_records(call.queue, call.position, call.payloads)
    if call.kind == "create":
        return log.create_queue(call.queue, exist_ok=call.exist_ok)
    if call.kind == "delete":
        return log.delete_queue(call.queue)
    if call.kind == "truncate":
        assert call.position is not None
        return log.truncate(call.queue, call.position)
    assert call.kind == "sync"
    return log.sync()


History = Callable[[Run], Awaitable[None]]


@contextmanager
def without_chance() -> Iterator[None]:
    """Fix what a log draws at random and reads from the clock."""
    with (
        patch("mrecordlog_async.engine.opening.secrets.randbits", lambda bits: FIRST_QUEUE_ID),
        patch("mrecordlog_async.engine.opening.secrets.token_bytes", lambda length: LOG_ID[:length]),
        patch("mrecordlog_async.engine.journal.time.time_ns", lambda: TIME_NS),
    ):
        yield


@contextmanager
def repeatable() -> Iterator[VirtualLoop]:
    """Put the virtual loop and the jobs on it in place of time, chance and threads."""
    loop = VirtualLoop()
    with patch("mrecordlog_async.engine.starting.LogThread", LoopThread), without_chance():
        try:
            yield loop
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            with suppress(Violation):
                loop.run_until_complete(asyncio.sleep(0))
                loop.run_until_complete(asyncio.sleep(1))
            loop.close()


def run_history(history: History, run: Run, fault: Fault | None = None) -> Run:
    """Run *history* to its end, close the log, and return the run. Open errors (OSError) end it early."""

    async def whole() -> None:
        run.disk.fault = fault
        try:
            await history(run)
        except (OSError, RecordLogError) as error:
            run.stopped = error
        if run.log is not None:
            run.seen = state_of(run.log._queues)  # reads go on, also when the log has failed
            await run.close()

    with repeatable() as loop:
        loop.run_until_complete(whole())
    return run
