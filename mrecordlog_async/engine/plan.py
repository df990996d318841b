"""Planning: what a batch writes and what each of its calls returns. Pure; no file, no await.

Positions are assigned in arrival order. Later commands of a batch see what earlier ones change through a `QueueView` of
each queue; memory itself changes only after the sync. So an outcome that rests on a command of the same batch (a repeat
of a record just planned, "exists" for a queue just created) is reported after the sync as well, and fails with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
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
from mrecordlog_async.engine.commit import PlannedMany, PlannedRecord, PlannedRun
from mrecordlog_async.engine.queue_view import PlannedSingles, QueueView
from mrecordlog_async.errors import (
    LogFullError,
    PositionInPastError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
)
from mrecordlog_async.format import record as log_record
from mrecordlog_async.format.table import entry_bytes
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.reads import check_name
from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.options import Limits


class Outcome(NamedTuple):
    """How a command ends: with a value, an error, or (`counts`) the number of records that its log record drops."""

    command: Command
    value: object = None
    error: RecordLogError | None = None
    counts: bool = False


@dataclass(slots=True)
class Plan:
    """A batch before it is written.

    records: what to write, in order. outcomes: reported after the sync. immediate: reported at once. must_sync: sync
    under every policy. needs_space: it must leave the reserve alone. more_table_bytes: what its creates add to the
    queue table. duplicates: repeats of records that are already stored.
    """

    records: list[PlannedRecord] = field(default_factory=list)
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


_UNSEEN = QueueView(None, 0, 0, 0)
"""Placeholder for a queue that no command of the batch has named yet."""


REFUSED = -1
"""Stands for a position of a refused record. Never read: the call is finished before positions are reported."""

RUN_RECORDS_MIN = 4
"""Single records are planned as runs if a queue gets so many on average: runs then take less space than MANYs."""

_ID = attrgetter("id")
_NEXT_POSITION = attrgetter("next_position")


class _Planner:
    """Builds one plan."""

    def __init__(self, queues: Queues, limits: Limits) -> None:
        self.plan = Plan()
        self._queues = queues
        self._limits = limits
        self._views: dict[str, QueueView | None] = {}
        self._singles: list[PlannedSingles] = []
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
            self._append_to_several(group)
            return
        view = self._find(queue)
        if view is None:
            self._refuse(group, self._not_found(queue), queue)
        elif view.next_position + len(group.payloads) - 1 > POSITION_MAX:
            self._refuse(group, LogFullError("positions", view.next_position, POSITION_MAX + 1), queue)
        else:
            first = view.next_position
            self._store(view, first, group.payloads)
            self.plan.outcomes.append(Outcome(group, first))

    def _append_to_several(self, group: AppendGroup) -> None:
        """Plan single records of several queues: as one MANY, or as runs where a queue gets many of them."""
        distinct = set(group.queues)
        if len(distinct) * RUN_RECORDS_MIN <= len(group.queues):
            self._append_as_runs(group)
        elif not self._append_at_once(group, distinct):
            self._append_one_by_one(group)

    def _append_at_once(self, group: AppendGroup, distinct: set[str]) -> bool:
        """Plan records without a look at each, if all their queues exist as they are in memory; return whether so."""
        if not all(map(distinct.isdisjoint, [self._views, *(singles.distinct for singles in self._singles)])):
            return False  # an earlier command of the batch names one of them
        queues = self._queues.get_all(group.queues)
        if queues is None:
            return False
        positions = list(map(_NEXT_POSITION, queues)) if len(distinct) == len(queues) else _next_positions(queues)
        if max(positions) > POSITION_MAX:
            return False
        self.plan.records.append(PlannedMany(list(map(_ID, queues)), positions, group.payloads))
        self.plan.needs_space = True
        self.plan.outcomes.append(Outcome(group, positions))
        self._singles.append(PlannedSingles(group.queues, distinct, group.payloads))
        return True

    def _append_one_by_one(self, group: AppendGroup) -> None:
        """Plan records as one MANY, and refuse those that cannot be stored."""
        views = self._views
        ids: list[int] = []
        stored: list[bytes] = []
        positions: list[int] = []
        for queue, payload in zip(group.queues, group.payloads, strict=True):
            view = views.get(queue) or self._find(queue)
            if view is None or view.next_position > POSITION_MAX:
                self._refuse_single(group.futures[len(positions)], queue, view)
                positions.append(REFUSED)
                continue
            positions.append(view.add_single(payload))
            ids.append(view.id)
            stored.append(payload)
        if stored:
            given = positions if len(stored) == len(positions) else [each for each in positions if each != REFUSED]
            self.plan.records.append(PlannedMany(ids, given, stored))
            self.plan.needs_space = True
        self.plan.outcomes.append(Outcome(group, positions))

    def _append_as_runs(self, group: AppendGroup) -> None:
        """Plan single records of a few queues: those of one queue become one run."""
        runs: dict[str, list[bytes]] = {}
        positions: list[int] = []
        for queue, payload in zip(group.queues, group.payloads, strict=True):
            view = self._views.get(queue) or self._find(queue)
            if view is None or view.next_position > POSITION_MAX:
                self._refuse_single(group.futures[len(positions)], queue, view)
                positions.append(REFUSED)
                continue
            positions.append(view.next_position)
            payloads = runs.get(queue)
            if payloads is None:
                runs[queue] = payloads = []
                self._store(view, view.next_position, payloads)
            payloads.append(payload)
            view.next_position += 1
        self.plan.outcomes.append(Outcome(group, positions))

    def _refuse_single(self, future: asyncio.Future[object], queue: str, view: QueueView | None) -> None:
        """Refuse one record of a group; the others are planned."""
        if view is None:
            error = self._not_found(queue)
        else:
            error = LogFullError("positions", view.next_position, POSITION_MAX + 1)
        self._refuse(Command(future), error, queue)

    def _append(self, call: Append) -> None:
        view, records = self._find(call.queue), len(call.payloads)
        if view is None:
            self._refuse(call, self._not_found(call.queue), call.queue)
            return
        first = view.next_position if call.position is None else call.position
        if not records:
            self._finish(call, view, None)
        elif first + records - 1 > POSITION_MAX:
            self._refuse(call, LogFullError("positions", first, POSITION_MAX + 1), call.queue)
        elif first >= view.next_position:
            self._store(view, first, call.payloads)
            self.plan.outcomes.append(Outcome(call, first + records - 1))
        elif (repeated := view.repeats(first, call.payloads)) is True:
            self.plan.duplicates += 1  # nothing is written; the caller gets None
            self._finish(call, view, None)
        else:
            error = PositionInPastError(call.queue, first, view.next_position, outcome_unknown=repeated is None)
            self._refuse(call, error, call.queue)

    def _truncate(self, call: TruncateQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        elif call.position < view.first_position:
            self._finish(call, view, 0)
        else:
            view.first_position = call.position + 1
            view.next_position = max(view.next_position, view.first_position)
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
            self._views[call.queue] = QueueView(None, queue_id, 0, 0)
            plan = self.plan
            plan.records.append(log_record.Create(queue_id, call.queue))
            plan.more_table_bytes += entry_bytes(call.queue)
            plan.outcomes.append(Outcome(call, True))
            plan.needs_space = plan.must_sync = True

    def _delete(self, call: DeleteQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        else:
            self._queue_count -= 1
            self._views[call.queue] = None  # later commands of the batch do not find the queue
            self.plan.records.append(log_record.Delete(view.id))
            self.plan.outcomes.append(Outcome(call, counts=True))
            self.plan.must_sync = True

    def _find(self, name: str) -> QueueView | None:
        """Return the queue as planned so far, or None if no queue has this name."""
        view = self._views.get(name, _UNSEEN)
        if view is not _UNSEEN:
            return view
        queue = self._queues.get(name)
        if queue is None:
            return None
        singles = next((each for each in self._singles if name in each.distinct), None)
        view = self._views[name] = QueueView.of(queue) if singles is None else singles.view(queue)
        return view

    def _not_found(self, name: str) -> RecordLogError:
        """Return why the queue does not exist. Names are checked only here: the name of an existing queue is valid."""
        try:
            check_name(name, self._limits.name_bytes)
        except QueueNameError as error:
            return error
        return QueueNotFoundError(name)

    def _store(self, view: QueueView, first: int, payloads: Sequence[bytes]) -> None:
        if view.first_position == 0 == view.next_position:
            view.first_position = first
        run = PlannedRun(view.id, first, payloads)
        view.planned.append(run)
        view.next_position = first + len(payloads)
        self.plan.records.append(run)
        self.plan.needs_space = True

    def _finish(self, command: Command, view: QueueView, value: object) -> None:
        """Report *value* for a call that writes nothing: at once, unless it rests on what this batch writes."""
        (self.plan.outcomes if view.touched() else self.plan.immediate).append(Outcome(command, value))

    def _refuse(self, command: Command, error: RecordLogError, queue: str) -> None:
        view = self._views.get(queue)
        rests_on_batch = view.touched() if view is not None else queue in self._views
        (self.plan.outcomes if rests_on_batch else self.plan.immediate).append(Outcome(command, error=error))


def _next_positions(queues: Sequence[Queue]) -> list[int]:
    """Return a position for each of *queues*, in which a queue may stand more than once."""
    following: dict[int, int] = {}
    positions = []
    for queue in queues:
        position = following.get(queue.id, queue.next_position)
        following[queue.id] = position + 1
        positions.append(position)
    return positions
