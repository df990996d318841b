"""The plan of a batch as it grows: what it writes, how it leaves each queue, and how its commands end. Pure.

`Plan` is the result: the log records to write, and the outcome of each command. `QueueView` is one queue as the
commands planned so far leave it, and `PlannedSingles` stands for the views of a whole group. `Draft` has all of these:
the functions that plan commands write to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import AppendRecords, Command, Reserve
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove, PlannedRules
from mrecordlog_async.errors import QueueNameError, QueueNotFoundError, RecordLogError
from mrecordlog_async.format.controls import ConsumerState, Truncate
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.format.stored_options import PLAIN, SetOptions, StoredOptions, shared
from mrecordlog_async.format.table import LastAppendDigest
from mrecordlog_async.memory.consumers import slowest_of
from mrecordlog_async.memory.queue import Queue, same_payloads
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import checksum_of
from mrecordlog_async.model import OFFSET_BYTES, RUN_BYTES, Run
from mrecordlog_async.names import check_new_name
from mrecordlog_async.options import Limits

REFUSED = -1
"""Stands for a position of a refused record. Never read: the call is finished before positions are reported."""


class PlannedRun(NamedTuple):
    """Payloads to be stored at consecutive positions, in one or more runs."""

    id: int
    first_position: int
    payloads: Sequence[bytes]


class PlannedMany(NamedTuple):
    """Single records of several queues, each given by its place in the three sequences. A queue may occur repeatedly.

    They are stored in MANYs, in this order.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    payloads: Sequence[bytes]


PlannedRecord = LogRecord | PlannedRun | PlannedMany
"""Log records that a plan writes."""


class CommandOutcome(NamedTuple):
    """Result of a command: a value, an error, or the number of records that a log record drops.

    dropped_by: which of the batch's truncates and deletes that is, counted from 0; -1 for none.
    """

    command: Command
    value: object = None
    error: RecordLogError | None = None
    dropped_by: int = -1


@dataclass(slots=True)
class Plan:
    """A batch before it is written.

    records: what to write, in order. outcomes: reported after the sync. immediate: reported at once. must_sync: sync
    under every policy. reserve: the least of what its commands may use.
    more_table_bytes: what its records add to the queue table. duplicates: repeats of stored records. duplicates_within:
    of records of the same batch, which are repeats only if it is stored.
    removals: truncates and deletes among the records. makes_room: which of them make room for appends. calls: how many
    commands are planned. moves: acknowledgements and seeks among the records, in order. on_disk: appends that are to be
    planned again, with what the disk has at their positions.
    """

    records: list[PlannedRecord] = field(default_factory=list)
    outcomes: list[CommandOutcome] = field(default_factory=list)
    immediate: list[CommandOutcome] = field(default_factory=list)
    must_sync: bool = False
    reserve: Reserve = Reserve.ALL
    more_table_bytes: int = 0
    duplicates: int = 0
    duplicates_within: int = 0
    removals: int = 0
    makes_room: list[int] = field(default_factory=list)
    calls: int = 0
    moves: list[ConsumerMove] = field(default_factory=list)
    on_disk: list[AppendRecords] = field(default_factory=list)


