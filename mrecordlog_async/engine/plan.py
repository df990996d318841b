"""Planning: what a batch writes and what each of its calls returns. Pure; no file, no await.

Positions are given in arrival order. What the batch's own commands change is seen by those behind them through a
`_View` of each queue; memory itself changes only after the sync. So an answer that rests on a command of the same batch
(a repeat of a record just planned, "exists" of a queue just created) is given after the sync too, and fails with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.engine.commands import (
    Append,
    AppendGroup,
    Command,
    CreateQueue,
    DeleteQueue,
    Sync,
    TruncateQueue,
)
from mrecordlog_async.engine.commit import PlannedRun
from mrecordlog_async.engine.encode import split_into_runs
from mrecordlog_async.errors import (
    LogFullError,
    PositionInPastError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
)
from mrecordlog_async.format import record as log_record
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.memory.last_append import LastAppend, same_payloads
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.reads import check_name
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.options import Limits


class Outcome(NamedTuple):
    """The result of a command: a value, an error, or (`counts`) the number of records its log record dropped."""

    command: Command
    value: object = None
    error: RecordLogError | None = None
    counts: bool = False


@dataclass(slots=True)
class Plan:
    """A batch to be: its records in order, the answers for after its sync, and those that can be given at once."""

    records: list[LogRecord | PlannedRun] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    immediate: list[Outcome] = field(default_factory=list)
    must_sync: bool = False
    needs_space: bool = False
    more_table_bytes: int = 0
    duplicates: int = 0


def plan(commands: Iterable[Command], queues: Queues, limits: Limits) -> Plan:
    """Decide what *commands* do, in order, to *queues*, which stay as they are."""
    planner = _Planner(queues, limits)
    for command in commands:
        planner.decide(command)
    return planner.plan


class _View:
    """A queue as the commands planned so far leave it."""

    __slots__ = ("id", "next", "planned", "queue", "singles", "start")

    def __init__(self, queue: Queue | None, queue_id: int, start: int, next_position: int) -> None:
        self.queue = queue
        self.id = queue_id
        self.start = start
        self.next = next_position
        self.planned: list[PlannedRun] = []
        self.singles: list[bytes] | None = None  # payloads of the last planned run, if single records may still join

    def touched(self) -> bool:
        """Whether this batch changes the queue."""
        return self.queue is None or bool(self.planned) or self.start != self.queue.first_position


def _last_append(view: _View) -> LastAppend | None:
    """Return the digest of the queue's last append, as planned so far."""
    if view.planned:
        planned = view.planned[-1]
        return LastAppend.of(split_into_runs(planned.first_position, planned.payloads))
    return view.queue.last_append() if view.queue is not None else None


_UNSEEN = _View(None, 0, 0, 0)
"""Placeholder for a queue that no command of the batch has named yet."""


