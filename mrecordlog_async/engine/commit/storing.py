"""One batch: planned, stored, applied to memory and acknowledged, in this order.

Nothing is awaited between plan and hand-over, so positions are assigned in arrival order. Memory changes after the
sync, so a reader sees nothing that a crash could take.

`BatchStore` stores it as a whole. What the disk refuses as a whole, `FullDisk` stores in parts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from mrecordlog_async.engine.commit.batch import CommitRequest, CommitResult, Roll
from mrecordlog_async.engine.commit.disk_space import is_full
from mrecordlog_async.engine.commit.unsynced import UnsyncedChanges
from mrecordlog_async.engine.commit.upkeep import LogParts, Upkeep
from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command, Reserve
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.engine.planning.draft import CommandOutcome, Plan
from mrecordlog_async.engine.planning.plan import plan
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.memory.stored_times import tick_spans
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import TICKS_PER_SECOND
from mrecordlog_async.options import PersistPolicy
from mrecordlog_async.support.disk_errors import NoInodesError

CALLERS_PER_TURN = 128
"""Callers woken per event-loop iteration. With 10,000 in one iteration, nothing else ran for 11 to 19 ms."""

SPANS_MAX = 100
"""The times of the records that are acknowledged together are grouped into this many: a night has 288,000 of them."""

TRIES_MAX = 64
"""Parts of one batch that are written, or refused, before its remaining appends are dropped."""


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
        self._upkeep.batch_stored(result, batch.reserve)
        return result

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
        queues, counters = self._queues, self._counters
        held = queues.memory_bytes
        records, payload_bytes, dropped = queues.apply_all(result.segment, result.records, result.tick)
        queues.last_batch = result.batch
        counters.appended_records += records
        counters.appended_bytes += payload_bytes
        counters.commit_records.observe(records or len(result.records))
        if dropped:
            counters.truncated_records += sum(dropped)
        if (left := queues.memory_bytes) < held:
            self._upkeep.freed_bytes += held - left
        if not self._journal.all_synced:  # only under a weaker policy
            self._unsynced.add(result.records, self._journal.end)
        # Last: who is woken reads what was just applied.
        self._on_applied(result.records, moves)
        return dropped

    def _count_visible(self, moves: Sequence[ConsumerMove], now: int) -> None:
        """Count how long the records that consumers acknowledge have been in the log. now: the tick of the batch."""
        for move in moves:
            queue = self._queues.by_id(move.queue_id)
            if queue is None or move.seeks:
                continue
            visible = self._counters.visible_to(move.consumer)
            for start, stop, tick in tick_spans(queue, move.before, move.position, SPANS_MAX):
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
            error = LogFullError("space", unit="inodes" if isinstance(refusal, NoInodesError) else "bytes")
            error.__cause__ = refusal
        if isinstance(error, LogFullError) and error.resource in ("disk", "space"):
            error = self._capacity.disk_full(error)
        self._refusals.refuse(commands, error)


class FullDisk:
    """Stores a batch that the disk refused in smaller and smaller parts, in order. Runs in the writer's task.

    1. A part that is refused is halved. A single append that is refused is dropped, and so is every append of the batch
       that is as large or larger: the disk is never asked for the same space twice.
    2. Truncates and deletes are never dropped because an append was refused. No call overtakes another: an append that
       names its position is dropped after an earlier one to the same queue was, or it would leave a gap in its place.
       `Admission` says where the order of calls is decided.
    3. After `TRIES_MAX` parts the remaining appends are dropped: a full disk must not keep the writer busy.

    What is dropped waits or fails.

    part: the commands that are being stored, while there are any; whether they are is unknown if the log fails.
    """

    def __init__(self, store: BatchStore, parts: LogParts, upkeep: Upkeep) -> None:
        self.part: list[Command] = []
        self._store = store
        self._admission = parts.admission
        self._counters = parts.counters
        self._upkeep = upkeep
        self._parts: Parts | None = None  # of the batch in flight

    async def store(self, commands: list[Command], refusal: OSError | LogFullError, since: float) -> int:
        """Store in parts and in order what the space allows; refuse the rest, or have it wait.

        Truncates and deletes are stored in the reserve.

        Args:
            commands: The batch.
            refusal: Why the disk refused the whole of it.
            since: When its oldest call was made.

        Returns:
            The charge of the commands that wait again. What the batch took from `Admission` besides counts negative.
        """
        self._counters.io_errors += isinstance(refusal, OSError)
        waits = self._admission.limits.on_full == "wait"
        parts = self._parts = Parts(commands, in_line=waits)
        if not is_full(refusal):
            parts.give_up_appends()
        # In order: each part is planned on what the parts before it have stored.
        while part := parts.next():
            parts.withdraw_given_up(self._is_repeat)
            self.part = part
            if (again := await self._store_part(part)) is not None:
                refusal = again
                self._note_refused(parts, refusal)
        parts.withdraw_given_up(self._is_repeat)
        # From here on nothing is in flight: what was given up is not on the disk.
        self._parts, self.part = None, []
        self._upkeep.disk_refused()
        given_up = parts.given_up
        if not waits or not is_full(refusal):
            # Appends at fixed positions that wait for the next batch would leave a gap in the place of what fails here.
            behind = self._admission.take_behind(parts.behind)
            self._store.refuse(given_up + behind, refusal)
            return -sum(command.bytes for command in behind)
        waiting = joined(command for command in given_up if _may_wait(command))
        self._store.refuse([command for command in given_up if not _may_wait(command)], refusal)
        if waiting:
            self._admission.park(waiting, since)
            self._upkeep.timers.arm_retry(self._upkeep.retry_parked)
        return sum(command.bytes for command in waiting)

    def not_written(self) -> list[Command]:
        """Return the commands of the batch in flight of which nothing is on the disk, but for those in `part`."""
        return self._parts.not_written() if self._parts is not None else []

    def give_up(self) -> None:
        """Forget the batch in flight: the log has failed."""
        self._parts, self.part = None, []

    async def _store_part(self, commands: list[Command]) -> OSError | LogFullError | None:
        """Store *commands* as one batch. Returns why the disk refused it, or None."""
        batch = self._store.plan(commands)
        self._store.finish_at_once(batch)
        if not batch.records and not batch.must_sync:
            self._store.finish_calls(batch.outcomes)
            return None
        try:
            # Without a roll for a full segment: the whole batch could have rolled, and was refused.
            result = await self._store.commit(batch, Roll.IF_SHARED)
        except (OSError, LogFullError) as refusal:
            return refusal
        await self._store.acknowledge(batch, result)
        return None

    def _is_repeat(self, command: Command) -> bool:
        """Acknowledge an append that repeats what is stored, which needs no space; return whether it was one."""
        if not isinstance(command, AppendRecords) or command.position is None:
            return False
        batch = self._store.plan([command])
        if not batch.duplicates and not batch.on_disk:
            return False
        self._store.finish_at_once(batch)
        return True

    def _note_refused(self, parts: Parts, refusal: OSError | LogFullError) -> None:
        """Have the refused part tried in halves. A call that an empty log could not store is refused for good."""
        command = parts.one()
        never = self._admission.capacity.never_fits
        error = never(command) if isinstance(command, AppendRecords | AppendGroup) else None
        parts.refused(for_ever=error is not None)
        if command is not None and error is not None:
            self._store.refuse([command], error)
        if not is_full(refusal):
            parts.give_up_appends()


class Parts:
    """Hands out parts of a batch, and collects in `given_up` what none of them could store. Pure.

    behind: the queues of the appends in `given_up`.
    in_line: appends wait for space in order, so all appends after the first one that is dropped are dropped too.
    """

    def __init__(self, commands: Iterable[Command], *, in_line: bool) -> None:
        self.given_up: list[Command] = []
        self._may_repeat: set[Command] = set()  # of `given_up`, those that were not checked yet
        self._changed: set[str | None] = set()  # the queues that calls before the next one change: these wait, too
        self._in_line = in_line
        self._todo = [list(_units(commands))]
        self._part: list[Command] = []
        self._tries = TRIES_MAX
        self._too_large = sys.maxsize
        self.behind: set[str] = set()

    def next(self) -> list[Command]:
        """Return the next part to try; an empty list once all of the batch was tried."""
        while self._todo:
            self._changed.clear()
            self._part = [command for command in self._todo.pop() if self._is_tried(command)]
            if self._part:
                self._tries -= 1
                return joined(self._part)
        return []

    def give_up_appends(self) -> None:
        """Try nothing more that needs space."""
        self._too_large = 0

    def refused(self, *, for_ever: bool = False) -> None:
        """Halve the last part, or drop it if it is a single command.

        After `TRIES_MAX` parts, a part of several commands is dropped except for its truncates and deletes.

        Args:
            for_ever: The part can never fit, whatever is removed from the disk.
        """
        part = self._part
        # Of commands that use the reserve, an attach can be refused where a truncate still fits: halved in any case.
        all_freeing = all(_uses_reserve(command) for command in part)
        if len(part) > 1 and (self._tries > 0 or all_freeing):
            middle = len(part) // 2
            self._todo += [part[middle:], part[:middle]]  # taken from the end: the first half comes first
            return
        self._changed.clear()
        freeing = [command for command in part if _uses_reserve(command)]
        tries_freeing = 0 < len(freeing) < len(part)
        if tries_freeing:
            self._todo.append(freeing)
        for command in part:
            if not _uses_reserve(command):
                self._give_up(command)
                self._too_large = 0 if self._in_line and not for_ever else min(self._too_large, command.bytes)
            elif tries_freeing:
                self._note_change(command)
            else:
                self._give_up(command)

    def withdraw_given_up(self, is_done: Callable[[Command], bool]) -> None:
        """Withdraw from `given_up`, before the next part is stored, what *is_done* by what the log has so far.

        An append that repeats a stored record is, unless a call before it that is still to be stored may delete this
        record. A later append of an equal record does not make it one.
        """
        self.given_up = [each for each in self.given_up if each not in self._may_repeat or not is_done(each)]
        self._may_repeat.clear()

    def not_written(self) -> list[Command]:
        """Return what was dropped or not tried yet: nothing of it is on the disk, whatever became of the last part."""
        return [*self.given_up, *(command for part in self._todo for command in part)]

    def one(self) -> Command | None:
        """Return the last part's command if it has exactly one."""
        return self._part[0] if len(self._part) == 1 else None

    def _is_tried(self, command: Command) -> bool:
        if command.withdrawn():
            return False
        if _uses_reserve(command):
            self._note_change(command)
            return True
        is_behind = isinstance(command, AppendRecords) and command.position is not None and command.queue in self.behind
        if is_behind or self._tries <= 0 or command.bytes >= self._too_large:
            self._give_up(command)
            return False
        return True

    def _note_change(self, command: Command) -> None:
        self._changed.add(getattr(command, "queue", None))  # a rule and a sync have none

    def _give_up(self, command: Command) -> None:
        self.given_up.append(command)
        if isinstance(command, AppendRecords):
            self.behind.add(command.queue)
            if command.queue not in self._changed:
                self._may_repeat.add(command)
        elif isinstance(command, AppendGroup):
            self.behind.update(command.queues)


def _uses_reserve(command: Command) -> bool:
    return command.reserve is not Reserve.NOTHING


def _may_wait(command: Command) -> bool:
    return isinstance(command, AppendRecords | AppendGroup) and not command.withdrawn()


def _units(commands: Iterable[Command]) -> Iterator[Command]:
    """Yield the commands whose callers still wait, each record of a group as its own group."""
    for command in commands:
        if command.withdrawn():
            continue
        if isinstance(command, AppendGroup):
            yield from command.each()
        else:
            yield command


def joined(units: Iterable[Command]) -> list[Command]:
    """Put neighbouring single records into one group again."""
    commands: list[Command] = []
    for unit in units:
        if isinstance(unit, AppendGroup):
            last = commands[-1] if commands else None
            if not isinstance(last, AppendGroup):
                commands.append(last := AppendGroup())
            last.add(unit)
        else:
            commands.append(unit)
    return commands
