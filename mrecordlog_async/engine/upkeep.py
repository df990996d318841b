"""What the writer does between batches: the spare, dead segments, timed syncs, the idle mark, the process's heap.

None of it changes what callers were told, so all of it can wait for the next time. It runs on the writer's task, one
step at a time, never while a batch is on its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiofiles.os import wrap

from mrecordlog_async.engine.admission import Admission
from mrecordlog_async.engine.commit import CommitRequest, CommitResult
from mrecordlog_async.engine.journal import Journal
from mrecordlog_async.engine.thread import LogThread
from mrecordlog_async.engine.timers import Timers
from mrecordlog_async.engine.trim_heap import trim_heap, worth_trimming
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.metrics import Counters
from mrecordlog_async.options import MIB

T = TypeVar("T")

EARLY_ROLL_BYTES = 1 * MIB
"""A segment in which nothing is live is left behind when it holds more than this, or four tables."""


@dataclass(slots=True)
class UpkeepState:
    """What upkeep remembers between batches. Read and written on the event loop only, by the writer's task.

    | flag | set by | cleared by |
    |---|---|---|
    | marked | a mark that was tried | a batch of callers |
    | spare_failed | no space for a spare | any batch, or segments that were removed |
    | unlink_failed | a dead segment that could not be removed | any batch |
    | early_roll | a batch that the disk refused | a roll that was tried |
    | short_of_space | a batch that the disk refused | a batch with appends that was stored |
    """

    # The last batch has its mark, or the reserved space had no room for one: either way, no more are tried.
    marked: bool = False
    # Do not ask a full disk for a spare in every round; the next append asks again by itself.
    spare_failed: bool = False
    # Do not try to unlink in every round what the system refused to.
    unlink_failed: bool = False
    # Leave the current segment as soon as nothing in it is live, however small it is: its space is wanted.
    early_roll: bool = False
    # Give the space of removed segments back at once, not in steps: somebody waits for it.
    short_of_space: bool = False
    # Freed in memory since the heap was last trimmed.
    freed_bytes: int = 0

    def disk_refused(self) -> None:
        """Note that there was no space for a batch."""
        self.early_roll = self.short_of_space = True

    def batch_stored(self, *, needs_space: bool) -> None:
        """Note a stored batch. One without appends or creates may have lived on the reserve: it proves no space."""
        self.marked = False
        if needs_space:
            self.short_of_space = False


class Upkeep:
    """Looks after the journal between batches, for the writer that owns it."""

    def __init__(
        self,
        journal: Journal,
        queues: Queues,
        admission: Admission,
        counters: Counters,
        thread: LogThread,
        timers: Timers,
    ) -> None:
        self.state = UpkeepState()
        self._journal = journal
        self._queues = queues
        self._admission = admission
        self._counters = counters
        self._thread = thread
        self._timers = timers

    async def maintain(self) -> None:
        """Prepare the spare, reclaim dead segments, run the timed sync and the idle mark."""
        journal = self._journal
        if journal.wants_spare() and not self.state.spare_failed:
            await self._prepare_spare()
        if self._timers.sync_due:
            self._timers.sync_due = False
            if not journal.all_synced:
                await self.sync()
        if journal.older or self.state.early_roll or self._queues.pins.oldest() is None:
            await self._reclaim_segments()
        if journal.has_unfreed():
            await self._on_log_thread(journal.shrink, self.state.short_of_space)
        if worth_trimming(self.state.freed_bytes, self._queues.memory_bytes) and not self._admission.has_pending():
            self.state.freed_bytes = 0
            await self._on_log_thread(trim_heap)
        if self._timers.mark_due:
            self._timers.mark_due = False
            if self.wants_mark():
                self.state.marked = True
                result = await self._on_log_thread(journal.commit_mark, self._queues.pins.oldest())
                if result is not None:
                    self._counters.syncs += 1
                    self._counters.sync_seconds.observe(result.sync_seconds)

    async def _reclaim_segments(self) -> None:
        """Leave a dead segment behind, and remove the segments that nothing needs once that is durable."""
        journal = self._journal
        oldest = self._queues.pins.oldest()
        left = False
        if oldest is None and self._is_worth_a_roll():
            left = await self._if_space_allows(journal.roll, None)
            self.state.early_roll = False  # tried once for each refusal, when nothing is live any more
        # Where the next segment finds no space, naming the dead ones is what gives some back: so without a roll.
        if not left and self._must_name_oldest(oldest):
            request = CommitRequest([], oldest, sync=True, needs_space=False, may_roll=False)
            await self._if_space_allows(journal.commit, request)
        if journal.reclaimable() and not self.state.unlink_failed:
            removed = await self._on_log_thread(journal.reclaim)
            self._counters.segments_removed += removed
            self.state.unlink_failed = journal.reclaimable()
            self.state.spare_failed = False
            if self.state.short_of_space:
                await self._on_log_thread(journal.shrink, True)
            if removed and self._admission.waiting_for_space:
                self.retry_parked()

    def _must_name_oldest(self, oldest: int | None) -> bool:
        """Whether an empty batch is needed to say that older segments are dead: no other one is waiting to."""
        journal = self._journal
        if not journal.older or self._admission.has_pending():
            return False
        return (journal.end.segment if oldest is None else oldest) > journal.durable_oldest

    def _is_worth_a_roll(self) -> bool:
        at = self._journal.end
        used = at.offset - at.table_end
        refused = self.state.early_roll and at.last_batch >= at.first_batch
        return refused or used > max(EARLY_ROLL_BYTES, 4 * self._queues.table_bytes)

    async def _prepare_spare(self) -> None:
        try:
            await self._on_log_thread(self._journal.prepare_spare)
        except OSError:
            # The next append tries again and is refused if there is still no room.
            self.state.spare_failed = True
            self._counters.io_errors += 1

    async def _if_space_allows(self, work: Callable[..., Any], *arguments: object) -> bool:
        """Do work that can also be done later; return whether it was done. Lack of space is not a failure."""
        try:
            result = await self._on_log_thread(work, *arguments)
        except (OSError, LogFullError):
            self._counters.io_errors += 1
            return False
        if isinstance(result, CommitResult):
            self.count(result)
        else:
            self._counters.rolls += 1
        return True

    async def sync(self) -> None:
        """Bring every batch to the medium, and time it."""
        seconds = await self._on_log_thread(self._journal.sync)
        self._counters.syncs += 1
        self._counters.sync_seconds.observe(seconds)

    def count(self, result: CommitResult) -> None:
        """Count a stored batch; what failed for want of space may be tried again after it."""
        counters = self._counters
        counters.commits += 1
        counters.written_bytes += result.written_bytes
        if result.rolled:
            counters.rolls += 1
            counters.roll_seconds.observe(result.seconds)
        counters.commit_seconds.observe(result.seconds)
        counters.commit_bytes.observe(result.written_bytes)
        if result.synced:
            counters.syncs += 1
            counters.sync_seconds.observe(result.sync_seconds)
        self.state.spare_failed = self.state.unlink_failed = False

    def wants_mark(self) -> bool:
        """Whether the last batch is durable and nothing behind it says so yet."""
        journal = self._journal
        return not self.state.marked and journal.all_synced and journal.end.last_batch >= journal.end.first_batch

    def retry_parked(self) -> None:
        """Let appends that wait for disk space try again."""
        self._timers.cancel_retry()
        self._admission.unpark()

    async def _on_log_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run *work* on the log's thread: what is not the commit, and so may take the longer way."""
        hop: Callable[..., Awaitable[T]] = wrap(work)
        return await hop(*arguments, executor=self._thread)
