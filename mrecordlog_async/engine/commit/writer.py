"""The one writer: each batch is taken, planned, stored, applied and acknowledged, in this order, one at a time.

While one batch is being synced, the next one collects calls: that is group commit, without a timer or a delay. A batch
is plain functions on the event loop, with one hand-over to the log's thread in between:

| function | called by the loop | does |
|---|---|---|
| `_begin` | once calls wait or something is due | takes, plans, and hands the batch over |
| `_stored` | once the thread has the result | applies it to memory, then acknowledges the calls, in slices |
| `_maintain` | after each batch | hands over the steps of `Upkeep`, one after the other |

No await stands between them, so positions are assigned in arrival order. Memory changes after the sync, so a reader
sees nothing that a crash could take. What the disk refuses as a whole is stored in `Parts`, each in the same way. So is
a small batch, but for the hand-over: where the thread makes prepared writes, the loop encodes it.

Only one of these is under way (`_is_busy`): no step of upkeep and no other batch runs next to a batch. Whatever they
raise fails the log: no caller waits for ever. `Admission` says where the order of calls is decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter

from mrecordlog_async.engine.commit.batch import CommitRequest, CommitResult, LogIOError, Roll
from mrecordlog_async.engine.commit.disk_space import is_full
from mrecordlog_async.engine.commit.parts import Parts, joined
from mrecordlog_async.engine.commit.unsynced import UnsyncedChanges
from mrecordlog_async.engine.commit.upkeep import LogParts, Steps, Upkeep
from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command, count_appends, count_records
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.engine.planning.draft import Plan
from mrecordlog_async.engine.planning.plan import plan
from mrecordlog_async.errors import LogFailedError, LogFullError
from mrecordlog_async.memory.stored_times import tick_spans
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import TICKS_PER_SECOND
from mrecordlog_async.options import KIB, PersistPolicy
from mrecordlog_async.support.disk_errors import NoInodesError

logger = logging.getLogger("mrecordlog_async")

WORK_MAX = 1_000
"""A batch ends with the call with which the work of rules reaches this many log records: that takes the loop 10 ms."""

PREPARED_BYTES = 64 * KIB
"""The loop encodes batches that are charged up to this much, for a prepared write: that takes it 30 µs."""

CALLERS_PER_TURN = 128
"""Callers woken per event-loop iteration. With 10,000 in one iteration, nothing else ran for 11 to 19 ms."""

SPANS_MAX = 100
"""The times of the records that are acknowledged together are grouped into this many: a night has 288,000 of them."""


class Writer:
    """Owns the queues and the journal. Calls *on_failed* once if a write or sync fails.

    epochs_from, ids_from: see `planning.plan`.
    """

    def __init__(
        self,
        parts: LogParts,
        policy: PersistPolicy,
        on_failed: Callable[[LogFailedError], None],
        epochs_from: int = 0,
        ids_from: int = 0,
    ) -> None:
        self.closing = False
        self.failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._journal = parts.journal
        self._queues = parts.queues
        self._admission = parts.admission
        self._refusals = parts.admission.refusals
        self._counters = parts.counters
        self._thread = parts.thread
        self._on_applied = parts.on_applied
        self._set_aside = parts.set_aside
        self._policy = policy
        self._on_failed = on_failed
        parts.admission.wake = self.wake
        limits = parts.admission.limits
        self._plan = partial(plan, queues=parts.queues, limits=limits, epochs_from=epochs_from, ids_from=ids_from)
        self._upkeep = Upkeep(parts, policy.sync_interval_seconds)
        self._unsynced = UnsyncedChanges(parts.queues)
        self._is_busy = True  # something is under way; until `run`, that is all
        self._is_scheduled = False
        # The task waits for it. Cancelling the task cancels this at once, not when the task runs next.
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._in_flight: list[Command] = []
        self._since = 0.0  # when the oldest of these was made
        self._size = 0  # what they are charged
        self._parts: Parts | None = None  # of these, once the disk has refused them as a whole
        self._part: list[Command] = []  # the one that is being stored
        self._refusal: OSError | LogFullError | None = None  # of the last part
        self._batch = Plan()  # of the batch or part
        self._counting: asyncio.Task[None] | None = None

    # The turns.

    async def run(self) -> None:
        """Work until the log closes and nothing waits. `failure` keeps a failure; waiting and later calls raise it."""
        try:
            self._is_busy = False
            self.wake()
            await self._over
            if self.failure is not None and not isinstance(self.failure, Exception):
                raise self.failure  # an interrupt ends the program
        except asyncio.CancelledError:
            # The disk did not fail: acknowledged changes are as durable as the policy says, as after a kill.
            self._fail(RuntimeError("the event loop ended before the log was closed"), logging.INFO)
            raise
        finally:
            self._upkeep.stop()

    def wake(self) -> None:
        """Have the loop call `_begin`, once the callers of this turn have joined the batch."""
        if not (self._is_busy or self._is_scheduled):
            self._loop.call_soon(self._begin)
            self._is_scheduled = True  # last: there may be no memory for it

    def is_idle(self) -> bool:
        """Return whether nothing is under way, or about to be."""
        return not (self._is_busy or self._is_scheduled)

    def _begin(self) -> None:
        """Begin the next batch, or what is due without one."""
        self._is_scheduled = False
        if self._is_busy or self._over.done():
            return
        self._is_busy = True
        try:
            if self._admission.has_pending():
                self._begin_batch()
            elif self._upkeep.is_due() and not self.closing:
                self._maintain()
            else:
                self._rest()
        except BaseException as error:
            self._fail(error)

    def _maintain(self) -> None:
        self._take_step(self._upkeep.steps(), None, None)

    def _take_step(self, steps: Steps[None], result: object, error: BaseException | None) -> None:
        """Hand over the next of *steps*, which gets what came of the one before; after the last one, go on."""
        if self._over.done():
            return
        try:
            try:
                work = steps.send(result) if error is None else steps.throw(error)
            except StopIteration:
                self._rest()
            else:
                self._thread.hand_over(partial(self._take_step, steps), work)
        except BaseException as caught:
            self._fail(caught)

    def _rest(self) -> None:
        """Begin again if something waits; end once the log closes and nothing does."""
        self._is_busy = False
        self._upkeep.arm()
        if self._admission.has_pending() or (self._upkeep.is_due() and not self.closing):
            self.wake()
        elif self.closing and not self._set_aside:
            self._is_busy = True
            if self._journal.all_synced:
                self._over.set_result(None)
            else:
                self._thread.hand_over(self._last_synced, self._journal.sync)

    def _last_synced(self, seconds: float, error: BaseException | None) -> None:
        if self._over.done():
            return
        if error is not None:
            self._fail(error)
            return
        self._upkeep.count_sync(seconds)
        self._over.set_result(None)

    # One batch.

    def _begin_batch(self) -> None:
        commands = self._in_flight = self._admission.take()
        self._since = self._admission.waiting_since
        batch = self._plan(commands, work_max=WORK_MAX)
        if batch.calls < len(commands):
            self._admission.take_back(commands[batch.calls :], self._since)
            del commands[batch.calls :]
        self._size = sum(command.bytes for command in commands)
        self._store(batch, Roll.IF_FULL)

    def _store(self, batch: Plan, roll: Roll) -> None:
        """Hand *batch* over. `_stored` follows."""
        # The planned positions follow from the queues as they are now: nothing may run before the hand-over.
        self._batch = batch
        self._finish_at_once(batch)
        if batch.records:
            sync = self._policy.syncs_each_batch or batch.must_sync
            # As memory is now. Where this batch makes a segment dead, the next COMMIT says so.
            oldest = self._queues.pins.oldest()
            request = CommitRequest(batch.records, oldest, sync, batch.reserve, roll, batch.more_table_bytes)
            if not (sync and self._size <= PREPARED_BYTES and self._write(request)):
                self._thread.hand_over(self._stored, self._journal.commit, request)
        elif batch.must_sync and not self._journal.all_synced:
            self._thread.hand_over(self._synced, self._journal.sync)
        elif self._parts is None:
            self._stored(None, None)
        else:  # there may be a thousand such parts
            self._loop.call_soon(self._stored, None, None)

    def _write(self, request: CommitRequest) -> bool:
        """Have the log's thread make a prepared write of a small batch; False if it must be a job."""
        prepare, journal = partial(self._journal.prepare, request), self._journal
        return self._thread.write(prepare, journal.settle, partial(self._written, request))

    def _written(self, request: CommitRequest, outcome: object) -> None:
        """Finish what was written, or have the log's thread do it after all."""
        if self._over.done():
            return
        try:
            if outcome is None:
                self._thread.hand_over(self._stored, self._journal.commit, request)
                return
            assert isinstance(outcome, CommitResult | BaseException), "or what became of it"
        except BaseException as error:
            outcome = error
        if isinstance(outcome, BaseException):
            self._stored(None, outcome)
        else:
            self._stored(outcome, None)

    def _synced(self, seconds: float, error: BaseException | None) -> None:
        if error is None and not self._over.done():
            self._upkeep.count_sync(seconds)
        self._stored(None, error)

    def _stored(self, result: CommitResult | None, error: BaseException | None) -> None:
        """Apply what the thread has stored, and acknowledge it; store in parts what the disk refused."""
        if self._over.done():
            return  # the loop ends: the task was cancelled, and refuses what is in flight
        try:
            if isinstance(error, OSError | LogFullError):
                self._refused(error)
            elif error is not None:
                raise error
            elif result is not None and self._batch.removals and self._set_aside.counts_cuts():
                # Before anything of it is applied.
                self._counting = self._loop.create_task(self._set_aside.count_cuts(result.records))
                self._counting.add_done_callback(partial(self._counted, result))
            else:
                self._finish(result)
        except BaseException as caught:
            self._fail(caught)

    def _counted(self, result: CommitResult, counting: asyncio.Task[None]) -> None:
        self._counting = None
        if self._over.done():
            return
        try:
            counting.result()
            self._finish(result)
        except BaseException as caught:
            self._fail(caught)

    def _finish(self, result: CommitResult | None) -> None:
        """Apply what was stored to memory, then wake the callers: in this order, so that they can read it."""
        batch, dropped = self._batch, list[int]()
        if result is not None:
            self._upkeep.batch_stored(result, batch)
            dropped = self._apply(result, batch.moves)
        self._counters.duplicates += batch.duplicates_within
        if batch.makes_room:
            self._counters.dropped_records += sum(dropped[removal] for removal in batch.makes_room)
        self._take_turns(self._acknowledge(batch, dropped))

    def _take_turns(self, turns: Iterator[None]) -> None:
        """Wake the next slice of callers; after the last one, go on."""
        if self._over.done():
            return
        try:
            for _ in turns:
                self._loop.call_soon(self._take_turns, turns)
                return
            if self._parts is not None:
                self._next_part(self._parts)
            else:
                self._end_batch()
        except BaseException as caught:
            self._fail(caught)

    def _acknowledge(self, batch: Plan, dropped: list[int]) -> Iterator[None]:
        """Report the outcomes of *batch*.

        The loop gets a turn after every `CALLERS_PER_TURN` callers, and one more after the last of them: then all
        callers have run, and what they append next is one batch again.
        """
        finished = 0
        for command, value, error, dropped_by in batch.outcomes:
            if error is not None:
                self._refusals.refuse([command], error)
            elif type(command) is AppendGroup and len(command.futures) > CALLERS_PER_TURN:
                yield from command.acknowledge_in_parts(value, CALLERS_PER_TURN)
            else:
                command.acknowledge(value if dropped_by < 0 else dropped[dropped_by])
            finished += 1
            if finished % CALLERS_PER_TURN == 0:
                yield
        if finished > CALLERS_PER_TURN:
            yield

    def _end_batch(self) -> None:
        commands, self._in_flight = self._in_flight, []
        self._counters.append_seconds.observe(perf_counter() - self._since, count_appends(commands))
        self._admission.refund(self._size)
        if self._upkeep.may_be_due():
            self._maintain()
        else:
            self._rest()

    def _apply(self, result: CommitResult, moves: Sequence[ConsumerMove]) -> list[int]:
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

    def _finish_at_once(self, batch: Plan) -> None:
        """Report what rests on nothing that *batch* writes, and set aside what is to be compared with the disk."""
        for command, value, error, _ in batch.immediate:
            if error is None:
                command.acknowledge(value)
            else:
                self._refusals.refuse([command], error)
        for call in batch.on_disk:
            self._set_aside.add(call)
        self._counters.duplicates += batch.duplicates

    # A batch that the disk refused.

    def _refused(self, refusal: OSError | LogFullError) -> None:
        """Have the batch stored in parts and in order, as the space allows."""
        self._refusal, parts = refusal, self._parts
        if parts is None:
            self._counters.io_errors += isinstance(refusal, OSError)
            parts = self._parts = Parts(self._in_flight, in_line=self._admission.limits.on_full == "wait")
        else:
            command = parts.one()
            never = self._admission.capacity.never_fits
            error = never(command) if isinstance(command, AppendRecords | AppendGroup) else None
            parts.refused(for_ever=error is not None)
            if command is not None and error is not None:  # an empty log could not store it
                self._refuse([command], error)
        if not is_full(refusal):
            parts.give_up_appends()
        self._next_part(parts)

    def _next_part(self, parts: Parts) -> None:
        """Store the next part; what none of them could store is refused, or waits."""
        part = parts.next()
        parts.withdraw_given_up(self._is_repeat)
        self._part = part
        if part:
            # Planned on what the parts before it have stored. Without a roll for a full segment: the whole batch could
            # have rolled, and was refused.
            self._store(self._plan(part), Roll.IF_SHARED)
            return
        # From here on nothing is in flight: what was given up is not on the disk.
        self._parts = None
        self._upkeep.disk_refused()
        refusal, self._refusal = self._refusal, None
        assert refusal is not None, "that is why there are parts"
        if self._admission.limits.on_full != "wait" or not is_full(refusal):
            # Appends at fixed positions that wait for the next batch would leave a gap in the place of what fails here.
            behind = self._admission.take_behind(parts.behind)
            self._refuse(parts.given_up + behind, refusal)
            self._size += sum(command.bytes for command in behind)
        else:
            waiting = joined(command for command in parts.given_up if _may_wait(command))
            self._refuse([command for command in parts.given_up if not _may_wait(command)], refusal)
            if waiting:
                self._admission.park(waiting, self._since)
                self._upkeep.arm_retry()
            self._size -= sum(command.bytes for command in waiting)
        self._end_batch()

    def _is_repeat(self, command: Command) -> bool:
        """Acknowledge an append that repeats what is stored, which needs no space; return whether it was one."""
        if not isinstance(command, AppendRecords) or command.position is None:
            return False
        batch = self._plan([command])
        if not batch.duplicates and not batch.on_disk:
            return False
        self._finish_at_once(batch)
        return True

    def _refuse(self, commands: list[Command], refusal: Exception) -> None:
        """Refuse *commands*; nothing of them was written."""
        error = refusal
        if isinstance(refusal, OSError) and is_full(refusal):
            error = LogFullError("space", unit="inodes" if isinstance(refusal, NoInodesError) else "bytes")
            error.__cause__ = refusal
        if isinstance(error, LogFullError) and error.resource in ("disk", "space"):
            error = self._admission.capacity.disk_full(error)
        self._refusals.refuse(commands, error)

    # What others ask.

    @property
    def pending_records(self) -> int:
        """Number of records in the batch that is being stored."""
        return count_records(self._part or self._in_flight)

    def begin_segment(self) -> asyncio.Future[bool]:
        """See `Upkeep.begin_segment`."""
        return self._upkeep.begin_segment()

    def oldest_since(self) -> float | None:
        """Return since when the oldest unfinished call waits, on `perf_counter`; None if none does."""
        begun = [self._since] if self._in_flight else []
        waiting = self._admission.oldest_since()
        return min(begun if waiting is None else [*begun, waiting], default=None)

    def in_doubt(self) -> dict[str, int]:
        """Return, once the log has failed, the queues with unsynced, acknowledged changes; see `LogFailedError`."""
        return self._unsynced.by_name(self._journal.end)

    # Failing.

    def _fail(self, error: BaseException, level: int = logging.CRITICAL) -> None:
        """Stop for good. Whether the batch in flight, or its part, was stored is unknown; all other calls were not."""
        if self.failure is not None:
            return
        self.failure = error
        if not self._over.done():
            self._over.set_result(None)
        cause = str(error) if isinstance(error, LogIOError) else f"{type(error).__name__}: {error}"
        in_doubt = self.in_doubt()
        unknown = LogFailedError(cause, "unknown", in_doubt)
        never = LogFailedError(cause, "no", in_doubt)
        unknown.__cause__ = never.__cause__ = error
        self._admission.stop(never.copy)
        parts, self._parts = self._parts, None
        self._refuse(self._part if parts is not None else self._in_flight, unknown)
        self._refuse(self._in_flight, never)  # those of no part so far
        self._in_flight, self._part = [], []
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


def _may_wait(command: Command) -> bool:
    return isinstance(command, AppendRecords | AppendGroup) and not command.withdrawn()
