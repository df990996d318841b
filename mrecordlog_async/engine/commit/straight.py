"""The straight path: one group for one queue is stored by two plain functions, without a turn of the writer's task.

A caller that appends alone waits for Python as long as for the disk: for a plan, its outcomes, and two steps of a task.
Here `begin` encodes the batch and hands it over, and `finish` applies and acknowledges it.
Without a disk in the way (tmpfs), one caller's call takes 0.87 of the CPU time and 0.86 of the median time.

It takes turns with the writer and never runs next to it: `begin` takes a group only while the writer sleeps, and keeps
it asleep until `finish` has applied the batch. Whatever is not the plain case is the writer's, which is then woken:

| what the writer does | where it is found out |
|---|---|
| other commands, several queues, many records, no such queue, a queue with options | `_take` |
| anything unsynced; a batch past the block, the segment or the reserved space; no spare | `Journal.has_room_alone` |
| a segment that has become shared: nothing was written, and the group goes back | `Journal.commit_alone` |
| upkeep, before the next batch | `count` |

A failed write or sync is raised in the writer's task, so that the log fails in one place. `writer` says which batch
takes which path, and `Admission` why no call is overtaken.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import NamedTuple

from mrecordlog_async.engine.commit.batch import CommitResult
from mrecordlog_async.engine.commit.upkeep import LogParts, Upkeep
from mrecordlog_async.engine.intake.commands import AppendGroup, Reserve
from mrecordlog_async.format.frame import FRAME_HEADER_BYTES
from mrecordlog_async.format.record import COMMIT_BYTES
from mrecordlog_async.format.runs import APPEND_BYTES, Append
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Run

CALLERS_MAX = 128
"""A group of more callers is the writer's, which wakes them in several turns of the loop."""

BATCH_OVERHEAD_BYTES = APPEND_BYTES + OFFSET_BYTES + 2 * FRAME_HEADER_BYTES + COMMIT_BYTES
"""Bytes of a batch of one run, besides the payloads and an offset for each."""


class _UncountedBatch(NamedTuple):
    """A batch that is still to be counted."""

    result: CommitResult
    payload_bytes: int
    records: int
    calls: int
    freed_bytes: int
    since: float
    ended: float


class Straight:
    """The straight path of one log. Everything here runs on the event loop; the writer owns it."""

    def __init__(self, parts: LogParts, upkeep: Upkeep) -> None:
        self.group: AppendGroup | None = None  # in flight
        self.since = 0.0  # when its oldest call was made
        self._journal = parts.journal
        self._queues = parts.queues
        self._admission = parts.admission
        self._counters = parts.counters
        self._thread = parts.thread
        self._upkeep = upkeep
        self._timers = upkeep.timers
        self._on_applied = parts.on_applied
        self._loop = asyncio.get_running_loop()
        self._first_position = 0
        self._stored: _UncountedBatch | None = None
        self._sleep = parts.admission.sleep
        self._sleep.straight = self.begin

    def begin(self) -> None:
        """Store the waiting group if it is the plain case; otherwise wake the writer. Admission schedules this."""
        if not (self._sleep.begins() and self._admission.has_pending()):
            return  # the writer is awake, and takes what waits
        try:
            taken = self._take()
        except BaseException as error:
            self._sleep.fail(error)
            return
        if not taken:
            self._sleep.wake()
        self.count()

    def _take(self) -> bool:
        """Hand the waiting group over to the log's thread. Returns False if that is for the writer to do."""
        admission = self._admission
        group, since = admission.only_group(CALLERS_MAX), admission.waiting_since
        name = group.one_queue() if group is not None else None
        queue = self._queues.get(name) if name is not None else None
        if group is None or queue is None or queue.options is not None:
            return False
        count = len(group.payloads)
        size = sum(map(len, group.payloads)) + OFFSET_BYTES * count + BATCH_OVERHEAD_BYTES
        if queue.next_position + count - 1 > POSITION_MAX or not self._journal.has_room_alone(size):
            return False
        if not admission.take():
            return True  # its callers were cancelled
        # Held from here on: the writer sleeps until `finish`, as positions follow from the queues as they are now.
        self._sleep.held = True
        self.group, self.since, self._first_position = group, since, queue.next_position
        record = Append(queue.id, Run.of(queue.next_position, group.payloads))  # one run: it fits into a block
        oldest = self._queues.pins.oldest()
        self._thread.hand_over(self.finish, self._journal.commit_alone, self._journal.encode(record, oldest))
        return True

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
        self._loop.call_soon(self._go_on)

    def _acknowledge(self, group: AppendGroup, result: CommitResult) -> None:
        """Apply what was stored to memory, then wake the callers, who can then read their records."""
        held = self._queues.memory_bytes
        records, payload_bytes, _ = self._queues.apply_all(result.segment, result.records, result.tick)
        self._queues.last_batch = result.batch
        freed = max(held - self._queues.memory_bytes, 0)
        self._on_applied((result.records[0].id,))  # type: ignore[union-attr]  # it is an Append
        group.acknowledge(self._first_position)
        calls, ended = len(group.futures), perf_counter()
        self._stored = _UncountedBatch(result, payload_bytes, records, calls, freed, self.since, ended)
        self._admission.refund(group.bytes)

    def _go_on(self) -> None:
        """Begin the next batch, or else count the last one. The callers of the last batch have run once since."""
        if self._sleep.scheduled:
            self.begin()  # now instead of in the next turn of the loop
        else:
            self.count()

    def count(self) -> None:
        """Count the last batch, which was put off until nobody waits for it, and wake the writer if upkeep is due."""
        stored, self._stored = self._stored, None
        if stored is None:
            return
        counters, state = self._counters, self._upkeep.state
        counters.appended_records += stored.records
        counters.appended_bytes += stored.payload_bytes
        counters.commit_records.observe(stored.records)
        counters.append_seconds.observe(stored.ended - stored.since, stored.calls)
        state.freed_bytes += stored.freed_bytes
        state.batch_stored(Reserve.NOTHING)
        self._upkeep.count(stored.result)
        self._timers.last_batch = self._loop.time()
        self._timers.arm_mark()
        if self._upkeep.is_due():
            self._sleep.wake()

    def give_up(self) -> None:
        """Forget the group in flight: the log has failed."""
        self.group = None
