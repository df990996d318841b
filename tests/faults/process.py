"""A process of the model: an event loop with a virtual clock, the log's thread, and a death after which nothing runs.

1. The clock is virtual: when nothing is ready, the loop jumps to its next timer. If there is no timer either, some call
   hangs that should have ended, and `Hanging` is raised.
2. Everything that a log begins belongs to the `Process` whose context it began in: tasks, callbacks, timers, threads.
   When the process dies, none of that runs again. The history, which is outside of it, goes on.
3. The log's own code of its thread runs, but its queue and its thread are replaced: each job begins a few turns of the
   loop after it was handed over, so the n-th call to the disk is the same one in every run. With `stepping`, a job
   pauses before every call to the disk, and the loop turns meanwhile, as with a real thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from . import inside
from .judge import Call, Violation

if TYPE_CHECKING:
    from .disk import Disk

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

HAND_OVER_TURNS = 3
TIMERS = 99
STEP_TURNS = 2


class Hanging(Violation):
    """Nothing is ready and no timer runs, but a call is still waiting."""


class Rests(BaseException):
    """The thread has no job now."""


class Died(BaseException):
    """The process of a thread died while the thread was in the middle of a job."""


class Process:
    """What dies at once. `begin` what belongs to it in its context.

    handed_over: how many jobs its threads got so far.
    """

    def __init__(self) -> None:
        self.is_alive = True
        self.handed_over = 0
        self.waiting: set[asyncio.Future[Any]] = set()  # of the history: results that die with the process
        self.steppers: set[_Stepper] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._dropped: list[Callable[[], object]] = []
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)

    def begin(self, work: Any) -> asyncio.Future[Any]:
        """Begin *work* in this process; return what the history can wait for, or cancel.

        If the process dies, the future is cancelled.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        if not self.is_alive:
            work.close()
            result.cancel()
            return result
        task = loop.create_task(work, context=self.context.copy())
        self.waiting.add(result)
        task.add_done_callback(partial(self._pass_on, result), context=self.context)
        result.add_done_callback(partial(_cancel, task))
        return result

    def die(self) -> None:
        """Run nothing of it any more."""
        self.is_alive = False
        for result in list(self.waiting):
            result.cancel()
        self.waiting.clear()
        for timer in self._timers:
            timer.cancel()  # else the loop keeps what it would call
        self._timers.clear()

    def note_timer(self, timer: asyncio.TimerHandle, now: float) -> asyncio.TimerHandle:
        """Note a timer that ends with the process."""
        if len(self._timers) > TIMERS:
            self._timers = [each for each in self._timers if not each.cancelled() and each.when() > now]
        self._timers.append(timer)
        return timer

    def bury(self) -> None:
        """Let the tasks and threads of a dead process end, once nobody looks any more: its disk refuses all calls."""
        self.is_alive = True
        for stepper in list(self.steppers):
            stepper.end()
        for callback in self._dropped:  # the first steps of tasks among them: a task that never begins cannot end
            asyncio.get_running_loop().call_soon(callback, context=self.context)

    def run(self, callback: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Run a callback of this process, if the process lives."""
        if self.is_alive:
            callback(*arguments)
        else:
            self._dropped.append(partial(callback, *arguments))

    def _pass_on(self, result: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        self.waiting.discard(result)
        if result.done():
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            result.cancel()
        elif (error := task.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(task.result())


def _cancel(task: asyncio.Task[Any], result: asyncio.Future[Any]) -> None:
    if result.cancelled():
        task.cancel()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _VirtualSelector(selectors.SelectSelector):
    """Has no descriptor to wait for: the model rings by turns of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += 1e-6  # each turn takes time, so that a timer that is early by a rounding error still fires
        if timeout is None:
            raise Hanging("a call waits for ever")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, whose futures report their results to `next_call`."""

    def __init__(self, *, stepping: bool = False) -> None:
        self._clock = _VirtualSelector()
        self.next_call: Call | None = None
        self.stepping = stepping
        self._processes: list[Process] = []
        super().__init__(self._clock)
        self.set_exception_handler(self._report)

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "was destroyed but it is pending" not in context.get("message", ""):
            self.default_exception_handler(context)

    def new_process(self) -> Process:
        """Return a process whose tasks run on this loop."""
        self._processes.append(Process())
        return self._processes[-1]

    def forget(self, process: Process) -> None:
        """Keep nothing of a process."""
        self._processes.remove(process)

    def time(self) -> float:
        return self._clock.now

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.run, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return process.note_timer(super().call_at(when, process.run, callback, *args, context=context), self.time())

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        process = _PROCESS.get()
        if process is not None and not process.is_alive:
            raise RuntimeError("the loop of a dead process does not run")
        return self.call_soon(callback, *args, context=context)

    def add_reader(self, fd: Any, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
        """Watch a queue that makes writes, whose calls to the disk are turns of this loop."""
        assert isinstance(fd, WritingJobs)
        process = _PROCESS.get()

        def later(step: Callable[[], object]) -> None:
            if process is not None:
                process.handed_over += 1
            self.after_turns(STEP_TURNS, step)

        fd.later = later
        fd.on_ring = partial(self.call_soon, callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        """Watch it no more."""
        if isinstance(fd, WritingJobs):
            fd.on_ring = int
        return True

    def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Run a job of the threads that gather and read some turns after it was submitted, as a turn of this loop."""
        future: asyncio.Future[Result] = super().create_future()
        self.after_turns(HAND_OVER_TURNS, partial(_run_into, future, func, args))
        return future

    def after_turns(self, turns: int, callback: Callable[[], object], context: Context | None = None) -> None:
        """Call *callback* after this many turns."""
        if turns:
            self.call_soon(self.after_turns, turns - 1, callback, context, context=context)
        else:
            callback()

    def create_future(self) -> asyncio.Future[Any]:
        call, self.next_call = self.next_call, None
        return super().create_future() if call is None else _TellingFuture(call, self)

    def end(self) -> None:
        """End everything that is left, of dead processes too, and close the loop."""
        try:
            self.run_until_complete(self._end_all())
            self.run_until_complete(asyncio.sleep(1))
        except Hanging:
            pass
        self.close()

    async def _end_all(self) -> None:
        for task in asyncio.all_tasks(self) - {asyncio.current_task()}:
            task.cancel()
        for process in self._processes:
            if not process.is_alive:
                process.bury()
        await asyncio.sleep(0)


def _run_into(future: asyncio.Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
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


# The log's thread.


class _Queue:
    """The queue between the loop and the log's thread: has the thread run some turns after a job was put."""

    def __init__(self) -> None:
        self._jobs: deque[Any] = deque()
        self._taken = False
        self.thread: ModelThread | None = None

    def put(self, job: object) -> None:
        self._jobs.append(job)
        if self.thread is not None:
            self.thread.process.handed_over += 1
            self.thread.wake()

    def get(self) -> object:
        """Return the next job; one at each run of the thread."""
        if self._taken or not self._jobs:
            self._taken = False
            raise Rests
        self._taken = True
        return self._jobs.popleft()

    def get_nowait(self) -> object:
        if not self._jobs:
            raise Empty
        return self._jobs.popleft()

    def __len__(self) -> int:
        return len(self._jobs)


class Jobs(_Queue):
    """In place of `queue.SimpleQueue`."""

    def __class_getitem__(cls, item: object) -> type[Jobs]:
        return cls


class WritingJobs(_Queue):
    """See `engine.commit.thread.WritingJobs`: makes the calls of the one in C, in the same order, one at a time.

    Between two of its calls the loop turns, so that anything may happen meanwhile. What is left when the thread begins
    its next job is made first. `VirtualLoop.add_reader` sets `later` and `on_ring`.
    """

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.later: Callable[[Callable[[], object]], object] = lambda step: None
        self.on_ring: Callable[[], object] = lambda: None
        self._disk = disk
        self._steps: Iterator[None] | None = None
        self._is_awaited = self._rung = False
        self._result = False, 0, 0.0

    def get(self) -> object:
        self._is_awaited = True
        while self._steps is not None:
            self._go_on()
        self._is_awaited = False
        return super().get()

    def is_idle(self) -> bool:
        rests = self.thread is not None and self.thread.rests
        return rests and not self._jobs and self._steps is None

    def write(self, file: int, lock: int, blocks: memoryview, offset: int) -> bool:
        if not self.is_idle():
            return False
        self._steps = self._write(file, lock, blocks, offset)
        self.later(self._step)
        return True

    def result(self) -> tuple[bool, int, float]:
        return self._result

    def fileno(self) -> int:
        raise AssertionError("the virtual loop watches the queue itself")

    def ring(self) -> None:
        self._rung = True
        self.on_ring()

    def close(self) -> None:
        self.on_ring = int

    def has_rung(self) -> bool:
        rung, self._rung = self._rung, False
        return rung

    def _step(self) -> None:
        if self._steps is not None and not self._is_awaited:
            self._go_on()
            self.later(self._step)

    def _go_on(self) -> None:
        """Make the next call to the disk."""
        assert self._steps is not None
        if next(self._steps, self) is self:
            self._steps = None
            self.ring()

    def _write(self, file: int, lock: int, blocks: memoryview, offset: int) -> Iterator[None]:
        self._result = False, 0, 0.0
        before = bytes(blocks)
        if self._links(file) != 1:
            return
        yield
        if self._links(lock) < 1:
            return
        yield
        if bytes(blocks) != before:
            self._disk.misuse.append("the bytes of a write were changed while it was under way")
        try:
            self._result = True, self._disk.write_durable(file, [blocks], offset), 0.0
        except OSError as error:
            self._result = True, -(error.errno or errno.EIO), 0.0

    def _links(self, handle: int) -> int:
        try:
            return self._disk.links(handle)
        except OSError:
            return -1


class ModelThread:
    """Runs what the log's thread runs, from one job to the next, as turns of the loop that made it."""

    def __init__(self, *, target: Callable[..., object], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self._work = partial(target, *args)
        (self._jobs,) = [each for each in args if isinstance(each, _Queue)]
        loop, process = asyncio.get_running_loop(), _PROCESS.get()
        assert isinstance(loop, VirtualLoop), "a log of the model opens on a loop of the model"
        assert process is not None, "a log of the model opens in a process"
        self._loop, self.process = loop, process
        self._is_running = self._has_ended = False

    def start(self) -> None:
        self._jobs.thread = self
        self.wake()

    def join(self, timeout: float | None = None) -> None:
        """Do nothing: what is left runs when the loop turns."""

    @property
    def rests(self) -> bool:
        """Return whether it waits for a job."""
        return not self._is_running and not self._has_ended

    def wake(self) -> None:
        """Run some turns from now, unless it runs."""
        if not self._is_running and not self._has_ended and len(self._jobs):
            self._is_running = True
            self._loop.after_turns(HAND_OVER_TURNS, self._begin, self.process.context)

    def _begin(self) -> None:
        if self._loop.stepping:
            self._step(_Stepper(self._run, self.process))
        else:
            self._run()
            self._end()

    def _run(self) -> None:
        try:
            self._work()
        except Rests:
            return
        self._has_ended = True

    def _step(self, stepper: _Stepper) -> None:
        if stepper.go_on():
            self._loop.after_turns(STEP_TURNS, partial(self._step, stepper), self.process.context)
        else:
            self._end()

    def _end(self) -> None:
        self._is_running = False
        self.wake()


class _Stepper:
    """A run of the thread, and the baton that decides whether it or the loop runs."""

    def __init__(self, work: Callable[[], object], process: Process) -> None:
        self._is_alive = True
        self._process = process
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=process.context.copy().run, args=(self._run, work), daemon=True)
        self._thread.start()
        process.steppers.add(self)

    def go_on(self) -> bool:
        """Let the job run to its next call to the disk. Return False if it has ended."""
        if self._is_alive:
            self._go.release()
            self._paused.acquire()
        return self._is_alive

    def end(self) -> None:
        """End a thread of a dead process that is in the middle of a job."""
        self._process.is_alive = False
        while self._is_alive:
            self.go_on()
        self._process.is_alive = True

    def pause(self) -> None:
        """On the job's thread: let the loop turn."""
        self._paused.release()
        self._go.acquire()
        if not self._process.is_alive:
            raise Died

    def _run(self, work: Callable[[], object]) -> None:
        self._go.acquire()
        _steppers.current = self
        try:
            if self._process.is_alive:
                work()
        except BaseException:
            if self._process.is_alive:
                raise
        finally:
            self._process.steppers.discard(self)
            self._is_alive = False
            self._paused.release()


_steppers = threading.local()


def pause_job() -> None:
    """Pause if this is the thread of a job that runs step by step."""
    stepper: _Stepper | None = getattr(_steppers, "current", None)
    if stepper is not None:
        stepper.pause()


@contextmanager
def repeatable(*, stepping: bool = False) -> Iterator[VirtualLoop]:
    """Replace time, chance and threads by the virtual loop and its jobs."""
    with inside.without_chance(), inside.on_model_threads(Jobs, ModelThread, WritingJobs):
        loop = VirtualLoop(stepping=stepping)
        try:
            yield loop
        finally:
            loop.end()
