"""The one writer: takes waiting calls, has the log's thread store them, applies and acknowledges them.

While one batch is being synced, the next one collects calls: that is group commit, without a timer or a delay. A batch
costs one hand-over to the log's thread and one result. `Upkeep` does what no batch needs to wait for.

Which way a batch takes is decided here and nowhere else:

| the batch | is stored by |
|---|---|
| of few callers for one queue without options, that fits into a block | `SmallBatches` |
| any other | `BatchStore` |
| that the disk refused as a whole | `FullDisk`, in parts |

`SmallBatches` is the first case. It looks at what waits while the writer sleeps, and wakes it unless all of that holds.
The bytes on the disk are the same. `Admission` says where the order of calls is decided. Everything here runs on the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter

from mrecordlog_async.engine.commit.batch import CommitResult, EncodedBatch, LogIOError
from mrecordlog_async.engine.commit.storing import BatchStore, FullDisk
from mrecordlog_async.engine.commit.unsynced import UnsyncedChanges
from mrecordlog_async.engine.commit.upkeep import LogParts, Upkeep
from mrecordlog_async.engine.intake.commands import AppendGroup, Command, Reserve, count_appends, count_records
from mrecordlog_async.errors import LogFailedError, LogFullError
from mrecordlog_async.format.frame import FRAME_HEADER_BYTES
from mrecordlog_async.format.record import APPEND_BYTES, COMMIT_BYTES, Append
from mrecordlog_async.format.stored_options import PLAIN
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Run
from mrecordlog_async.options import PersistPolicy

logger = logging.getLogger("mrecordlog_async")

WORK_MAX = 1_000
"""A batch ends with the call with which the work of rules reaches this many log records: that takes the loop 10 ms."""

CALLERS_MAX = 128
"""A group of more callers is the writer's, which wakes them in several turns of the loop."""

BATCH_OVERHEAD_BYTES = APPEND_BYTES + OFFSET_BYTES + 2 * FRAME_HEADER_BYTES + COMMIT_BYTES
"""Bytes of a batch of one run, besides the payloads and an offset for each."""