class QueueView:
    """A queue as the commands planned so far leave it."""

    __slots__ = (
        "_consumers",
        "_held",
        "_truncated",
        "first_position",
        "id",
        "next_position",
        "options",
        "planned",
        "queue",
        "reconfigured",
    )

    def __init__(self, queue: Queue | None, queue_id: int, first_position: int, next_position: int) -> None:
        self.queue = queue
        self.id = queue_id
        self.first_position = first_position
        self.next_position = next_position
        self.planned: list[PlannedRun] = []
        self.options = PLAIN
        self.reconfigured = False  # the batch changes options or consumers
        self._consumers: dict[str, ConsumerState] | None = None  # a copy, once the batch changes one of them
        self._held: tuple[int, int] | None = None
        self._truncated = 0  # the first position that a truncate of the batch has left

    @classmethod
    def of(cls, queue: Queue) -> QueueView:
        """Return the view of a queue that no command has changed yet."""
        view = cls(queue, queue.id, queue.first_position, queue.next_position)
        view.options = queue.options
        return view

    def add_single(self, payload: bytes) -> int:
        """Plan one record at the end of the queue; return its position."""
        position = self.next_position
        self.next_position = position + 1
        self._held = None
        self.planned.append(tuple.__new__(PlannedRun, (self.id, position, [payload])))  # half the time of PlannedRun(…)
        return position

    def touched(self) -> bool:
        """Return whether this batch changes the queue."""
        return (
            self.queue is None
            or bool(self.planned)
            or self.first_position != self.queue.first_position
            or self.reconfigured
        )

    def truncate(self, position: int) -> None:
        """Plan a truncate up to *position*, which is not before the first one."""
        self.first_position = self._truncated = position + 1
        self.next_position = max(self.next_position, self.first_position)
        self._held = None
        self._forget_dead_runs()

    def _forget_dead_runs(self) -> None:
        """Forget planned runs that are truncated: a small queue that drops its oldest records may plan thousands.

        The last one stays: it is the last append.
        """
        dead = 0
        while dead < len(self.planned) - 1 and self.planned[dead + 1].first_position <= self.first_position:
            dead += 1
        del self.planned[:dead]

    def set_options(self, options: StoredOptions) -> None:
        """Plan other options."""
        self.options = shared(options)
        self.reconfigured = True
        self._held = None  # appends are not counted while there are no options

    # Consumers.

    def consumer(self, name: str) -> ConsumerState | None:
        """Return the state of a consumer, or None if it does not exist."""
        state = self._states().get(name)
        if state is None or state.position >= self._truncated:
            return state
        return state._replace(position=self._truncated)

    def consumer_count(self) -> int:
        """Return the number of consumers."""
        return len(self._states())

    def set_consumer(self, name: str, state: ConsumerState) -> None:
        """Plan a consumer's creation or move."""
        self._changed_states()[name] = state

    def delete_consumer(self, name: str) -> None:
        """Plan a consumer's deletion."""
        del self._changed_states()[name]

    def slowest(self) -> tuple[int, str] | None:
        """Return the position and the name of a consumer that is furthest behind, or None without consumers."""
        states = self._states()
        if not states:
            return None
        name = slowest_of(states)
        return max(states[name].position, self._truncated), name

    def _states(self) -> Mapping[str, ConsumerState]:
        """Return the consumers as the batch leaves them, but for its truncates."""
        if self._consumers is not None:
            return self._consumers
        return self.queue.consumers.states if self.queue is not None else {}

    def _changed_states(self) -> dict[str, ConsumerState]:
        if self._consumers is None:
            self._consumers = dict(self._states())
        self.reconfigured = True
        return self._consumers

    # What the queue holds, for its limits.

    def held(self) -> tuple[int, int]:
        """Return the number of retained records and their payload bytes."""
        if self._held is None:
            if self.queue is not None and not self.planned and self.first_position == self.queue.first_position:
                self._held = self.queue.records, self.queue.live_bytes()
            else:
                self._held = self._amount()
        return self._held

    def _amount(self) -> tuple[int, int]:
        runs = self._planned_runs(self.first_position, self.next_position)
        records, size = sum(run.record_count for run in runs), sum(len(run.payload) for run in runs)
        if self.queue is None:
            return records, size
        held_records, held_bytes = self.queue.amount(self.first_position, self.next_position)
        return records + held_records, size + held_bytes

    def count(self, payloads: Sequence[bytes]) -> None:
        """Count records that were planned after `held` was called."""
        if self._held is not None:
            self._held = self._held[0] + len(payloads), self._held[1] + sum(map(len, payloads))

    def position_to_drop(self, records: int, size: int) -> int | None:
        """Return the position to truncate to so that at least *records* records and *size* bytes are dropped.

        None if the records are not in memory, as in a log that was opened for its positions alone. Those on the disk
        are dropped by whole places.
        """
        start, queue = self.first_position, self.queue
        if queue is not None and start < queue.memory_first:
            for index, place in queue.places(start, queue.memory_first):
                end = min(index.next_positions[place], queue.memory_first)
                dropped = queue.amount(start, end)
                if dropped[0] >= records and dropped[1] >= size:
                    return end - 1
                records, size = max(records - dropped[0], 0), max(size - dropped[1], 0)
                start = end
        runs = self._runs(start, self.next_position)
        if start == self.first_position and sum(run.record_count for run in runs) != self.held()[0]:
            return None
        for run in runs:
            if run.record_count >= records and len(run.payload) >= size:
                by_bytes = bisect_left(run.ends(), size) if size > 0 else 0
                return run.first_position + max(records, by_bytes, 1) - 1
            records -= run.record_count
            size -= len(run.payload)
        return self.next_position - 1

    def repeats(
        self, first: int, payloads: Sequence[bytes], stored: tuple[Sequence[Run], int] = ((), 0)
    ) -> bool | None:
        """Return whether exactly these records are already stored or planned; None if that is no longer known.

        Every position that is still retained must hold the same payload. Where positions are truncated, the call must
        be the queue's last append, whose digest outlives the records. No record passes without a comparison.
        *stored*: runs that were read from the disk, all before a position. Raises RecordsOnDiskError if others are
        needed.
        """
        stop = first + len(payloads)
        if stop > self.next_position:
            return False
        lowest = max(first, self.first_position)
        runs = self._stored_runs(lowest, stop, stored)
        if lowest < stop and not (runs and runs[0].first_position == lowest and same_payloads(runs, first, payloads)):
            return False
        if first >= self.first_position:
            return True
        if self.queue is not None and first < self.queue.began:  # nothing was ever stored there
            return False
        last = self.last_append() if stop == self.next_position else None
        if last is None or first != last.first_position:  # stored by another call, or with other records
            return None
        return checksum_of(split_into_runs(first, payloads)) == last.checksum

    def _stored_runs(self, start: int, stop: int, stored: tuple[Sequence[Run], int]) -> list[Run]:
        """Return what `_runs` does, the first part of it from *stored*."""
        runs, end = stored
        first = min(max(start, end), stop)
        found = [run.cut(start, first) for run in runs if run.first_position < first and run.next_position > start]
        return found + self._runs(first, stop)

    def last_append(self) -> LastAppendDigest | None:
        """Return the digest of the append that ends at the next position, as planned so far; None if it is unknown.

        A truncate past the end moves the next position away from the last append.
        """
        if self.planned:
            _, first, payloads = self.planned[-1]
            known = first + len(payloads) == self.next_position
            return LastAppendDigest(first, checksum_of(split_into_runs(first, payloads))) if known else None
        queue = self.queue
        return queue.last_append() if queue is not None and queue.next_position == self.next_position else None

    def _runs(self, start: int, stop: int) -> list[Run]:
        """Return the runs at positions *start* … *stop* - 1, in order, as planned so far."""
        return [*(self.queue.runs(start, stop) if self.queue is not None else ()), *self._planned_runs(start, stop)]

    def _planned_runs(self, start: int, stop: int) -> list[Run]:
        runs = []
        for planned in self.planned:
            base = planned.first_position
            first, end = max(base, start), min(base + len(planned.payloads), stop)
            if first < end:
                runs.append(Run.of(first, planned.payloads[first - base : end - base]))
        return runs


