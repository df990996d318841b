"""The writer's work between batches: the spare, dead segments, timed syncs, the idle mark, the process's heap.

None of it changes the outcome of a call, so all of it can wait. The writer has the log's thread take its steps, one at
a time, never while a batch is being stored. A `Timer` wakes the writer for what is due later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mrecordlog_async.engine.commit.batch import CommitRequest, CommitResult, Roll
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.commit.thread import LogThread
from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.planning.draft import Plan
from mrecordlog_async.engine.spilling.set_aside import SetAside
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.metrics import Counters
from mrecordlog_async.options import MIB
from mrecordlog_async.support.heap import trim_heap

logger = logging.getLogger("mrecordlog_async")

T = TypeVar("T")

Steps = Generator[Callable[[], Any], Any, T]
"""Jobs of the log's thread, each of which gets its result sent, or its error thrown."""

EARLY_ROLL_BYTES = 1 * MIB
"""A current segment without live records is replaced once it holds more than this, and more than four tables."""

MARK_SECONDS = 1.0
"""A log that was idle for this long writes a mark after its last batch, so that later damage to that batch is noticed.

It costs one more sync each time the log becomes idle.
"""

RETRY_SECONDS = 1.0
"""Appends that wait for disk space are tried again this often, and each time segments were removed."""

HEAP_BYTES_MIN = 32 * MIB
"""Freeing less than this is not worth the search through the heap (`trim_heap`)."""


@dataclass(frozen=True, slots=True)
class LogParts:
    """The parts of a log with which everything that stores batches works.

    on_applied: called with the log records of a batch, and what moved consumers, once memory has them.
    set_aside: see there.
    """

    journal: Journal
    queues: Queues
    admission: Admission
    counters: Counters
    thread: LogThread
    on_applied: Callable[..., None]
    set_aside: SetAside


class Timer:
    """Calls back once after a time. Arming it again while it runs does nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, seconds: float) -> None:
        """Call back after *seconds*, unless it runs."""
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._ring)

    def cancel(self) -> None:
        """Do not call back."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._callback()


