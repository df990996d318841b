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
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from mrecordlog_async.engine.commit.open import OpenedLog
from mrecordlog_async.engine.commit.thread import LogThread, Watch
from mrecordlog_async.engine.commit.upkeep import LogParts
from mrecordlog_async.engine.commit.writer import Writer
from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.intake.capacity import Capacity
from mrecordlog_async.engine.intake.commands import ELSEWHERE
from mrecordlog_async.engine.intake.controls import FenceHolders, Sync
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.engine.open_async import announce_release, release
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.engine.readers.acknowledgements import Acknowledgements
from mrecordlog_async.engine.readers.age_clock import AgeClock
from mrecordlog_async.engine.readers.expiry import Expiry
from mrecordlog_async.engine.readers.subscribers import Changes
from mrecordlog_async.engine.readers.tail import QueueWatch
from mrecordlog_async.engine.spilling.disk_reads import DiskReads
from mrecordlog_async.engine.spilling.set_aside import SetAside
from mrecordlog_async.engine.spilling.spill import Spill
from mrecordlog_async.errors import LogClosedError, LogFailedError
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.reads import QueueLookup
from mrecordlog_async.metrics import Counters
from mrecordlog_async.model import LogState
from mrecordlog_async.names import check_name, check_new_name
from mrecordlog_async.options import Limits, PersistPolicy
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.end_note import ClockDoubt, EndNote
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.support.clock import Clock, system
from mrecordlog_async.support.forks import call_in_children

logger = logging.getLogger("mrecordlog_async")