class _Planner:
    """Builds one plan."""

    def __init__(self, queues: Queues, limits: Limits) -> None:
        self.plan = Plan()
        self._queues = queues
        self._limits = limits
        self._views: dict[str, _View | None] = {}
        self._next_queue_id = queues.next_queue_id
        self._queue_count = len(queues)

    def decide(self, command: Command) -> None:
        if isinstance(command, AppendGroup):
            self._append_group(command)
        elif isinstance(command, Append):
            self._append(command)
        elif isinstance(command, TruncateQueue):
            self._truncate(command)
        elif isinstance(command, CreateQueue):
            self._create(command)
        elif isinstance(command, DeleteQueue):
            self._delete(command)
        else:
            assert isinstance(command, Sync)
            self.plan.must_sync = True
            self.plan.outcomes.append(Outcome(command))

    def _append_group(self, group: AppendGroup) -> None:
        queue = group.one_queue()
        if queue is None:
            self._append_to_many(group)
            return
        view = self._find(queue)
        if view is None:
            self._refuse(group, self._not_found(queue), queue)
        elif view.next + len(group.payloads) - 1 > POSITION_MAX:
            self._refuse(group, LogFullError("positions", view.next, POSITION_MAX + 1), queue)
        else:
            first = view.next
            self._store(view, first, group.payloads)
            self.plan.outcomes.append(Outcome(group, first))

    def _append_to_many(self, group: AppendGroup) -> None:
        """Plan single records of several queues: those of one queue that follow one another become one run."""
        views, records = self._views, self.plan.records
        positions: list[int] = []
        for queue, payload in zip(group.queues, group.payloads, strict=True):
            view = views.get(queue) or self._find(queue)
            if view is None or view.next > POSITION_MAX:
                error = (
                    self._not_found(queue) if view is None else LogFullError("positions", view.next, POSITION_MAX + 1)
                )
                self._refuse(Command(group.futures[len(positions)]), error, queue)
                positions.append(-1)  # told to nobody: the call has its answer by then
                continue
            position = view.next
            positions.append(position)
            view.next = position + 1
            if view.singles is None:
                view.singles = singles = [payload]
                run = tuple.__new__(PlannedRun, (view.id, position, singles))  # half the time of PlannedRun(…)
                view.planned.append(run)
                records.append(run)
                self.plan.needs_space = True
            else:
                view.singles.append(payload)
        self.plan.outcomes.append(Outcome(group, positions))

    def _append(self, call: Append) -> None:
        view, records = self._find(call.queue), len(call.payloads)
        if view is None:
            self._refuse(call, self._not_found(call.queue), call.queue)
            return
        first = view.next if call.position is None else call.position
        if not records:
            self._finish(call, view, None)
        elif first + records - 1 > POSITION_MAX:
            self._refuse(call, LogFullError("positions", first, POSITION_MAX + 1), call.queue)
        elif first >= view.next:
            self._store(view, first, call.payloads)
            self.plan.outcomes.append(Outcome(call, first + records - 1))
        elif (repeated := self._repeats(view, first, call.payloads)) is True:
            self.plan.duplicates += 1
            self._finish(call, view, None)
        else:
            error = PositionInPastError(call.queue, first, view.next, outcome_unknown=repeated is None)
            self._refuse(call, error, call.queue)

    def _truncate(self, call: TruncateQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        elif call.position < view.start:
            self._finish(call, view, 0)
        else:
            view.start = call.position + 1
            view.singles = None
            view.next = max(view.next, view.start)
            self.plan.records.append(log_record.Truncate(view.id, call.position))
            self.plan.outcomes.append(Outcome(call, counts=True))

    def _create(self, call: CreateQueue) -> None:
        view = self._find(call.queue)
        if view is not None:
            if call.exist_ok:
                self._finish(call, view, False)
            else:
                self._refuse(call, QueueExistsError(call.queue), call.queue)
        elif self._queue_count >= self._limits.queues:
            self._refuse(call, LogFullError("queues", self._queue_count, self._limits.queues), call.queue)
        else:
            queue_id, self._next_queue_id = self._next_queue_id, self._next_queue_id + 1
            self._queue_count += 1
            self._views[call.queue] = _View(None, queue_id, 0, 0)
            self.plan.records.append(log_record.Create(queue_id, call.queue))
            self.plan.more_table_bytes += log_record.entry_bytes(call.queue)
            self.plan.outcomes.append(Outcome(call, True))
            self.plan.needs_space = self.plan.must_sync = True

    def _delete(self, call: DeleteQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        else:
            self._queue_count -= 1
            self._views[call.queue] = None
            self.plan.records.append(log_record.Delete(view.id))
            self.plan.outcomes.append(Outcome(call, counts=True))
            self.plan.must_sync = True

    def _find(self, name: str) -> _View | None:
        """Return the queue as planned so far, None where there is none of this name."""
        view = self._views.get(name, _UNSEEN)
        if view is not _UNSEEN:
            return view
        queue = self._queues.get(name)
        if queue is None:
            return None
        view = self._views[name] = _View(queue, queue.id, queue.first_position, queue.next_position)
        return view

    def _not_found(self, name: str) -> RecordLogError:
        """Return why the queue does not exist. Names are checked only here: the name of an existing queue is valid."""
        try:
            check_name(name, self._limits.name_bytes)
        except QueueNameError as error:
            return error
        return QueueNotFoundError(name)

    def _store(self, view: _View, first: int, payloads: Sequence[bytes]) -> None:
        if view.start == 0 == view.next:
            view.start = first
        run = PlannedRun(view.id, first, payloads)
        view.planned.append(run)
        view.singles = None
        view.next = first + len(payloads)
        self.plan.records.append(run)
        self.plan.needs_space = True

    def _repeats(self, view: _View, first: int, payloads: Sequence[bytes]) -> bool | None:
        """Return whether exactly these records are already stored or planned; None if that is no longer known.

        Every position that is still retained must hold the same payload. Where positions are truncated, the call must
        be the queue's last append, whose digest outlives the records. No record passes without a comparison.
        """
        stop = first + len(payloads)
        if stop > view.next:
            return False
        lowest = max(first, view.start)
        runs = self._stored_or_planned(view, lowest, stop)
        if lowest < stop and not (runs and runs[0].first_position == lowest and same_payloads(runs, first, payloads)):
            return False
        if first >= view.start:
            return True
        last = _last_append(view) if stop == view.next else None  # a truncate past the end left positions behind it
        if last is None or (first, len(payloads)) != last[:2]:  # stored together with other records, or by other calls
            return None
        return LastAppend.of(split_into_runs(first, payloads)) == last

    def _stored_or_planned(self, view: _View, start: int, stop: int) -> list[Run]:
        """Return the runs at positions *start* … *stop* - 1, in order, as planned so far."""
        runs = [*view.queue.runs(start, stop)] if view.queue is not None else []
        for planned in view.planned:
            base = planned.first_position
            first, end = max(base, start), min(base + len(planned.payloads), stop)
            if first < end:
                runs.append(Run.of(first, planned.payloads[first - base : end - base]))
        return runs

    def _finish(self, command: Command, view: _View, value: object) -> None:
        """Finish a call that writes nothing: at once, unless its outcome rests on what this batch writes."""
        (self.plan.outcomes if view.touched() else self.plan.immediate).append(Outcome(command, value))

    def _refuse(self, command: Command, error: RecordLogError, queue: str) -> None:
        view = self._views.get(queue)
        rests_on_batch = view.touched() if view is not None else queue in self._views
        (self.plan.outcomes if rests_on_batch else self.plan.immediate).append(Outcome(command, error=error))
