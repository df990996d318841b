"""The log's own thread: everything that touches a file runs here, one job at a time, in the order of submission.

It is an Executor, so that `aiofiles` can submit calls to it. Batches and upkeep use the leaner `hand_over`, which needs
no future and no lock: one queue there, one wake-up back. On uvloop a batch costs 16 to 22 µs that way instead of
34 to 38. Eventfds in place of both save another 10 µs on an idle machine. Where other programs kept its two CPUs busy,
one caller's rate with them was a quarter of what it is with the queue, so they are not used.

A small batch may be handed over as a prepared write instead of a job (`LogThread.write`), where the queue of the thread
was compiled: the thread makes it while it waits for a job, without the interpreter. One caller's call takes 0.8 of the
time that way.

`Watch` watches it from the event loop: a job that does not return, slow ones, the times of the last minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from mrecordlog_async.compiled import new_jobs
from mrecordlog_async.engine.commit.batch import PreparedWrite, Written
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.metrics import Counters, Histogram, Recent
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.support.clock import Clock
from mrecordlog_async.support.forks import call_in_children

logger = logging.getLogger("mrecordlog_async")

T = TypeVar("T")

_Submitted = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any, BaseException | None], object]]

ENDED = "the log's directory was released while its event loop did not run; open the log again"

_TAKEN = object()
"""What a write's outcome is when the loop has it, or there is none."""

SLOW_SECONDS = 1.0
"""A job with more time than this in system calls is worth a line of the log. `Watch` writes it."""

TICK_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""Slow jobs are reported this often while they occur. One that hangs is reported again at ten times its age."""

NAMES = {
    "commit": "a commit",
    "settle": "a commit",
    "commit_mark": "the commit of a mark",
    "sync": "a sync",
    "prepare_spare": "preparing the next segment",
    "roll": "a roll to the next segment",
    "reclaim": "removing segments",
    "shrink": "freeing the space of a removed segment",
}
"""Names of the jobs of the log's thread."""


class Job(NamedTuple):
    """A job of the thread. begun: on `perf_counter`. stood_still_before: see `ThreadProgress.stood_still_seconds`.

    seconds: the time of its system calls, once it has ended.
    """

    work: Callable[..., object]
    begun: float
    stood_still_before: float = 0.0
    seconds: float = 0.0


class ThreadProgress:
    """Current work of the thread, for the event loop to read.

    Attributes:
        job: The job under way, which the thread sets.
        slow: The jobs that have ended with more than `SLOW_SECONDS` in system calls. The thread appends to it.
        call_begun: When the system call under way began; 0 without one. `timed` sets it.
        called_seconds: Time of the system calls of this job that have returned.
        stood_still_seconds: How long the event loop could not run, in all; the loop sets it. If something keeps the
            interpreter busy, neither thread can run, and a system call that has returned looks as if it had not.
    """

    __slots__ = ("call_begun", "called_seconds", "job", "slow", "stood_still_seconds")

    def __init__(self) -> None:
        self.job: Job | None = None
        self.slow: list[Job] = []
        self.call_begun = 0.0
        self.called_seconds = 0.0
        self.stood_still_seconds = 0.0

    def begin(self, work: Callable[..., object], *, with_call: bool = False) -> None:
        """Note that a job begins. with_call: it is one system call, from now on."""
        begun = perf_counter()
        self.called_seconds, self.call_begun = 0.0, begun if with_call else 0.0
        self.job = tuple.__new__(Job, (work, begun, self.stood_still_seconds, 0.0))

    def end(self) -> None:
        """Note that the job has ended."""
        job, self.job = self.job, None
        if job is not None and self.called_seconds > SLOW_SECONDS:
            self.slow.append(job._replace(seconds=self.called_seconds))

    def disk_seconds(self, now: float) -> float:
        """Return how long the job under way has spent in system calls, the one under way included; 0 without a job."""
        job, begun = self.job, self.call_begun
        if job is None:
            return 0.0
        return self.without_standstill(job, self.called_seconds + (now - begun if begun else 0.0))

    def without_standstill(self, job: Job, seconds: float) -> float:
        """Return what is left of *seconds* in system calls without those in which the event loop could not run."""
        return max(seconds - (self.stood_still_seconds - job.stood_still_before), 0.0)