class Upkeep:
    """Maintains the journal between batches, for the writer that owns it.

    Its flags are read and written on the event loop only:

    | flag | set by | cleared by |
    |---|---|---|
    | marked | an attempt to write the mark | a stored batch of calls |
    | spare_failed | lack of space for a spare | any stored batch; removed segments |
    | unlink_failed | a dead segment that could not be removed | any stored batch; a batch that the disk refused |
    | early_roll | a batch that the disk refused | an attempt to roll, or a segment that could not be removed |
    | short_of_space | a batch that the disk refused | a stored batch with appends |

    freed_bytes: freed in memory since the heap was last trimmed.
    """

    def __init__(self, parts: LogParts, sync_seconds: float | None) -> None:
        # The last batch has its mark, or no reserved space is left for one: either way, it is not tried again.
        self._marked = False
        # Do not ask a full disk for a spare after every batch; the next append asks again by itself.
        self._spare_failed = False
        # Do not try after every batch to remove what the system refused to remove.
        self._unlink_failed = False
        # Replace the current segment once nothing in it is live, however small it is: its space is needed.
        self._early_roll = False
        # Free the space of removed segments at once, not in steps: appends wait for it.
        self._short_of_space = False
        self.freed_bytes = 0
        self._only_appended = False  # the last batch
        self._journal = parts.journal
        self._queues = parts.queues
        self._admission = parts.admission
        self._counters = parts.counters
        self._loop = asyncio.get_running_loop()
        self._sync_seconds = sync_seconds
        self._mark_due = self._sync_due = False
        self._last_batch = self._loop.time()
        self._mark_timer = Timer(self._loop, self._on_mark)
        self._sync_timer = Timer(self._loop, self._on_sync)
        self._retry_timer = Timer(self._loop, self.retry_parked)
        self._new_segment: asyncio.Future[bool] | None = None  # somebody waits for it
        self._is_over = False

    def begin_segment(self) -> asyncio.Future[bool]:
        """Have the log continue in a new segment soon; return whether it does, or the disk has no space for one.

        The future is cancelled if the writer ends before that, or has ended.
        """
        if self._new_segment is None:
            self._new_segment = self._loop.create_future()
            self._admission.wake()
        if self._is_over:
            self._new_segment.cancel()
        return self._new_segment

    def is_due(self) -> bool:
        """Return whether there is something to do now, without a batch before it."""
        is_asked = self._new_segment is not None or bool(self._journal.space.unfreed)
        return is_asked or self._mark_due or self._sync_due

    def may_be_due(self) -> bool:
        """Return whether the last batch may have left something to do; False after most that only append."""
        is_usual = self._only_appended and not (
            self._journal.space.complete or self._early_roll or self._short_of_space
        )
        self._only_appended = False
        return not is_usual or self.freed_bytes >= HEAP_BYTES_MIN or self.is_due()

    def arm(self) -> None:
        """Set the timers for what is due later."""
        if self._wants_mark():
            self._mark_timer.arm(MARK_SECONDS)
        if self._sync_seconds is not None and not self._journal.all_synced:
            self._sync_timer.arm(self._sync_seconds)

    def arm_retry(self) -> None:
        """Have appends that wait for disk space tried again in a while."""
        self._retry_timer.arm(RETRY_SECONDS)

    def stop(self) -> None:
        """Do nothing later: the writer ends."""
        for timer in (self._mark_timer, self._sync_timer, self._retry_timer):
            timer.cancel()
        self._is_over = True
        if self._new_segment is not None:
            self._new_segment.cancel()

    def disk_refused(self) -> None:
        """Note that the disk had no space for a batch."""
        self._early_roll = self._short_of_space = True
        # The segments that could not be removed hold the space; without it, no batch may be storable.
        self._unlink_failed = False

    def batch_stored(self, result: CommitResult, batch: Plan) -> None:
        """Note and count a batch of calls. One that may have used the reserve does not prove that there is space."""
        self._last_batch = self._loop.time()
        self._marked = False
        self._only_appended = not (result.rolled or batch.removals or batch.more_table_bytes)
        if batch.reserve is Reserve.NOTHING:
            self._short_of_space = False
        self.count(result)

    def steps(self) -> Steps[None]:
        """Prepare the spare, reclaim dead segments, run the timed sync and the idle mark."""
        journal = self._journal
        if journal.space.wants_spare() and not self._spare_failed:
            yield from self._prepare_spare()
        if self._new_segment is not None:
            roll = partial(journal.space.with_room, journal.roll)
            is_begun = yield from self._if_space_allows(roll, self._queues.pins.oldest())
            waiter, self._new_segment = self._new_segment, None
            if not waiter.done():
                waiter.set_result(is_begun)
        if self._sync_due:
            self._sync_due = False
            if not journal.all_synced:
                self.count_sync((yield journal.sync))
        if journal.space.complete or self._early_roll or self._queues.pins.oldest() is None:
            yield from self._reclaim_segments()
        if journal.space.unfreed:
            yield partial(journal.dead.shrink, self._short_of_space)
        if worth_trimming(self.freed_bytes, self._queues.memory_bytes) and not self._admission.has_pending():
            self.freed_bytes = 0
            yield trim_heap
        if self._mark_due:
            self._mark_due = False
            if self._wants_mark():
                self._marked = True
                result = yield partial(journal.commit_mark, self._queues.pins.oldest())
                if result is not None:
                    self._apply_opening(result)
                    self._counters.syncs += 1
                    self._counters.sync_seconds.observe(result.sync_seconds)

    def _reclaim_segments(self) -> Steps[None]:
        """Replace a current segment without live records; remove older ones once their death is durable."""
        journal = self._journal
        oldest = self._queues.pins.oldest()
        left = False
        if oldest is None and self._is_worth_a_roll():
            yield from self._remove_dead_segments(oldest)
            # Segments that cannot be removed keep their space: another one would only add to it.
            if not journal.reclaimable():
                left = yield from self._if_space_allows(journal.start_small)
            self._early_roll = False  # tried once for each refusal, when nothing is live any more
        # If there is no space for the next segment, only naming the dead ones frees some: so this must not roll.
        if not left and self._must_name_oldest(oldest):
            request = CommitRequest([], oldest, sync=True, roll=Roll.IF_SHARED)
            yield from self._if_space_allows(journal.commit, request)
        yield from self._remove_dead_segments(oldest)

    def _remove_dead_segments(self, oldest: int | None) -> Steps[None]:
        """Remove the segments whose death is durable; *oldest*: the first one with anything live."""
        journal = self._journal
        if not journal.reclaimable() or self._unlink_failed:
            return
        # Where space is short, or nothing is live, the log is to be small: no dead segment is kept as the spare.
        recycle = not self._short_of_space and oldest is not None
        was_refused = journal.space.unremoved is not None
        removed = yield partial(journal.dead.reclaim, journal.durable_oldest, recycle)
        if not was_refused:
            self._note_unremoved()
        self._counters.segments_removed += removed
        if removed:
            logger.debug("removed %d segments", removed)
        self._unlink_failed = journal.reclaimable()
        self._spare_failed = False
        if self._short_of_space:
            yield partial(journal.dead.shrink, True)
        if removed and self._admission.waiting_for_space:
            self.retry_parked()

    def _note_unremoved(self) -> None:
        """If a dead segment could not be removed, warn that the disk will fill: appends continue until it is full."""
        if (error := self._journal.space.unremoved) is not None:
            self._counters.io_errors += 1
            logger.warning("segments that are no longer needed cannot be removed, and the disk fills: %s", error)

    def _must_name_oldest(self, oldest: int | None) -> bool:
        """Return whether an empty batch must say that older segments are dead, because no other batch is about to."""
        journal = self._journal
        # Where space is short, what waits is likely to be refused, and then names nothing.
        if not journal.space.complete or (self._admission.has_pending() and not self._short_of_space):
            return False
        return (journal.end.segment if oldest is None else oldest) > journal.durable_oldest

    def _is_worth_a_roll(self) -> bool:
        at = self._journal.end
        used = at.offset - at.table_end
        refused = self._early_roll and at.last_batch >= at.first_batch
        return refused or used > max(EARLY_ROLL_BYTES, 4 * self._queues.table_bytes)

    def _prepare_spare(self) -> Steps[None]:
        try:
            yield self._journal.space.prepare_spare
        except OSError:
            # The next append tries again, and is refused if there is still no space.
            self._spare_failed = True
            self._counters.io_errors += 1

    def _if_space_allows(self, work: Callable[..., Any], *arguments: object) -> Steps[bool]:
        """Do work that may also be done later, and return whether it was done. Lack of space is not a failure."""
        try:
            result = yield partial(work, *arguments)
        except (OSError, LogFullError) as refusal:
            self._counters.io_errors += isinstance(refusal, OSError)
            return False
        if isinstance(result, CommitResult):
            self._apply_opening(result)
            self.count(result)
        else:
            self._counters.rolls += 1
        return True

    def _apply_opening(self, result: CommitResult) -> None:
        """Apply a batch without calls: it holds OPENED if it is the first one since the log was opened."""
        if result.records:
            self._queues.apply_all(result.segment, result.records, result.tick)
            self._queues.last_batch = result.batch

    def count_sync(self, seconds: float) -> None:
        """Count a sync of every batch."""
        self._counters.syncs += 1
        self._counters.sync_seconds.observe(seconds)

    def count(self, result: CommitResult) -> None:
        """Count a stored batch. What failed for lack of space may be tried again after it."""
        counters = self._counters
        counters.commits += 1
        counters.written_bytes += result.written_bytes
        if result.rolled:
            counters.rolls += 1
            counters.roll_seconds.observe(result.seconds)
            logger.debug("rolled to segment %d in %.3f s", result.segment, result.seconds)
        counters.commit_seconds.observe(result.seconds)
        counters.commit_bytes.observe(result.written_bytes)
        if result.synced:
            counters.syncs += 1
            counters.sync_seconds.observe(result.sync_seconds)
        self._spare_failed = self._unlink_failed = False

    def _wants_mark(self) -> bool:
        """Return whether the last batch is durable and nothing after it says so yet."""
        journal = self._journal
        return not self._marked and journal.all_synced and journal.end.last_batch >= journal.end.first_batch

    def retry_parked(self) -> None:
        """Let appends that wait for disk space try again."""
        self._retry_timer.cancel()  # the calls are tried now
        self._admission.unpark()

    def _on_mark(self) -> None:
        # One timer serves all batches: while they keep coming it is set again, instead of once per batch.
        left = self._last_batch + MARK_SECONDS - self._loop.time()
        if left > 0:
            self._mark_timer.arm(left)
        else:
            self._mark_due = True
            self._admission.wake()

    def _on_sync(self) -> None:
        self._sync_due = True
        self._admission.wake()


def worth_trimming(freed_bytes: int, retained_bytes: int) -> bool:
    """Return whether enough was freed, relative to what is retained, to make trimming the heap worthwhile."""
    return freed_bytes >= max(HEAP_BYTES_MIN, retained_bytes // 4)