class PlannedSingles:
    """The records of a group for several queues, none of which has a view until a later command asks for one.

    Most batches are such a group and nothing else.
    """

    def __init__(self, names: Sequence[str], distinct: AbstractSet[str], many: PlannedMany) -> None:
        self.distinct = distinct
        self.many = many
        self._names = names
        self._by_name: dict[str, list[bytes]] | None = None

    def add_to(self, view: QueueView, name: str) -> None:
        """Add what is for this queue, if anything is, to its view."""
        if name not in self.distinct:
            return
        if self._by_name is None:
            self._by_name = {}
            for each, payload in zip(self._names, self.many.payloads, strict=True):
                self._by_name.setdefault(each, []).append(payload)
        for payload in self._by_name[name]:
            view.add_single(payload)


def split_into_runs(first_position: int, payloads: Sequence[bytes]) -> list[Run]:
    """Join *payloads* into runs of at most about `RUN_BYTES`. A larger payload becomes its own run."""
    records = len(payloads)
    if sum(map(len, payloads)) + OFFSET_BYTES * records <= RUN_BYTES:
        return [Run.of(first_position, payloads)]
    if min(map(len, payloads)) > RUN_BYTES // 2:  # no two share a run; 1 % of what 16 callers of 16 KiB take
        return [Run.of(first_position + at, [payload]) for at, payload in enumerate(payloads)]
    ends = list(accumulate(map(OFFSET_BYTES.__add__, map(len, payloads)), initial=0))
    runs = []
    start = 0
    while start < records:
        stop = max(bisect_right(ends, ends[start] + RUN_BYTES) - 1, start + 1)
        part = payloads if stop - start == records else payloads[start:stop]
        runs.append(Run.of(first_position + start, part))
        start = stop
    return runs