class WritingJobs(Protocol):
    """The queue of a thread that also makes prepared writes, while it waits for a job, without the interpreter."""

    def put(self, job: _Submitted | None, /) -> None:
        """Add a job."""

    def get(self) -> _Submitted | None:
        """Return the next job, and make the writes that come until there is one."""

    def get_nowait(self) -> _Submitted | None:
        """Return a job that nobody will do; raise `queue.Empty` without one."""

    def is_idle(self) -> bool:
        """Return whether the thread waits, no job is there, and no write is under way."""

    def write(self, file: int, lock: int, blocks: memoryview, offset: int, /) -> bool:
        """Have the thread make a write; False if it is not idle."""

    def result(self) -> tuple[bool, int, float]:
        """Return whether the last write was begun, the bytes taken or a negative errno, and the seconds it took.

        Asked again, it was not begun.
        """

    def fileno(self) -> int:
        """Return the bell, which is readable after each write and after `ring`, until `has_rung` is called."""

    def ring(self) -> None:
        """Ring the bell."""

    def has_rung(self) -> bool:
        """Return whether the bell has rung since the last call."""

    def close(self) -> None:
        """Close the bell: nothing rings any more."""


class _Write:
    """The prepared write under way, whose result is noted before anything else touches the files.

    Who comes first notes it, under the lock: the loop, when it hears the bell, or the thread, before its next job. So
    no roll, no sync and no close sees a journal that does not know what is on the disk. Otherwise a close while the
    loop stands still would state an end before the last batch, and the log would not open again.
    """

    def __init__(self, jobs: WritingJobs, progress: ThreadProgress) -> None:
        self.outcome: Any = _TAKEN  # of the last write, until the loop takes it
        self._jobs = jobs
        self._progress = progress
        self._lock = threading.Lock()
        self._settle: Callable[[Written], object] | None = None
        self._length = 0

    def begin(self, prepare: Callable[[], PreparedWrite | None], settle: Callable[[Written], object]) -> bool:
        """Begin what *prepare* returns, unless that is nothing or the thread has something to do."""
        with self._lock:  # a job that comes meanwhile waits for it in `settle`
            if not self._jobs.is_idle() or (write := prepare()) is None:
                return False
            self._settle, self._length = settle, len(write.blocks)
            if not self._jobs.write(*write):
                self._settle = None
                return False
            self._progress.begin(settle, with_call=True)
        return True

    def settle(self) -> None:
        """Note what became of the write, unless that was done."""
        with self._lock:
            try:
                settle, self._settle = self._settle, None  # first: nothing may be noted twice
                if settle is None:
                    return
                is_begun, taken, seconds = self._jobs.result()
                self._progress.called_seconds = seconds
                try:
                    self.outcome = settle(Written(is_begun and taken == self._length, -min(taken, 0), seconds))
                finally:
                    self._progress.call_begun = 0.0
                    self._progress.end()
            except BaseException as error:  # a bug, or no memory: the log stops, and its thread does its job
                self.outcome = error


