"""The plan of a batch as it grows, the queues and rules as planned so far, and how commands end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import AppendRecords, Command, Reserve
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove, PlannedRules
from mrecordlog_async.engine.planning.view import PlannedRecord, PlannedRun, PlannedSingles, QueueView
from mrecordlog_async.errors import QueueNameError, QueueNotFoundError, RecordLogError
from mrecordlog_async.format.controls import Truncate
from mrecordlog_async.format.settings import Replacement
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.names import check_new_name
from mrecordlog_async.options import Limits

REFUSED = -1
"""Stands for a position of a refused record. Never read: the call is finished before positions are reported."""


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
        self.limited: set[str] = set()  # those that the batch limits; some may not exist any more
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
        singles = next((each for each in self.singles if name in each.distinct), None)
        view = self.views[name] = QueueView.of(queue) if singles is None else singles.view(queue)
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

    def replace(self, view: QueueView, queue: str, record: Replacement) -> None:
        """Plan another value of a queue's settings."""
        before = view.settings
        view.replace(record)
        if view.settings.options.limits_appends():
            self.limited.add(queue)
        self.plan.records.append(record)
        self.plan.more_table_bytes += max(view.settings.more_bytes() - before.more_bytes(), 0)
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
