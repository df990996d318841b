"""The one writer: takes waiting calls, has the log's thread store them, applies and acknowledges them.

While one batch is being synced, the next one collects calls: that is group commit, without a timer or a delay. A batch
costs one hand-over to the log's thread and one result. `Upkeep` does what no batch needs to wait for.

Order within a batch: plan → write and sync → apply → acknowledge. Nothing is awaited between plan and hand-over, so
positions are assigned in arrival order. Memory changes after the sync, so a reader sees nothing that a crash could
take.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter

from mrecordlog_async.engine.commit.full_disk import Parts, joined
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.engine.commit.request import CommitRequest, CommitResult, LogIOError
from mrecordlog_async.engine.commit.straight import Straight
from mrecordlog_async.engine.commit.thread import LogThread
from mrecordlog_async.engine.commit.timers import Timers
from mrecordlog_async.engine.commit.unsynced import UnsyncedChanges
from mrecordlog_async.engine.commit.upkeep import Upkeep
from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.intake.capacity import Capacity
from mrecordlog_async.engine.intake.commands import Append, AppendGroup, Command, count_appends, count_records
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.engine.planning.draft import Outcome, Plan
from mrecordlog_async.engine.planning.plan import plan
from mrecordlog_async.errors import LogFailedError, LogFullError
from mrecordlog_async.format.record import queue_ids
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.metrics import Counters
from mrecordlog_async.options import Limits, PersistPolicy
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES

logger = logging.getLogger("mrecordlog_async")

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

CALLERS_PER_TURN = 128
"""Callers woken per event-loop iteration. With 10,000 in one iteration, nothing else ran for 11 to 19 ms."""

WORK_MAX = 1_000
"""A batch ends with the call with which the work of rules reaches this many log records: that takes the loop 10 ms."""


def _is_full(refusal: OSError | LogFullError) -> bool:
    """Return whether *refusal* is for lack of space, which truncates, deletes or other programs may free."""
    return isinstance(refusal, LogFullError) or refusal.errno in _OUT_OF_SPACE


def _may_wait(command: Command) -> bool:
    return isinstance(command, Append | AppendGroup) and not command.withdrawn()


class Writer:
    """One task that owns *queues* and the journal.

    Calls *on_applied* with the ids of the queues that a batch changed, and *on_failed* once if a write or sync fails.
    """

    def __init__(
        self,
        journal: Journal,
        queues: Queues,
        admission: Admission,
        capacity: Capacity,
        policy: PersistPolicy,
        limits: Limits,
        counters: Counters,
        thread: LogThread,
        refusals: Refusals,
        on_applied: Callable[[Iterable[int]], None],
        on_failed: Callable[[LogFailedError], None],
        epochs_from: int = 0,
        ids_from: int = 0,
    ) -> None:
        self.closing = False
        self._plan = partial(plan, queues=queues, limits=limits, epochs_from=epochs_from, ids_from=ids_from)
        self.failure: BaseException | None = None
        self._journal = journal
        self._queues = queues
        self._admission = admission
        self._capacity = capacity
        self._policy = policy
        self._limits = limits
        self._counters = counters
        self._thread = thread
        self._refusals = refusals
        self._on_applied = on_applied
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._in_flight: list[Command] = []
        self._since = 0.0  # when the oldest of these was made
        self._timers = Timers(self._loop, admission.wake)
        self._upkeep = Upkeep(journal, queues, admission, counters, thread, self._timers)
        self._unsynced = UnsyncedChanges(queues)
        self._parts: Parts | None = None  # of the batch in flight, if the disk refused the whole of it
        self._straight: Straight | None = None
        if policy.syncs_each_batch:
            self._straight = Straight(
                journal, queues, admission, counters, thread, self._timers, self._upkeep, on_applied
            )

    async def run(self) -> None:
        """Work until the log closes and nothing waits. `failure` keeps a failure; waiting and later calls raise it."""
        try:
            while await self._has_work():
                if self._admission.has_pending():
                    await self._commit_next_batch()
                await self._upkeep.maintain()
            if not self._journal.all_synced:
                await self._upkeep.sync()
        except GeneratorExit:  # the log was garbage collected, so no caller is left
            raise
        except asyncio.CancelledError:
            # The disk did not fail: acknowledged changes are as durable as the policy says, as after a kill.
            self._fail(RuntimeError("the event loop ended before the log was closed"), logging.INFO)
            raise
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.count_stored()
            self._timers.cancel()
            self._upkeep.joining.stop()

    # One batch.

    async def _commit_next_batch(self) -> None:
        commands = self._in_flight = self._admission.take()
        since = self._since = self._admission.waiting_since
        batch = self._plan(commands, work_max=WORK_MAX)
        if batch.calls < len(commands):
            self._admission.take_back(commands[batch.calls :], since)
            del commands[batch.calls :]
        size = sum(command.bytes for command in commands)
        # No await from here to the hand-over: the planned positions follow from the queues as they are now.
        self._finish_at_once(batch)
        if batch.records or batch.must_sync:
            size -= await self._store(batch, commands)
            self._counters.append_seconds.observe(perf_counter() - since, count_appends(commands))
        else:
            self._finish_calls(batch.outcomes)
        self._in_flight = []
        self._admission.refund(size)

    async def _store(self, batch: Plan, commands: list[Command]) -> int:
        """Write *batch*, apply it and acknowledge its calls. Returns the charge of commands that wait again."""
        try:
            result = await self._commit(batch)
        except (OSError, LogFullError) as refusal:
            return await self._store_without_space(commands, refusal)
        await self._acknowledge(batch, result)
        return 0

    async def _store_without_space(self, commands: list[Command], refusal: OSError | LogFullError) -> int:
        """Store in parts and in order what the space allows; refuse the rest, or have it wait.

        Truncates and deletes are stored in the reserve.
        """
        self._counters.io_errors += isinstance(refusal, OSError)
        waits = self._limits.on_full == "wait"
        parts = Parts(commands, in_line=waits)
        if not _is_full(refusal):
            parts.give_up_appends()
        self._parts = parts
        while part := parts.next():
            parts.withdraw_given_up(self._is_repeat)
            self._in_flight = part
            if (again := await self._store_part(part)) is not None:
                refusal = again
                self._note_refused(parts, refusal)
        parts.withdraw_given_up(self._is_repeat)
        self._parts = None
        self._upkeep.state.disk_refused()
        given_up = parts.given_up
        if not waits or not _is_full(refusal):
            behind = self._admission.take_behind(parts.behind)
            self._refuse(given_up + behind, refusal)
            return -sum(command.bytes for command in behind)
        waiting = joined(command for command in given_up if _may_wait(command))
        self._refuse([command for command in given_up if not _may_wait(command)], refusal)
        if waiting:
            self._admission.park(waiting, self._since)
            self._timers.arm_retry(self._upkeep.retry_parked)
        return sum(command.bytes for command in waiting)

    async def _store_part(self, commands: list[Command]) -> OSError | LogFullError | None:
        """Store *commands* as one batch. Returns why the disk refused it, or None."""
        batch = self._plan(commands)
        self._finish_at_once(batch)
        if not batch.records and not batch.must_sync:
            self._finish_calls(batch.outcomes)
            return None
        try:
            result = await self._commit(batch, may_roll=False)
        except (OSError, LogFullError) as refusal:
            return refusal
        await self._acknowledge(batch, result)
        return None

    def _is_repeat(self, command: Command) -> bool:
        """Acknowledge an append that repeats what is stored, which needs no space; return whether it was one."""
        if not isinstance(command, Append) or command.position is None:
            return False
        batch = self._plan([command])
        if not batch.duplicates:
            return False
        self._finish_at_once(batch)
        return True

    def _note_refused(self, parts: Parts, refusal: OSError | LogFullError) -> None:
        """Have the refused part tried in halves. A call that an empty log could not store is refused for good."""
        command = parts.one()
        error = self._capacity.never_fits(command) if isinstance(command, Append | AppendGroup) else None
        parts.refused(for_ever=error is not None)
        if command is not None and error is not None:
            self._refuse([command], error)
        if not _is_full(refusal):
            parts.give_up_appends()

    async def _commit(self, batch: Plan, may_roll: bool = True) -> CommitResult | None:
        """Have the log's thread store *batch*. Returns None if it only had to be synced."""
        journal = self._journal
        if not batch.records:
            if not journal.all_synced:
                await self._upkeep.sync()
            return None
        sync = self._policy.syncs_each_batch or batch.must_sync
        oldest = self._queues.pins.oldest()
        result = await self._thread.call(
            journal.commit,
            CommitRequest(
                batch.records,
                oldest,
                sync,
                batch.needs_space,
                may_roll,
                batch.more_table_bytes,
                RESERVE_BYTES // 2 if batch.attaches else 0,
            ),
        )
        self._timers.last_batch = self._loop.time()
        self._upkeep.state.batch_stored(needs_space=batch.needs_space)
        self._upkeep.count(result)
        return result

    async def _acknowledge(self, batch: Plan, result: CommitResult | None) -> None:
        """Apply what was stored to memory, then wake the callers: in this order, so that they can read their records.

        The loop gets a turn after every `CALLERS_PER_TURN` callers, and one more after the last of them: then all
        callers have run, and what they append next is one batch again.
        """
        finished = 0
        dropped = self._apply(result) if result is not None else []
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

    def _apply(self, result: CommitResult) -> list[int]:
        """Apply log records. Returns the number of records that each truncate and delete dropped."""
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
        if not self._journal.all_synced:
            self._unsynced.add(result.records, self._journal.end)
        self._on_applied(queue_ids(result.records))
        return dropped

    @property
    def pending_records(self) -> int:
        """Number of records in the batch that is being stored."""
        return count_records(self._all_in_flight())

    def observe_commits(self, observe: Callable[[CommitResult], object]) -> None:
        """Call *observe* after every batch that was stored."""
        self._upkeep.on_commit = observe

    def count_stored(self) -> None:
        """Bring the counters up to date: the straight path counts a batch a little later."""
        if self._straight is not None:
            self._straight.count()

    def oldest_since(self) -> float | None:
        """Return since when the oldest unfinished call waits, on `perf_counter`; None if none does."""
        begun = [self._since] if self._in_flight else []
        if self._straight is not None and self._straight.group is not None:
            begun.append(self._straight.since)
        waiting = self._admission.oldest_since()
        return min(begun if waiting is None else [*begun, waiting], default=None)

    def _all_in_flight(self) -> list[Command]:
        straight = self._straight.group if self._straight is not None else None
        return self._in_flight if straight is None else [straight]  # they take turns

    def in_doubt(self) -> dict[str, int]:
        """Return, once the log has failed, the queues with unsynced, acknowledged changes; see `LogFailedError`."""
        return self._unsynced.by_name(self._journal.end)

    def _finish_at_once(self, batch: Plan) -> None:
        """Report what rests on nothing that *batch* writes."""
        self._finish_calls(batch.immediate)
        self._counters.duplicates += batch.duplicates

    def _finish_calls(self, outcomes: list[Outcome]) -> None:
        for command, value, error, _ in outcomes:
            if error is None:
                command.acknowledge(value)
            else:
                self._refusals.refuse([command], error)

    def _refuse(self, commands: list[Command], refusal: Exception) -> None:
        """Refuse *commands*; nothing of them was written."""
        error = refusal
        if isinstance(refusal, OSError) and refusal.errno in _OUT_OF_SPACE:
            error = LogFullError("space")
            error.__cause__ = refusal
        self._refusals.refuse(commands, error)

    # Sleeping and waking.

    async def _has_work(self) -> bool:
        """Sleep until there is work. Returns False once the log closes and nothing waits."""
        self._arm_timers()
        while not (self._admission.has_pending() or self._timers.mark_due or self._timers.sync_due):
            if self.closing:
                return False
            if self._journal.has_unfreed() or self._queues.settling.has_sparse():
                break
            await self._admission.wait()
        return True

    def _arm_timers(self) -> None:
        if self._upkeep.wants_mark():
            self._timers.arm_mark()
        seconds = self._policy.sync_interval_seconds
        if seconds is not None and not self._journal.all_synced:
            self._timers.arm_sync(seconds)

    # Failing.

    def _fail(self, error: BaseException, level: int = logging.CRITICAL) -> None:
        """Stop for good. Whether the batch in flight, or its part, was stored is unknown; all other calls were not."""
        self.failure = error
        cause = str(error) if isinstance(error, LogIOError) else f"{type(error).__name__}: {error}"
        in_doubt = self.in_doubt()
        unknown = LogFailedError(cause, "unknown", in_doubt)
        never = LogFailedError(cause, "no", in_doubt)
        unknown.__cause__ = never.__cause__ = error
        self._admission.stop(never.copy)
        self._refuse(self._all_in_flight(), unknown)
        self._in_flight = []
        if self._parts is not None:
            self._refuse(self._parts.not_written(), never)
        if self._straight is not None:
            self._straight.give_up()
        self._refuse(list(self._admission.take_all()), never)
        self._admission.update()
        self._counters.io_errors += isinstance(error, OSError | LogIOError)
        self._report(level, error, cause, in_doubt)
        if level == logging.CRITICAL:
            self._on_failed(LogFailedError(cause, "no", in_doubt))

    def _report(self, level: int, error: BaseException, cause: str, in_doubt: dict[str, int]) -> None:
        """Log the failure once. Callers see it when they call; the operator must see it now."""
        lost = LogFailedError(cause, "acknowledged", in_doubt) if in_doubt else f"the log failed ({cause})"
        facts = {"event": "failed", "directory": self._journal.directory.path, "cause": cause, "in_doubt": in_doubt}
        logger.log(
            level,
            "%s: %s; reads still work, changes are refused: check the disk, close the log and open it again",
            self._journal.directory.path,
            lost,
            exc_info=None if isinstance(error, LogIOError) else error,
            extra={"facts": facts},
        )