class _Bell:
    """The loop's callback for a thread that has made a write, or has ended.

    It refers to the log only while a write is under way. Otherwise the loop would keep a log that nobody closed.
    """

    __slots__ = ("__weakref__", "_ended", "_jobs", "_loop", "report")

    def __init__(self, jobs: WritingJobs, loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
        """Watch the bell of *jobs*; NotImplementedError if the loop watches no descriptors."""
        self.report: Callable[[], object] | None = None
        self._jobs: WritingJobs | None = jobs
        self._loop = loop
        self._ended = ended
        loop.add_reader(jobs, self._ring)

    def _ring(self) -> None:
        jobs, report = self._jobs, None
        try:
            if jobs is None or not jobs.has_rung():
                return
            if self._ended.is_set():
                self._loop.remove_reader(jobs)  # before its descriptor is closed
                jobs.close()
                self._jobs = None
            report = self.report
            if report is not None:
                report()
                if self.report is report:  # and not that of the next write, which it may have begun
                    self.report = None
        except BaseException:
            # An interrupt came before the report was made, or while it was: the loop hears the bell again. A report
            # that was made does nothing then.
            if jobs is not None and self.report is not None and report in (None, self.report):
                jobs.ring()
            raise


class LogThread(Executor):
    """One thread. It does not keep the process alive: a job that is cut off at exit was not acknowledged.

    Calls `on_job` on the loop for every job that is submitted. A job submitted after the end fails: LogClosedError.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, writes: bool = False) -> None:
        """Start the thread. writes: it makes prepared writes too, where the queue for that was compiled."""
        self.progress = ThreadProgress()
        self.on_job: Callable[[], object] = _nothing
        self.loop = loop
        self._ended = threading.Event()  # nothing takes jobs any more
        self._ending: Future[None] | None = None
        self._ending_begins = threading.Lock()
        self._jobs: SimpleQueue[_Submitted | None] | WritingJobs = SimpleQueue()
        self._write: _Write | None = None
        self._bell: Callable[[], _Bell | None] = _nothing  # the loop has it: a loop that is closed keeps no log
        _threads.add(self)
        with contextlib.suppress(OSError, NotImplementedError):  # no descriptor; a loop that watches none
            if writes and new_jobs is not None:
                jobs: WritingJobs = new_jobs()
                self._bell = weakref.ref(_Bell(jobs, loop, self._ended))
                self._jobs, self._write = jobs, _Write(jobs, self.progress)
        target = (self._jobs, self.progress, self._write, self._ended)
        self._thread = threading.Thread(target=_work_off, args=target, name="mrecordlog", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # no thread left in the system: nothing will ring the bell
            if not isinstance(self._jobs, SimpleQueue):
                loop.remove_reader(self._jobs)
                self._jobs.close()
            raise

    def hand_over(
        self, report: Callable[[Any, BaseException | None], object], work: Callable[..., object], *arguments: object
    ) -> None:
        """Run *work* on the thread, then *report* on the loop with its result and its error, one of them None.

        *report* is not called if the loop is closed by then.
        """

        def tell(result: object, error: BaseException | None) -> None:
            self.loop.call_soon_threadsafe(report, result, error)

        self._put((work, arguments, tell))

    def write(
        self,
        prepare: Callable[[], PreparedWrite | None],
        settle: Callable[[Written], object],
        report: Callable[[Any], object],
    ) -> bool:
        """Make the write that *prepare* returns, without the interpreter; *report* on the loop what *settle* returns.

        *settle* gets what became of it before anything else runs on the thread, and returns its own error, if there is
        one. False if nothing was begun: *prepare* returned None, the thread has a job, or it makes no writes.
        """
        write, bell = self._write, self._bell()
        if write is None or bell is None or not write.begin(prepare, settle):
            return False
        bell.report = partial(_settled, write, report)
        self.on_job()
        return True

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run *fn* on the thread, as any Executor does."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def report(result: T, error: BaseException | None) -> None:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        work = (lambda: fn(*args, **kwargs)) if kwargs else fn
        self._put((work, () if kwargs else args, report))
        return future

    def _put(self, job: _Submitted) -> None:
        self._jobs.put(job)
        if self._ended.is_set():  # after the put: either the thread refuses it or this does
            _refuse_all(self._jobs)
        self.on_job()

    def end(self, last: Callable[[], None]) -> tuple[Future[None], bool]:
        """Run *last* after the jobs submitted so far, and end. May be called by any thread, and again.

        Returns:
            The future of *last*, and whether this was the first call.
        """
        with self._ending_begins:
            if self._ending is not None:
                return self._ending, False
            self._ending = self.submit(partial(_do_last, last, self._ended))
            return self._ending, True

    def forget(self) -> None:
        """In a forked child, which has no such thread: close its copy of the bell."""
        if not isinstance(self._jobs, SimpleQueue):
            self._jobs.close()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the jobs submitted so far."""
        self._jobs.put(None)
        if wait:
            self._thread.join()


_threads: weakref.WeakSet[LogThread] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for thread in list(_threads):
        thread.forget()


call_in_children(_forget_after_fork)


def _nothing() -> None:
    pass


def _settled(write: _Write, report: Callable[[Any], object]) -> None:
    try:
        write.settle()
        outcome, write.outcome = write.outcome, _TAKEN
    except BaseException as error:  # an interrupt: the caller must not wait for ever
        outcome = error
    if outcome is not _TAKEN:
        report(outcome)


def _work_off(
    jobs: SimpleQueue[_Submitted | None] | WritingJobs,
    progress: ThreadProgress,
    write: _Write | None,
    ended: threading.Event,
) -> None:
    while not ended.is_set() and (submitted := jobs.get()) is not None:
        work, arguments, report = submitted
        result, error = None, None
        try:  # a lack of memory, even for the notes about the job, must not end the thread: callers would hang
            if write is not None:
                write.settle()
            progress.begin(work)
            result = work(*arguments)
        except BaseException as caught:
            error = caught
        progress.end()
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so nothing waits
            report(result, error)
        # An error's traceback or a batch of megabytes must not be kept until the next job.
        del submitted, work, arguments, report, result, error
    ended.set()
    _refuse_all(jobs)
    if not isinstance(jobs, SimpleQueue):
        jobs.ring()  # the loop forgets the bell


def _do_last(last: Callable[[], None], ended: threading.Event) -> None:
    """Do *last*, and nothing after it: a job that another thread submits at this moment would find the files closed."""
    try:
        last()
    finally:
        ended.set()


def _refuse_all(jobs: SimpleQueue[_Submitted | None] | WritingJobs) -> None:
    """Fail the jobs that came after the end. Their callers would wait for ever."""
    with contextlib.suppress(Empty):
        while True:
            if (submitted := jobs.get_nowait()) is not None:
                _, _, report = submitted
                with contextlib.suppress(RuntimeError):  # the event loop is closed, so nothing waits
                    report(None, LogClosedError(ENDED))


def timed(files: FileSystem, progress: ThreadProgress) -> FileSystem:
    """Return *files* with calls that note their time in *progress*. Only the log's thread may call them.

    What is said of the disk (that it hangs, that it is slow) is said of this time alone. The rest of a job of the log's
    thread is Python: it waits for the interpreter, or makes the table of the next segment, and no disk is to blame.
    """
    names = (name for name, method in vars(FileSystem).items() if not name.startswith("_") and callable(method))
    return cast(FileSystem, SimpleNamespace(**{name: _timed_call(files, progress, name) for name in names}))


def _timed_call(files: FileSystem, progress: ThreadProgress, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        begun = progress.call_begun = perf_counter()
        try:
            return getattr(files, name)(*arguments, **options)
        finally:
            # The sum first: the loop may look in between, and must not see a time that goes back.
            progress.called_seconds += perf_counter() - begun
            progress.call_begun = 0.0

    return call


class Watch:
    """Watches the thread of one log. Everything here runs on the event loop.

    One timer ticks while the log works, about once per second, and stops when it is idle. So a disk that hangs is
    reported while it hangs, by the loop, which does not hang with it. A batch pays for none of this but the times of
    its calls.

    The disk is blamed only for time inside system calls. Where something keeps the interpreter busy, such as a
    collection of a large heap, no thread can run, and a call that has returned looks as if it had not: then this timer
    is late too, and by so much less was the disk slow.
    """

    def __init__(
        self,
        progress: ThreadProgress,
        refusals: Refusals,
        counters: Counters,
        directory: str,
        waiting: Callable[[], int],
        clock: Clock,
    ) -> None:
        """Watch the thread that reports its *progress*; *waiting* counts the records that wait."""
        self._clock = clock.seconds
        self._loop = asyncio.get_running_loop()
        self._progress = progress
        self._refusals = refusals
        self._recent = Recent(counters, self._clock())
        self._directory = directory
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next tick is, on the clock's seconds
        self._stopped = False
        self._reported = 0.0  # when the job began that was last reported as hanging
        self._report_at = SLOW_SECONDS  # the age at which a job is reported although another was just now
        self._quiet_until = 0.0
        refusals.on_begin = self.arm
        progress.slow.clear()  # reading the log took as long as it took

    def arm(self) -> None:
        """Tick from now on, until nothing happens any more."""
        if self._timer is None and not self._stopped:
            self._tick_after(TICK_SECONDS)

    def stop(self) -> None:
        """Stop ticking for good."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def under_way_seconds(self) -> float:
        """Return how long the job under way has been in system calls so far; 0 without one."""
        return self._progress.disk_seconds(self._clock())

    def recent(self) -> dict[str, Histogram]:
        """Return the histograms of the last minute."""
        return self._recent.histograms(self._clock())

    def _tick(self) -> None:
        self._timer = None
        now = self._clock()
        self._progress.stood_still_seconds += max(now - self._due, 0.0)
        self._report_slow(now)
        self._report_hanging(now)
        age = self.under_way_seconds()
        # All of them, as each does its work.
        busy = [self._progress.job is not None, self._recent.keep(now), self._refusals.check()]
        if any(busy) and not self._stopped:
            # A job is reported when it becomes slow, not up to a tick later.
            self._tick_after(
                min(max(SLOW_SECONDS - age, 0.01), TICK_SECONDS) if 0 < age < SLOW_SECONDS else TICK_SECONDS
            )

    def _tick_after(self, seconds: float) -> None:
        self._due = self._clock() + seconds
        self._timer = self._loop.call_later(seconds, self._tick)

    def _report_hanging(self, now: float) -> None:
        job, age = self._progress.job, self._progress.disk_seconds(now)
        if job is None or age < SLOW_SECONDS or (now < self._quiet_until and age < self._report_at):
            return
        self._reported, self._report_at, self._quiet_until = job.begun, age * 10, now + QUIET_SECONDS
        facts = {"event": "hanging", "directory": self._directory, "seconds": round(age, 3)}
        logger.warning(
            "%s: the disk does not respond: %s has been under way for %.1f s (records waiting: %d); look at the disk "
            "and at the kernel's log",
            self._directory,
            name_of(job.work),
            age,
            self._waiting(),
            extra={"facts": facts},
        )

    def _report_slow(self, now: float) -> None:
        ended, self._progress.slow = self._progress.slow, []
        hung = any(job.begun == self._reported for job in ended)
        slow = [job._replace(seconds=self._progress.without_standstill(job, job.seconds)) for job in ended]
        longest = max(slow, key=lambda each: each.seconds, default=None)
        if longest is None or (not hung and (now < self._quiet_until or longest.seconds <= SLOW_SECONDS)):
            return
        self._report_at, self._quiet_until = SLOW_SECONDS * 10, now + QUIET_SECONDS
        facts = {"event": "slow", "directory": self._directory, "seconds": round(longest.seconds, 3)}
        logger.warning(
            "%s: the disk is slow: %s took %.1f s%s; if it stays slow, the next report comes in %.0f s",
            self._directory,
            name_of(longest.work),
            longest.seconds,
            "; it responds again" if hung else "",
            QUIET_SECONDS,
            extra={"facts": facts},
        )


def name_of(work: object) -> str:
    """Return what an operator calls this job of the log's thread."""
    name = getattr(getattr(work, "func", work), "__name__", "")
    return NAMES.get(name, "work of the log's thread")
