"""One batch: planned, stored, applied to memory and acknowledged, in this order.

Nothing is awaited between plan and hand-over, so positions are assigned in arrival order. Memory changes after the
sync, so a reader sees nothing that a crash could take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from mrecordlog_async.engine.commit.batch import CommitRequest, CommitResult, Roll
from mrecordlog_async.engine.commit.disk_space import is_full
from mrecordlog_async.engine.commit.unsynced import UnsyncedChanges
from mrecordlog_async.engine.commit.upkeep import LogParts, Upkeep
from mrecordlog_async.engine.intake.commands import AppendGroup, Command, Reserve
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.engine.planning.draft import CommandOutcome, Plan
from mrecordlog_async.engine.planning.plan import plan
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.format.record import queue_ids
from mrecordlog_async.memory.times import NO_TICK, TICKS_PER_SECOND
from mrecordlog_async.options import PersistPolicy

CALLERS_PER_TURN = 128
"""Callers woken per event-loop iteration. With 10,000 in one iteration, nothing else ran for 11 to 19 ms."""

SPANS_MAX = 100
"""The times of the records that are acknowledged together are grouped into this many: a night has 288,000 of them."""


class BatchStore:
    """Stores batches, one at a time. The writer owns it, and `FullDisk` uses it for parts of a batch.

    plan: see `planning.plan`.
    """

    def __init__(
        self,
        parts: LogParts,
        upkeep: Upkeep,
        policy: PersistPolicy,
        unsynced: UnsyncedChanges,
        epochs_from: int = 0,
        ids_from: int = 0,
    ) -> None:
        limits = parts.admission.limits
        self.plan = partial(plan, queues=parts.queues, limits=limits, epochs_from=epochs_from, ids_from=ids_from)
        self._unsynced = unsynced
        self._journal = parts.journal
        self._queues = parts.queues
        self._counters = parts.counters
        self._refusals = parts.admission.refusals
        self._capacity = parts.admission.capacity
        self._thread = parts.thread
        self._on_applied = parts.on_applied
        self._upkeep = upkeep
        self._set_aside = parts.set_aside
        self._policy = policy
        self._loop = asyncio.get_running_loop()

    async def commit(self, batch: Plan, roll: Roll = Roll.IF_FULL) -> CommitResult | None:
        """Have the log's thread store *batch*. Returns None if it only had to be synced.

        Raises:
            OSError: The disk refused the batch. Nothing was written.
            LogFullError: The batch does not fit below the log's limit. Nothing was written.
        """
        if not batch.records:
            if not self._journal.all_synced:
                await self._upkeep.sync()
            return None
        sync = self._policy.syncs_each_batch or batch.must_sync
        # As memory is now. Where this batch makes a segment dead, the next COMMIT says so.
        oldest = self._queues.pins.oldest()
        request = CommitRequest(batch.records, oldest, sync, batch.reserve, roll, batch.more_table_bytes)
        result = await self._thread.call(self._journal.commit, request)
        assert result is not None, "only a batch that must never roll may be left"
        self.note(result, batch.reserve)
        return result

    def note(self, result: CommitResult, reserve: Reserve) -> None:
        """Note and count a stored batch, which could use *reserve*."""
        self._upkeep.timers.last_batch = self._loop.time()
        self._upkeep.state.batch_stored(reserve)
        self._upkeep.count(result)

    async def acknowledge(self, batch: Plan, result: CommitResult | None) -> None:
        """Apply what was stored to memory, then wake the callers: in this order, so that they can read their records.

        The loop gets a turn after every `CALLERS_PER_TURN` callers, and one more after the last of them: then all
        callers have run, and what they append next is one batch again.
        """
        finished = 0
        if result is not None and batch.removals:  # before anything of it is applied
            await self._set_aside.count_cuts(result.records)
        dropped = self.apply(result, batch.moves) if result is not None else []
        self._counters.duplicates += batch.duplicates_within
        self._counters.dropped_records += sum(dropped[removal] for removal in batch.makes_room)
        for command, value, error, dropped_by in batch.outcomes:
            if error is not None:
                self._refusals.refuse([command], error)
            elif type(command) is AppendGroup and len(command.futures) > CALLERS_PER_TURN:
                for _ in command.acknowledge_in_parts(value, CALLERS_PER_TURN):
                    await asyncio.sleep(0)
            else:
                command.acknowledge(value if dropped_by < 0 else dropped[dropped_by])
            finished += 1
            if finished % CALLERS_PER_TURN == 0:
                await asyncio.sleep(0)
        if finished > CALLERS_PER_TURN:
            await asyncio.sleep(0)

    def apply(self, result: CommitResult, moves: Sequence[ConsumerMove] = ()) -> list[int]:
        """Apply log records. Returns the number of records that each truncate and delete dropped."""
        if moves:  # first: the batch may also remove the records
            self._count_visible(moves, result.tick)
        held = self._queues.memory_bytes
        records, payload_bytes, dropped = self._queues.apply_all(result.segment, result.records, result.tick)
        self._queues.last_batch = result.batch
        self._upkeep.joining.arm()  # here: a roll also precedes a batch that the disk refuses, or the first one
        counters = self._counters
        counters.appended_records += records
        counters.appended_bytes += payload_bytes
        counters.truncated_records += sum(dropped)
        counters.commit_records.observe(records or len(result.records))
        self._upkeep.state.freed_bytes += max(held - self._queues.memory_bytes, 0)
        if not self._journal.all_synced:  # only under a weaker policy
            self._unsynced.add(result.records, self._journal.end)
        # Last: who is woken reads what was just applied.
        self._on_applied(queue_ids(result.records), moves)
        return dropped

    def _count_visible(self, moves: Sequence[ConsumerMove], now: int) -> None:
        """Count how long the records that consumers acknowledge have been in the log. now: the tick of the batch."""
        for move in moves:
            queue = self._queues.by_id(move.queue_id)
            if queue is None or move.seeks:
                continue
            visible = self._counters.visible_to(move.consumer)
            for start, stop, tick in queue.tick_spans(move.before, move.position, SPANS_MAX):
                if tick != NO_TICK:
                    records = queue.count(start, stop) if queue.has_gaps() else stop - start
                    visible.observe(max(now - tick, 0) / TICKS_PER_SECOND, records)

    def finish_at_once(self, batch: Plan) -> None:
        """Report what rests on nothing that *batch* writes, and set aside what is to be compared with the disk."""
        self.finish_calls(batch.immediate)
        for call in batch.on_disk:
            self._set_aside.add(call)
        self._counters.duplicates += batch.duplicates

    def finish_calls(self, outcomes: list[CommandOutcome]) -> None:
        """Report outcomes that wait for nothing."""
        for command, value, error, _ in outcomes:
            if error is None:
                command.acknowledge(value)
            else:
                self._refusals.refuse([command], error)

    def refuse(self, commands: list[Command], refusal: Exception) -> None:
        """Refuse *commands*; nothing of them was written."""
        error = refusal
        if isinstance(refusal, OSError) and is_full(refusal):
            error = LogFullError("space")
            error.__cause__ = refusal
        if isinstance(error, LogFullError) and error.resource in ("disk", "space"):
            error = self._capacity.disk_full(error)
        self._refusals.refuse(commands, error)