DRAINING = "{} is being drained and stores no more records; append again once the log was closed and opened"
_CLOSED_WHILE_WAITING = "the log was closed while this call was waiting for space"
_CLOSED_WHILE_ACKNOWLEDGING = "the log was closed before the consumer acknowledged the record"
_FORKED = "the log belongs to the process that opened it, not to its forked child"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an open log: how it stores, its limits, and what it does by itself.

    any_name: create queues and consumers of every name, even one that no other log would create, as copies of a log do.
    files: for the threads that gather segments and read them; None for those of the log's thread, in tests.
    """

    policy: PersistPolicy
    limits: Limits
    on_failure: Callable[[LogFailedError], object] | None = None
    retention: bool = False
    any_name: bool = False
    clock: Clock = field(default_factory=system)
    files: FileSystem | None = None


class Engine:
    """Owns the writer's task, the log's thread and the open files. Everything here runs on one event loop."""

    def __init__(self, opened: OpenedLog, thread: LogThread, options: EngineOptions) -> None:
        """Start the writer."""
        limits, self.options = options.limits, options
        self.opened = opened
        self.directory = opened.directory.path
        self.queues = opened.queues
        self.queues.last_batch = opened.journal.end.last_batch
        self.thread = thread
        self.counters = Counters()
        self.failed_error: LogFailedError | None = None
        self.doubt = opened.doubt
        self.ended = asyncio.Event()  # the log failed or was closed
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._closed = False
        self._foreign = False  # True in a forked child: the log belongs to the parent
        self._states_end = True
        self.lookup = QueueLookup(
            self.queues, check_name if options.any_name else partial(check_new_name, bytes_max=limits.name_bytes)
        )
        self.changes = Changes(self._loop, self.queues, Acknowledgements(self._loop, self.queues))
        place = LogDirectory(options.files or opened.directory.files, self.directory)
        self.disk_reads = DiskReads(place, self.queues, self.counters, opened.journal.space, limits)
        self.spill: Spill | None = None
        capacity = Capacity(limits, opened.queues, opened.journal.space.batch_bytes_max)
        self._refusals = Refusals(self.counters, self.directory, self._loop.time)
        self.admission = Admission(limits, capacity, self._refusals)
        if limits.beyond_memory == "disk":
            self.spill = Spill(place, self.queues, opened.journal.space, self.admission)
            capacity.make_room = self.spill.make_room
        # After a power cut under a weaker policy, acknowledgements and records that were read may be missing: holders
        # from before, which only the clients of a service can be, must attach again.
        is_certain = opened.was_closed or options.policy.syncs_each_batch
        self.epochs_from = 0 if is_certain else opened.queues.next_queue_id
        self._start_writer()
        self.fence = self._fence_holders()
        self._watch_and_expire()
        _engines.add(self)
        self._unclosed = weakref.finalize(self, _give_back_unclosed, opened, thread, self.disk_reads.close)
        self._unclosed.atexit = False

    def _start_writer(self) -> None:
        journal, ids_from = self.opened.journal, self.opened.ids_from
        aside = SetAside(self.queues, self.admission, self.disk_reads)
        # A log whose records are all in memory, and stay there, pays nothing for those that leave it.
        all_in_memory = self.spill is None and not self.queues.pins.gathered
        applied = self.changes.applied if all_in_memory else self._applied
        parts = LogParts(journal, self.queues, self.admission, self.counters, self.thread, applied, aside)
        self.writer = Writer(parts, self.options.policy, self._on_failed, self.epochs_from, ids_from)
        self._writer_task = self._loop.create_task(self.writer.run(), name="mrecordlog writer")
        self._writer_task.add_done_callback(self._on_writer_done)
        if self.spill is not None:
            self.spill.begin_segment = self.writer.begin_segment

    def _applied(self, records: Sequence[LogRecord], moves: Sequence[ConsumerMove] = ()) -> None:
        """Wake those who wait for what a batch has changed; have records leave memory if that is due."""
        self.changes.applied(records, moves)
        if self.spill is not None:
            self.spill.look()
        if self.disk_reads.reader.has_files:
            self.disk_reads.forget_dead()

    def _fence_holders(self) -> asyncio.Future[object] | None:
        """Have the writer end the holders from before the open, if any are to end; return the future of that."""
        if not self.epochs_from or not self.queues.consumer_count:
            return None
        fence = self._loop.create_future()
        fence.add_done_callback(_is_done)  # it retrieves the error
        self.admission.add_control(FenceHolders(fence))
        return fence

    def _watch_and_expire(self) -> None:
        """Watch the thread, and begin to remove what is too old."""
        progress, clock = self.thread.progress, self.options.clock
        self.disk_watch = Watch(progress, self._refusals, self.counters, self.directory, self._count_waiting(), clock)
        self.thread.on_job = self.disk_watch.arm
        self.expiry: Expiry | None = None
        if self.options.retention:
            self.expiry = Expiry(
                self.queues,
                AgeClock(clock),
                self.counters,
                self.admission.add_control,
                self.opened.aging,
                self.disk_reads.times_of_place,
                self.doubt,
                self._on_doubt,
            )
            self.changes.on_aging = self.expiry.queue_configured
            self.expiry.start()

    # State.

    @property
    def state(self) -> LogState:
        """The log's current state."""
        if self._closed or self._foreign:
            return LogState.CLOSED
        if self.writer.failure is not None:
            return LogState.FAILED
        return LogState.CLOSING if self.is_closing() or self.admission.ended is not None else LogState.OPEN

    def failure(self) -> BaseException | None:
        """Return the error that stopped the log, or None."""
        return self.writer.failure

    def is_closing(self) -> bool:
        """Return whether the log is closed or about to be: then nothing is handed out any more."""
        return self.writer.closing or self._closed or self._foreign

    def check_running(self) -> None:
        """Raise the error of a log that failed or closes: no consumer will acknowledge anything any more."""
        if self.failed_error is not None:
            raise self.failed_error.copy()
        if self.is_closing():
            raise LogClosedError()

    def pending_records(self) -> int:
        """Return the number of records that wait to be stored. Counted here, so that appends pay nothing for it."""
        return self.writer.pending_records + self.admission.pending_records()

    def segments(self) -> range:
        """Return the numbers of the segments on the disk, oldest first. The last one is being written."""
        journal = self.opened.journal
        older, current = journal.space.complete[:1], journal.end.segment
        return range(older[0][0] if older else current, current + 1)

    def watch(
        self,
        queue_id: int,
        check: Callable[[Queue], None] | None = None,
        waits: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> QueueWatch:
        """Return a watch of one incarnation of a queue.

        *check* raises if its reader may not read it any more; *waits* is entered while the reader waits for records.
        """
        watch = QueueWatch(self.queues, queue_id, self.changes, self.is_closing, self.failure, self.disk_reads, check)
        watch.waits = waits
        return watch

    # The end.

    def keep_unclosed(self) -> None:
        """Leave a log that was not closed when it was opened unclosed."""
        self._states_end = self.opened.was_closed

    async def drain(self, queues: Collection[str] | None) -> None:
        """Refuse new appends, store the accepted ones durably, and have tails and consumers end after them.

        queues: those that end; None for all.
        """
        draining = self._draining if queues is None else None
        if draining is None:
            # Before appends are refused: it may be the one that fails.
            stored = self.admission.submit(Sync)
            if queues is None:
                self.admission.end(partial(LogClosedError, DRAINING.format("the log")))
            else:
                self.admission.end_queues(
                    {name: partial(LogClosedError, DRAINING.format(f"queue {name!r}")) for name in queues}
                )
            draining = self._loop.create_task(self._end_after(stored, queues), name="mrecordlog drain")
            if queues is None:
                self._draining = draining
        await asyncio.shield(draining)

    async def _end_after(self, stored: asyncio.Future[object], queues: Collection[str] | None) -> None:
        try:
            await stored
        finally:
            self.changes.end(queues)

    async def close(self) -> None:
        """Store what is pending, sync, and release the directory; cancelling stops the waiting, not the closing."""
        if self._foreign:
            return
        if not self._closed:
            if asyncio.get_running_loop() is not self._loop:
                raise LogClosedError(ELSEWHERE)
            if self._closing is None:
                announce_release(self.directory, self.thread)
                self._closing = self._loop.create_task(self._close(), name="mrecordlog close")
            await asyncio.shield(self._closing)
        failure = self.writer.failure
        if failure is not None and (in_doubt := self.writer.in_doubt()):
            raise LogFailedError(str(failure), "acknowledged", in_doubt) from failure

    async def _close(self) -> None:
        self._stop_expiry()
        self.admission.close()
        self.writer.closing = True
        self.writer.wake()
        self.changes.wake_all()
        self.changes.acknowledgements.end_all(LogClosedError(_CLOSED_WHILE_ACKNOWLEDGING))
        # Wait even if this task is cancelled, as all are when the loop ends: nothing here may overtake the writer.
        while not self._writer_task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._writer_task])
        await self._end_disk_reads()
        if self._writer_task.cancelled():  # the loop ended: `_on_writer_done` releases the directory
            return
        self._refusals.refuse(self.admission.take_all(), LogClosedError(_CLOSED_WHILE_WAITING))
        fenced = self.fence is None or _is_done(self.fence)
        healthy = self.writer.failure is None
        give_back = partial(self._give_back, healthy, fenced and self._states_end, self.queues.pins.oldest())
        ending = release(self.directory, self.thread, give_back)
        try:
            await asyncio.wrap_future(ending)  # a single job on the thread: cancelling the wait still releases the lock
            self._log_end()
        finally:
            self._forget()

    async def _end_disk_reads(self) -> None:
        """Wait for what spills and reads under way, and close its files. A cancelled task waits as well."""
        self.disk_reads.stop()
        if self.spill is not None:
            await self.spill.stop()
        if not self.disk_reads.has_threads and (self.spill is None or not self.spill.has_thread):
            return
        closing = self._loop.run_in_executor(None, self._close_disk_reads)
        while not closing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([closing])

    def _close_disk_reads(self) -> None:
        self.disk_reads.stop()
        self.disk_reads.close()
        if self.spill is not None:
            self.spill.close()

    def _give_back(self, healthy: bool, states_end: bool, oldest_segment: int | None) -> None:
        """Record where a healthy log ends, then release its files and its lock. Runs on the log's thread.

        The end must not be stated while holders from before a crash are not fenced off durably. Then a mark shows at
        least that the last batch was stored.
        """
        journal = self.opened.journal
        try:
            if healthy and states_end:
                if self.doubt != self.opened.doubt:
                    self.opened.directory.note_end(self._end_note())
                journal.write_closed(oldest_segment)
            elif healthy:
                journal.mark_end(oldest_segment)
                self.opened.directory.note_end(
                    replace(self.opened.noted, doubt=self.doubt)
                )  # the next opening reports that end, not this one
        finally:
            self.opened.close()

    def _on_writer_done(self, task: asyncio.Task[None]) -> None:
        """Wake all waiters; if the loop ended, release the directory after the thread's last job."""
        self.disk_watch.stop()
        self._stop_expiry()
        if task.cancelled():
            release(self.directory, self.thread, partial(_close_files, self.opened, self._close_disk_reads))
            self._forget()
        else:
            task.exception()  # marked as retrieved; `failure` holds it
        self.changes.wake_all()

    def _stop_expiry(self) -> None:
        if self.expiry is not None:
            self.expiry.stop()

    def _count_waiting(self) -> Callable[[], int]:
        """Return a function that counts the records that wait and does not keep this log from being collected."""
        found = weakref.ref(self)

        def count() -> int:
            engine = found()
            return 0 if engine is None else engine.pending_records()

        return count

    def _on_failed(self, error: LogFailedError) -> None:
        """Pass the failure on. Every caller has had its error by then."""
        self.failed_error = error
        self.changes.acknowledgements.end_all(error)
        self.opened.directory.note_end(self._end_note(error.cause), aside=True)
        self.ended.set()
        if self.options.on_failure is not None:
            try:
                self.options.on_failure(error)
            except Exception:
                logger.exception("on_failure of the log in %s raised", self.directory)

    def _on_doubt(self, doubt: ClockDoubt) -> None:
        """Have the next opening know what this one knows about the machine's clock."""
        self.doubt = doubt
        if self._closing is None:  # otherwise the log's thread notes it, before it gives the directory back
            self.opened.directory.note_end(self._end_note(), aside=True)

    def _end_note(self, failure: str = "") -> EndNote:
        return EndNote(self.opened.report.unclosed_ends, failure, self.doubt)

    def _log_end(self) -> None:
        counters = self.counters
        facts = {"event": "closed", "directory": self.directory, "records": counters.appended_records}
        logger.info(
            "%s: %s; %d records appended, %d truncated, %d commits",
            self.directory,
            "closed" if self.writer.failure is None else "closed after the failure",
            counters.appended_records,
            counters.truncated_records,
            counters.commits,
            extra={"facts": facts | {"clean": self.writer.failure is None}},
        )

    def _forget(self) -> None:
        """Note that the directory is released, or is about to be."""
        self._closed = True
        self.lookup.closed = LogClosedError
        self.ended.set()
        self._unclosed.detach()
        _engines.discard(self)

    def disown(self) -> None:
        """Close this forked child's copies of the descriptors. The lock and the files belong to the parent."""
        self._foreign = True
        self.lookup.closed = partial(LogClosedError, _FORKED)
        self._unclosed.detach()
        self.admission.stop(partial(LogClosedError, _FORKED))
        for handle in [*self.opened.handles(), *self.disk_reads.reader.handles()]:
            self.opened.directory.files.close(handle)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _is_done(future: asyncio.Future[object]) -> bool:
    """Return whether *future* has a result."""
    return future.done() and not future.cancelled() and future.exception() is None


def _close_files(opened: OpenedLog, close_disk_reads: Callable[[], None]) -> None:
    """Close the files of a log that was not closed, after the reads under way. Runs on the log's thread."""
    try:
        close_disk_reads()
    finally:
        opened.close()


def _give_back_unclosed(opened: OpenedLog, thread: LogThread, close_disk_reads: Callable[[], None]) -> None:
    """Release the directory of a log that was garbage collected without being closed."""
    thread.on_job = lambda: None  # the watch sets a timer of the loop, which may be closed, or run in another thread
    release(opened.directory.path, thread, partial(_close_files, opened, close_disk_reads))
    warnings.warn(f"the log in {opened.directory.path!r} was never closed", ResourceWarning, stacklevel=2)


def _disown_after_fork() -> None:
    for engine in list(_engines):
        engine.disown()
    _engines.clear()


call_in_children(_disown_after_fork)