class Writer:
    """One task that owns the queues and the journal. Calls *on_failed* once if a write or sync fails.

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
        self._journal = parts.journal
        self._queues = parts.queues
        self._admission = parts.admission
        self._counters = parts.counters
        self._policy = policy
        self._on_failed = on_failed
        self._set_aside = parts.set_aside
        self._in_flight: list[Command] = []
        self._since = 0.0  # when the oldest of these was made
        self._upkeep = Upkeep(parts)
        self._timers = self._upkeep.timers
        self._unsynced = UnsyncedChanges(parts.queues)
        self._store = BatchStore(parts, self._upkeep, policy, self._unsynced, epochs_from, ids_from)
        self._full_disk = FullDisk(self._store, parts, self._upkeep)
        # The weaker policies do without the first case: an append that does not wait for the disk gains nothing by it.
        self._small = SmallBatches(parts, self._upkeep, self._store) if policy.syncs_each_batch else None

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
            self._upkeep.stop()

    # One batch.

    async def _commit_next_batch(self) -> None:
        commands = self._in_flight = self._admission.take()
        since = self._since = self._admission.waiting_since
        batch = self._store.plan(commands, work_max=WORK_MAX)
        if batch.calls < len(commands):
            self._admission.take_back(commands[batch.calls :], since)
            del commands[batch.calls :]
        size = sum(command.bytes for command in commands)
        # No await from here to the hand-over: the planned positions follow from the queues as they are now.
        self._store.finish_at_once(batch)
        if not batch.records and not batch.must_sync:
            self._store.finish_calls(batch.outcomes)
        else:
            try:
                result = await self._store.commit(batch)
            except (OSError, LogFullError) as refusal:
                size -= await self._full_disk.store(commands, refusal, since)
            else:
                await self._store.acknowledge(batch, result)
        self._counters.append_seconds.observe(perf_counter() - since, count_appends(commands))
        self._in_flight = []
        self._admission.refund(size)

    @property
    def pending_records(self) -> int:
        """Number of records in the batch that is being stored."""
        return count_records(self._all_in_flight())

    def begin_segment(self) -> asyncio.Future[bool]:
        """See `Upkeep.begin_segment`."""
        return self._upkeep.begin_segment()

    def oldest_since(self) -> float | None:
        """Return since when the oldest unfinished call waits, on `perf_counter`; None if none does."""
        begun = [self._since] if self._in_flight else []
        if self._small is not None and self._small.group is not None:
            begun.append(self._small.since)
        waiting = self._admission.oldest_since()
        return min(begun if waiting is None else [*begun, waiting], default=None)

    def _all_in_flight(self) -> list[Command]:
        small = self._small.group if self._small is not None else None
        if small is not None:
            return [small]  # they take turns
        return self._full_disk.part or self._in_flight

    def in_doubt(self) -> dict[str, int]:
        """Return, once the log has failed, the queues with unsynced, acknowledged changes; see `LogFailedError`."""
        return self._unsynced.by_name(self._journal.end)

    # Sleeping and waking.

    async def _has_work(self) -> bool:
        """Sleep until there is work. Returns False once the log closes and nothing waits."""
        self._arm_timers()
        while not (self._admission.has_pending() or self._timers.mark_due or self._timers.sync_due):
            if self.closing and not self._set_aside:
                return False
            if self._journal.space.unfreed or self._upkeep.wants_segment():
                break
            if self._small is not None:
                self._small.until = self._journal.alone_until()
            await self._admission.sleep.wait()
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
        self._store.refuse(self._all_in_flight(), unknown)
        self._in_flight = []
        self._store.refuse(self._full_disk.not_written(), never)
        self._full_disk.give_up()
        if self._small is not None:
            self._small.give_up()
        self._store.refuse(list(self._admission.take_all()), never)
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


class SmallBatches:
    """The writer's first case: one group for one queue that fits into a block is stored by two plain functions.

    A caller that appends alone waits for Python as long as for the disk: for a plan, its outcomes, and two steps of a
    task. Here `begin` encodes the batch and hands it over, and `finish` applies and acknowledges it, without a turn of
    the writer's task. On tmpfs, one caller's call takes 0.76 of the CPU time that way as a job of the log's thread, and
    0.58 as a prepared write, which needs no interpreter. With ten callers it takes 0.65.

    It takes turns with the writer's task and never runs next to it: `begin` takes a group only while the task sleeps,
    and keeps it asleep until `finish` has applied the batch. Every other case is the task's, which is then woken:

    | what the task does | where it is found out |
    |---|---|
    | other commands, several queues, many records, no such queue, a queue with options | `_take` |
    | anything unsynced; a batch past the block, segment or reserved space; no spare | `Journal.alone_until` |
    | a segment that has become shared: nothing was written, and the group goes back | `Journal.commit_alone` |
    | upkeep: after its next batch, at the end of the block at the latest, or when the log is idle | `Timers` |

    The batch is a prepared write, if the log's thread makes these and has no job (`LogThread.write`). Otherwise, and if
    that write was not the plain case, it is a job (`Journal.commit_alone`).

    A failed write or sync is raised in the writer's task, so that the log fails in one place.

    group: in flight; since: when its oldest call was made. until: the offset up to which batches are the first case;
    the writer sets it before it sleeps, and while it sleeps nothing else changes it.
    """

    def __init__(self, parts: LogParts, upkeep: Upkeep, store: BatchStore) -> None:
        self.group: AppendGroup | None = None
        self.since = 0.0
        self.until = 0
        self._journal = parts.journal
        self._queues = parts.queues
        self._admission = parts.admission
        self._counters = parts.counters
        self._thread = parts.thread
        self._upkeep = upkeep
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._first_position = 0
        self._sleep = parts.admission.sleep
        self._sleep.begin_small = self.begin

    def begin(self) -> None:
        """Store the waiting group if it is the first case; otherwise wake the writer. `WriterSleep` schedules this."""
        if not (self._sleep.begins() and self._admission.has_pending()):
            return  # the writer is awake, and takes what waits
        try:
            taken = self._take()
        except BaseException as error:
            self._sleep.fail(error)
            return
        if not taken:
            self._sleep.wake()

    def _take(self) -> bool:
        """Hand the waiting group over to the log's thread. Returns False if that is for the writer to do."""
        admission = self._admission
        group, since = admission.only_group(CALLERS_MAX), admission.waiting_since
        name = group.one_queue() if group is not None else None
        queue = self._queues.get(name) if name is not None else None
        if group is None or queue is None or queue.options is not PLAIN:
            return False
        count = len(group.payloads)
        size = sum(map(len, group.payloads)) + OFFSET_BYTES * count + BATCH_OVERHEAD_BYTES
        if queue.next_position + count - 1 > POSITION_MAX or self._journal.end.offset + size > self.until:
            return False
        if not admission.take():
            return True  # its callers were cancelled
        # Held from here on: the writer sleeps until `finish`, as positions follow from the queues as they are now.
        self._sleep.held = True
        self.group, self.since, self._first_position = group, since, queue.next_position
        record = Append(queue.id, Run.of(queue.next_position, group.payloads))  # one run: it fits into a block
        oldest = self._queues.pins.oldest()
        self._write(self._journal.encode(record, oldest))
        return True

    def _write(self, batch: EncodedBatch) -> None:
        """Have the log's thread write *batch*, as a prepared write if that can be. `finish` follows."""
        journal = self._journal
        prepare, settle = partial(journal.prepare_alone, batch), partial(journal.settle_alone, batch)
        if not self._thread.write(prepare, settle, self._written):
            self._thread.hand_over(self.finish, journal.commit_alone, batch)

    def _written(self, outcome: object) -> None:
        """Finish what was written, or have the log's thread do it after all."""
        try:
            if type(outcome) is EncodedBatch:
                self._thread.hand_over(self.finish, self._journal.commit_alone, outcome)
                return
            assert isinstance(outcome, CommitResult | BaseException), "or what became of it"
        except BaseException as error:  # no memory: nothing else would wake the writer, or finish the group
            outcome = error
        if isinstance(outcome, BaseException):
            self.finish(None, outcome)
        else:
            self.finish(outcome, None)

    def finish(self, result: CommitResult | None, error: BaseException | None) -> None:
        """Apply and acknowledge the batch that the log's thread has stored, or have the writer deal with its error."""
        group, sleep = self.group, self._sleep
        if group is None or not sleep.is_asleep():
            return  # the loop ends: the writer was cancelled, and refuses the group
        if error is not None:
            sleep.fail(error)
            return
        self.group = None
        if result is None:  # the writer rolls to a new segment first
            self._admission.put_back(group)
            sleep.release(something_waits=True)
            return
        try:
            self._acknowledge(group, result)
        except BaseException as caught:
            self.group = group
            sleep.fail(caught)
            return
        sleep.release(self._admission.has_pending())

    def _acknowledge(self, group: AppendGroup, result: CommitResult) -> None:
        """Apply what was stored to memory, then wake the callers, who can then read their records."""
        self._upkeep.batch_stored(result, Reserve.NOTHING)
        self._store.apply(result)
        group.acknowledge(self._first_position)
        self._counters.append_seconds.observe(perf_counter() - self.since, len(group.futures))
        self._admission.refund(group.bytes)
        self._upkeep.timers.arm_mark()

    def give_up(self) -> None:
        """Forget the group in flight: the log has failed."""
        self.group = None
