"""What every part of the plan needs: the plan as it grows, the queues as planned so far, and how commands end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import Command
from mrecordlog_async.engine.planning.planned import PlannedRecord
from mrecordlog_async.engine.planning.planned_rules import PlannedRules
from mrecordlog_async.engine.planning.view import PlannedSingles, QueueView
from mrecordlog_async.errors import QueueNameError, QueueNotFoundError, RecordLogError
from mrecordlog_async.format import record as log_record
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.names import check_new_name
from mrecordlog_async.options import Limits


class Outcome(NamedTuple):
    """How a command ends: with a value, an error, or the number of records that a log record drops.

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
    under every policy. needs_space: it must leave the reserve alone. attaches: it must leave half of the reserve alone.
    more_table_bytes: what its creates add to the queue table. duplicates: repeats of stored records. duplicates_within:
    of records of the same batch, which are repeats only if it is stored.
    removals: truncates and deletes among the records. makes_room: which of them make room for appends. calls: how many
    commands are planned.
    """

    records: list[PlannedRecord] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    immediate: list[Outcome] = field(default_factory=list)
    must_sync: bool = False
    needs_space: bool = False
    attaches: bool = False
    more_table_bytes: int = 0
    duplicates: int = 0
    duplicates_within: int = 0
    removals: int = 0
    makes_room: list[int] = field(default_factory=list)
    calls: int = 0


_UNSEEN = QueueView(None, 0, 0, 0)
"""Placeholder for a queue that no command of the batch has named yet."""


class PlannerBase:
    """A plan that grows, and the log as it leaves it."""

    def __init__(self, queues: Queues, limits: Limits, epochs_from: int = 0, ids_from: int = 0) -> None:
        self.plan = Plan()
        self._queues = queues
        self._limits = limits
        self._epochs_from = epochs_from  # holders with a lower epoch must attach again
        self._views: dict[str, QueueView | None] = {}
        self._singles: list[PlannedSingles] = []
        self._next_id = max(queues.next_queue_id, ids_from)  # for queues and epochs
        self._queue_count = len(queues)
        self._consumer_count = queues.consumer_count + len(queues.rules)
        self._rules = PlannedRules(queues.rules)
        self._limited: set[str] = set()  # those that the batch limits; some may not exist any more
        self.work = 0.0  # of consumers that rules create, and of comparing names with rules; in log records

    def _draw_id(self) -> int:
        """Return an id that no queue and no holder has had."""
        self._next_id += 1
        return self._next_id - 1

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
            check_new_name(name, self._limits.name_bytes)
        except QueueNameError as error:
            return error
        return QueueNotFoundError(name)

    def _truncate_view(self, view: QueueView, position: int) -> int:
        """Plan a truncate; return which of the batch's removals it is."""
        view.truncate(position)
        self.plan.records.append(log_record.Truncate(view.id, position))
        return self._removal()

    def _removal(self) -> int:
        """Count the truncate or delete that was just planned; return which one it is."""
        self.plan.removals += 1
        return self.plan.removals - 1

    def _finish(self, command: Command, view: QueueView, value: object) -> None:
        """Report *value* for a call that writes nothing: at once, unless it rests on what this batch writes."""
        (self.plan.outcomes if view.touched() else self.plan.immediate).append(Outcome(command, value))

    def _refuse(self, command: Command, error: RecordLogError, queue: str) -> None:
        view = self._views.get(queue)
        rests_on_batch = view.touched() if view is not None else queue in self._views
        (self.plan.outcomes if rests_on_batch else self.plan.immediate).append(Outcome(command, error=error))