_UNSEEN = QueueView(None, 0, 0, 0)
"""Placeholder for a queue that no command of the batch has named yet."""


class Draft:
    """A plan that grows, and the log as it leaves it. The functions that plan commands write to it."""

    def __init__(self, queues: Queues, limits: Limits, epochs_from: int = 0, ids_from: int = 0) -> None:
        self.plan = Plan()
        self.queues = queues
        self.limits = limits
        self.epochs_from = epochs_from  # holders with a lower epoch must attach again
        self.views: dict[str, QueueView | None] = {}
        self.singles: list[PlannedSingles] = []
        self._next_id = max(queues.next_queue_id, ids_from)  # for queues and epochs
        self.queue_count = len(queues)
        self.consumer_count = queues.consumer_count + len(queues.rules.all)
        self.work = 0.0  # of consumers that rules create, and of comparing names with rules; in log records

    @cached_property
    def rules(self) -> PlannedRules:
        """The rules as planned so far."""
        return PlannedRules(self.queues.rules)

    def leave(self, reserve: Reserve) -> None:
        """Let the batch use no more than *reserve*."""
        self.plan.reserve = min(self.plan.reserve, reserve)

    def draw_id(self) -> int:
        """Return an id that no queue and no holder has had."""
        self._next_id += 1
        return self._next_id - 1

    def find(self, name: str) -> QueueView | None:
        """Return the queue as planned so far, or None if no queue has this name."""
        view = self.views.get(name, _UNSEEN)
        if view is not _UNSEEN:
            return view
        queue = self.queues.get(name)
        if queue is None:
            return None
        view = self.views[name] = QueueView.of(queue)
        for singles in self.singles:
            singles.add_to(view, name)
        return view

    def not_found(self, name: str) -> RecordLogError:
        """Return why the queue does not exist. Names are checked only here: the name of an existing queue is valid."""
        try:
            check_new_name(name, self.limits.name_bytes)
        except QueueNameError as error:
            return error
        return QueueNotFoundError(name)

    def store(self, view: QueueView, first: int, payloads: Sequence[bytes]) -> None:
        """Plan records at the end of a queue, from position *first* on."""
        if view.first_position == 0 == view.next_position:
            view.first_position = first
        run = PlannedRun(view.id, first, payloads)
        view.planned.append(run)
        view.next_position = first + len(payloads)
        view.count(payloads)
        self.plan.records.append(run)
        self.plan.reserve = Reserve.NOTHING

    def truncate(self, view: QueueView, position: int) -> int:
        """Plan a truncate; return which of the batch's removals it is."""
        view.truncate(position)
        self.plan.records.append(Truncate(view.id, position))
        return self.count_removal()

    def set_options(self, view: QueueView, options: StoredOptions) -> None:
        """Plan other options of a queue."""
        view.set_options(options)
        self.plan.records.append(SetOptions(view.id, options))
        self.plan.must_sync = True

    def count_removal(self) -> int:
        """Count the truncate or delete that was just planned; return which one it is."""
        self.plan.removals += 1
        return self.plan.removals - 1

    def finish(self, command: Command, view: QueueView, value: object) -> None:
        """Report *value* for a call that writes nothing: at once, unless it rests on what this batch writes."""
        (self.plan.outcomes if view.touched() else self.plan.immediate).append(CommandOutcome(command, value))

    def refuse(self, command: Command, error: RecordLogError, queue: str) -> None:
        """Report *error*: at once, unless it rests on what this batch does to *queue*."""
        view = self.views.get(queue)
        rests_on_batch = view.touched() if view is not None else queue in self.views
        (self.plan.outcomes if rests_on_batch else self.plan.immediate).append(CommandOutcome(command, error=error))
