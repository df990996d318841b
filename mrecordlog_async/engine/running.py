"""An open log: its parts, its state and its end, whichever way it ends.

| how it ends | what happens |
|---|---|
| `close` | the writer stores what waits and syncs; the log's thread writes CLOSED and releases the directory |
| the log failed, then `close` | nothing more is written; the log's thread releases the directory |
| the event loop ends | the writer's task is cancelled; the log's thread releases the directory after its last job |
| garbage collected | a ResourceWarning; the log's thread releases the directory after its last job |
| in a forked child | the child closes its copies of the descriptors; lock and files stay with the parent |
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from mrecordlog_async.engine.commit.open import OpenedLog
from mrecordlog_async.engine.commit.thread import LogThread
from mrecordlog_async.engine.commit.upkeep import LogParts
from mrecordlog_async.engine.commit.writer import Writer
from mrecordlog_async.engine.intake.admission import ELSEWHERE
from mrecordlog_async.engine.intake.appends import Appends
from mrecordlog_async.engine.intake.capacity import Capacity
from mrecordlog_async.engine.intake.commands import FenceHolders
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.engine.observed import Observation
from mrecordlog_async.engine.open_async import announce_release, release
from mrecordlog_async.engine.readers.age_clock import AgeClock
from mrecordlog_async.engine.readers.retention import Retention
from mrecordlog_async.engine.readers.subscribers import Changes
from mrecordlog_async.engine.readers.watch import Watch
from mrecordlog_async.errors import LogClosedError, LogFailedError, LogFullError, QueueNotFoundError
from mrecordlog_async.memory.searches import OldestPin
from mrecordlog_async.metrics import Counters, WorkerCounts
from mrecordlog_async.model import LogState, RecoveryReport
from mrecordlog_async.options import Limits, PersistPolicy
from mrecordlog_async.storage.locked_directory import EndNote

logger = logging.getLogger("mrecordlog_async")

_CLOSED_WHILE_WAITING = "the log was closed while this call was waiting for space"
_FORKED = "the log belongs to the process that opened it, not to its forked child"


class RunningLog:
    """Owns the writer's task, the log's thread and the open files. Everything here runs on one event loop."""

    def __init__(
        self,
        opened: OpenedLog,
        thread: LogThread,
        policy: PersistPolicy,
        limits: Limits,
        on_failure: Callable[[LogFailedError], object] | None = None,
        retention: bool = False,
    ) -> None:
        """Start the writer. Called by `MultiRecordLog.open`."""
        self.directory = opened.directory.path
        self.limits = limits
        self.persist_policy = policy
        self.recovery_report: RecoveryReport = opened.report
        self._opened = opened
        self._queues = opened.queues
        self._queues.last_batch = opened.journal.end.last_batch
        self._oldest_pin = OldestPin(opened.queues)
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self.workers = WorkerCounts()
        self._counters = Counters()
        capacity = Capacity(limits, opened.queues, opened.journal.disk_bytes_at_best)
        refusals = Refusals(self._counters, self.directory, self._loop.time)
        self._admission = Appends(limits, capacity, refusals)
        # Bound once: the common appends look up one name less.
        self._append_single = self._admission.append_single
        self._append_soon = self._admission.append_soon
        self._changes = Changes(self._loop)
        self._on_failure = on_failure
        self._failed_error: LogFailedError | None = None
        self._ended = asyncio.Event()  # the log failed or was closed
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._foreign = False  # True in a forked child: the log belongs to the parent
        # After a power cut under a weaker policy, acknowledgements and records that were read may be missing: holders
        # from before, which only the clients of a service can be, must attach again.
        self._epochs_from = 0 if opened.was_closed or policy.syncs_each_batch else opened.queues.next_queue_id
        parts = LogParts(opened.journal, opened.queues, self._admission, self._counters, thread, self._on_applied)
        self._writer = Writer(parts, policy, self._on_failed, self._epochs_from, opened.ids_from)
        self._writer_task = self._loop.create_task(self._writer.run(), name="mrecordlog writer")
        self._writer_task.add_done_callback(self._on_writer_done)
        self._states_end = True
        self._fence: asyncio.Future[object] | None = None
        if self._epochs_from and opened.queues.consumer_count:
            self._fence = self._loop.create_future()
            self._fence.add_done_callback(_is_done)  # it retrieves the error
            self._admission.add_control(FenceHolders(self._fence))
        self._observation = Observation(opened, self._counters, thread.progress, self._writer)
        self._disk_watch = Watch(thread.progress, refusals, self._counters, self.directory, self._count_waiting())
        thread.on_job = self._disk_watch.arm
        self._retention: Retention | None = None
        if retention:
            self._retention = Retention(
                opened.queues, AgeClock(), self._counters, self._admission.add_control, opened.aging
            )
            self._retention.start()
        _open_logs.add(self)
        self._unclosed = weakref.finalize(self, _give_back_unclosed, opened, thread)
        self._unclosed.atexit = False

    @property
    def state(self) -> LogState:
        """The log's current state."""
        if self._closed or self._foreign:
            return LogState.CLOSED
        if self._writer.failure is not None:
            return LogState.FAILED
        return LogState.CLOSING if self._is_closing() or self._admission.ended is not None else LogState.OPEN

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the log, or None."""
        return self._writer.failure

    async def failed(self) -> LogFailedError | None:
        """Wait until the log fails, and return why; None once it is closed without having failed.

        Await it in a task that ends the process, to have it started again: a failed log stores nothing more, and only
        opening it again recovers.
        """
        await self._ended.wait()
        return self._failed_error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory!r}, {self.state.value}, queues: {len(self._queues)}>"

    def refuse_for_memory(self) -> LogFullError:
        """Count an append that was refused for memory before the log saw it, such as a large body; return its error."""
        return self._admission.refuse_for_memory()

    def refuse_unknown_queue(self, queue: str) -> QueueNotFoundError:
        """Count an append that was refused, before the log saw its records, for lack of *queue*; return its error."""
        return self._admission.refusals.counted(QueueNotFoundError(queue))

    # The end.

    def keep_unclosed(self) -> None:
        """Leave a log that was not closed when it was opened unclosed, for tools that open the log of a service.

        Under a weak policy the service's next open must fence off the holders of consumers, as after any crash; which
        policy it has, only the service knows.
        """
        self._states_end = self._opened.was_closed

    async def close(self) -> None:
        """End tails, store what is pending, sync, and release the directory. A repeated call waits for the same close.

        Cancelling stops the waiting, not the closing.

        Raises:
            LogFailedError: Acknowledged changes could not be synced; `in_doubt` names their queues and positions.
                Raised after the directory is released, and only under policies weaker than `always()`.
                Under `always()` a failed log closes without an error: acknowledged changes are on the disk, and
                every other caller has had an error.
            LogClosedError: Called on another event loop than the log's.
        """
        if self._foreign:
            return
        if not self._closed:
            if asyncio.get_running_loop() is not self._loop:
                raise LogClosedError(ELSEWHERE)
            if self._closing is None:
                announce_release(self._opened.directory.path, self._thread)
                self._closing = self._loop.create_task(self._close(), name="mrecordlog close")
            await asyncio.shield(self._closing)
        failure = self._writer.failure
        if failure is not None and (in_doubt := self._writer.in_doubt()):
            raise LogFailedError(str(failure), "acknowledged", in_doubt) from failure

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except LogFailedError as failed:
            if error is None:
                raise
            error.add_note(f"closing the log: {failed}")

    async def _close(self) -> None:
        self._stop_retention()
        self._admission.close()
        self._writer.closing = True
        self._admission.wake()
        self._changes.wake_all()
        # Wait even if this task is cancelled, as all are when the loop ends: nothing here may overtake the writer.
        while not self._writer_task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._writer_task])
        if self._writer_task.cancelled():  # the loop ended: `_on_writer_done` releases the directory
            return
        self._admission.refusals.refuse(self._admission.take_all(), LogClosedError(_CLOSED_WHILE_WAITING))
        fenced = self._fence is None or _is_done(self._fence)
        healthy = self._writer.failure is None
        give_back = partial(self._give_back, healthy, fenced and self._states_end, self._queues.pins.oldest())
        ending = release(self._opened.directory.path, self._thread, give_back)
        try:
            await asyncio.wrap_future(ending)  # a single job on the thread: cancelling the wait still releases the lock
            self._log_end()
        finally:
            self._forget()

    def _give_back(self, healthy: bool, states_end: bool, oldest_segment: int | None) -> None:
        """Record where a healthy log ends, then release its files and its lock. Runs on the log's thread.

        The end must not be stated while holders from before a crash are not fenced off durably. Then a mark shows at
        least that the last batch was stored.
        """
        journal = self._opened.journal
        try:
            if healthy and states_end:
                journal.write_closed(oldest_segment)
            elif healthy:
                journal.mark_end(oldest_segment)
                self._opened.directory.note_end(self._opened.noted)  # the next opening reports that end, not this one
        finally:
            self._opened.close()

    def _on_writer_done(self, task: asyncio.Task[None]) -> None:
        """Wake all waiters; if the loop ended, release the directory after the thread's last job."""
        self._disk_watch.stop()
        self._stop_retention()
        if task.cancelled():
            release(self._opened.directory.path, self._thread, self._opened.close)
            self._forget()
        else:
            task.exception()  # marked as retrieved; `failure` holds it
        self._changes.wake_all()

    def _on_applied(self, queue_ids: Iterable[int]) -> None:
        """Wake who waits for these queues; have retention look if a `max_age` was given or taken away."""
        self._changes.wake(queue_ids)
        # The call that set it cannot do this, because it may have been cancelled.
        if self._retention is not None and (self._queues.newly_aging or self._queues.stopped_aging):
            self._retention.queue_configured()

    def _stop_retention(self) -> None:
        if self._retention is not None:
            self._retention.stop()

    def _count_waiting(self) -> Callable[[], int]:
        """Return a function that counts the records that wait and does not keep this log from being collected."""
        found = weakref.ref(self)

        def count() -> int:
            log = found()
            return 0 if log is None else log._writer.pending_records + log._admission.pending_records()

        return count

    def _on_failed(self, error: LogFailedError) -> None:
        """Pass the failure on. Every caller has had its error by then."""
        self._failed_error = error
        note = EndNote(self.recovery_report.unclosed_ends, error.cause)
        self._opened.directory.note_end(note, aside=True)
        self._observation.failed(error)
        self._ended.set()
        if self._on_failure is not None:
            try:
                self._on_failure(error)
            except Exception:
                logger.exception("on_failure of the log in %s raised", self.directory)

    def _log_end(self) -> None:
        self._writer.count_stored()
        counters = self._counters
        facts = {"event": "closed", "directory": self.directory, "records": counters.appended_records}
        logger.info(
            "%s: %s; %d records appended, %d truncated, %d commits",
            self.directory,
            "closed" if self._writer.failure is None else "closed after the failure",
            counters.appended_records,
            counters.truncated_records,
            counters.commits,
            extra={"facts": facts | {"clean": self._writer.failure is None}},
        )

    def _forget(self) -> None:
        """Note that the directory is released, or is about to be."""
        self._closed = True
        self._ended.set()
        self._observation.end()
        self._unclosed.detach()
        _open_logs.discard(self)

    def _check_not_closed(self) -> None:
        if self._closed or self._foreign:
            raise LogClosedError(_FORKED) if self._foreign else LogClosedError()

    def _is_closing(self) -> bool:
        return self._writer.closing or self._closed or self._foreign

    def _disown(self) -> None:
        """Close this forked child's copies of the descriptors. The lock and the files belong to the parent."""
        self._foreign = True
        self._unclosed.detach()
        self._admission.stop(partial(LogClosedError, _FORKED))
        for handle in self._opened.handles():
            self._opened.directory.files.close(handle)


_open_logs: weakref.WeakSet[RunningLog] = weakref.WeakSet()


def _is_done(future: asyncio.Future[object]) -> bool:
    """Return whether *future* has a result."""
    return future.done() and not future.cancelled() and future.exception() is None


def _give_back_unclosed(opened: OpenedLog, thread: LogThread) -> None:
    """Release the directory of a log that was garbage collected without being closed."""
    thread.on_job = lambda: None  # the watch sets a timer of the loop, which may be closed, or run in another thread
    release(opened.directory.path, thread, opened.close)
    warnings.warn(f"the log in {opened.directory.path!r} was never closed", ResourceWarning, stacklevel=2)


def _disown_after_fork() -> None:
    for log in list(_open_logs):
        log._disown()
    _open_logs.clear()


os.register_at_fork(after_in_child=_disown_after_fork)
