"""Planning: what a batch writes and what each of its calls returns. Pure; no file, no await.

Calls are planned one after another, in the order of the batch, and positions assigned in that order; `Admission` says
where it is decided. Later commands of a batch see what earlier ones change through a `QueueView` of each queue; memory
itself changes only after the sync. So an outcome that rests on a command of the same batch (a repeat of a record just
planned, "exists" for a queue just created) is reported after the sync as well, and fails with it.

Appends are decided here; `limits` decides for queues that have options, and `queue` and `consumer` about all other
commands. A group of single records is planned in the first of these ways that its records allow; only the last two look
at each record:

| the records | planned as |
|---|---|
| are all for one queue without limits | one run |
| are all for one queue with limits or a seal | runs between the records that are refused (`plan_limited`) |
| are for several queues, some with limits or a seal | a group per such queue, and one of all the others (`_apart`) |
| are `RUN_RECORDS_MIN` per queue or more | one run per queue (`_as_runs`) |
| are for queues that no earlier command of the batch named | one MANY, as they are (`_at_once`) |
| are anything else | one MANY, record by record (`_one_by_one`) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any

from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command, Reserve
from mrecordlog_async.engine.intake.controls import (
    AttachConsumer,
    ChangeRule,
    ConfigureQueue,
    CreateConsumer,
    CreateQueue,
    CreateQueues,
    Declare,
    DeleteConsumer,
    DeleteQueue,
    FenceHolders,
    MoveConsumer,
    SealQueue,
    Sync,
    TruncateQueue,
)
from mrecordlog_async.engine.planning.consumer import (
    plan_attach,
    plan_change_rule,
    plan_create_consumer,
    plan_delete_consumer,
    plan_fence_holders,
    plan_move_consumer,
)
from mrecordlog_async.engine.planning.declared import plan_declare
from mrecordlog_async.engine.planning.draft import (
    REFUSED,
    CommandOutcome,
    Draft,
    Plan,
    PlannedMany,
    PlannedSingles,
    QueueView,
)
from mrecordlog_async.engine.planning.limits import plan_limited, refusal_of
from mrecordlog_async.engine.planning.queue import (
    plan_configure,
    plan_create,
    plan_create_many,
    plan_delete,
    plan_seal,
    plan_truncate,
)
from mrecordlog_async.errors import LogFullError, PositionInPastError, RecordsOnDiskError
from mrecordlog_async.format.settings import PLAIN
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.options import Limits

RUN_RECORDS_MIN = 4
"""Single records are planned as runs if a queue gets this many on average: runs then take less space than MANYs."""

GROUPS_AT_ONCE = 8
"""This many groups of a batch are planned without a look at each record: every later command looks through all of them.
A batch of 5,000 small groups with commands between them took 6 seconds of the event loop."""

_ID = attrgetter("id")
_NEXT_POSITION = attrgetter("next_position")


def plan(
    commands: Iterable[Command],
    queues: Queues,
    limits: Limits,
    epochs_from: int = 0,
    ids_from: int = 0,
    work_max: float = inf,
) -> Plan:
    """Decide what *commands* do, in order, to *queues*, which stay as they are.

    epochs_from: holders of consumers with a lower epoch must attach again. ids_from: the lowest id or epoch to draw.
    work_max: stop after the command with which what single calls cause reaches this many log records, such as the
    consumers that rules give to a new queue.
    """
    draft, calls = Draft(queues, limits, epochs_from, ids_from), 0
    for command in commands:
        _DECIDE[type(command)](draft, command)
        calls += 1
        # After the command: each batch has one at least, however much work it is.
        if draft.work >= work_max:
            break
    draft.plan.calls = calls
    return draft.plan


# Appends.


def plan_group(draft: Draft, group: AppendGroup) -> None:
    """Plan single records; those that cannot be stored are refused, each for itself."""
    queue = group.one_queue()
    if queue is None:
        _to_several(draft, group)
        return
    view = draft.find(queue)
    if view is None:
        draft.refuse(group, draft.not_found(queue), queue)
    elif view.settings is not PLAIN and view.settings.options.limits_appends():
        plan_limited(draft, group, queue, view)
    elif view.next_position + len(group.payloads) - 1 > POSITION_MAX:
        draft.refuse(group, LogFullError("positions", view.next_position, POSITION_MAX + 1), queue)
    else:
        first = view.next_position
        draft.store(view, first, group.payloads)
        draft.plan.outcomes.append(CommandOutcome(group, first))


def _to_several(draft: Draft, group: AppendGroup) -> None:
    """Plan single records of several queues: as one MANY, or as runs where a queue gets many of them."""
    distinct = set(group.queues)
    # Both sets: an earlier command of the batch may have given a queue its first limit.
    limited = (distinct & draft.queues.limited) | (distinct & draft.limited)
    if limited:
        _apart(draft, group, limited)
    elif len(distinct) * RUN_RECORDS_MIN <= len(group.queues):
        _as_runs(draft, group)
    elif not _at_once(draft, group, distinct):
        _one_by_one(draft, group)


def _at_once(draft: Draft, group: AppendGroup, distinct: set[str]) -> bool:
    """Plan records without a look at each, if all their queues exist as they are in memory; return whether so."""
    if len(draft.singles) == GROUPS_AT_ONCE:
        return False
    if not all(map(distinct.isdisjoint, [draft.views, *(singles.distinct for singles in draft.singles)])):
        return False  # an earlier command of the batch names one of them
    queues = draft.queues.get_all(group.queues)
    if queues is None:
        return False
    positions = list(map(_NEXT_POSITION, queues)) if len(distinct) == len(queues) else _next_positions(queues)
    if max(positions) > POSITION_MAX:
        return False
    draft.plan.records.append(PlannedMany(list(map(_ID, queues)), positions, group.payloads))
    draft.plan.reserve = Reserve.NOTHING
    draft.plan.outcomes.append(CommandOutcome(group, positions))
    draft.singles.append(PlannedSingles(group.queues, distinct, group.payloads))
    return True


def _one_by_one(draft: Draft, group: AppendGroup) -> None:
    """Plan records as one MANY, and refuse those that cannot be stored."""
    views = draft.views
    ids: list[int] = []
    stored: list[bytes] = []
    positions: list[int] = []
    for queue, payload in zip(group.queues, group.payloads, strict=True):
        view = views.get(queue) or draft.find(queue)
        if view is None or view.next_position > POSITION_MAX:
            _refuse_single(draft, group.one(len(positions)), view)
            positions.append(REFUSED)
            continue
        positions.append(view.add_single(payload))
        ids.append(view.id)
        stored.append(payload)
    if stored:
        given = positions if len(stored) == len(positions) else [each for each in positions if each != REFUSED]
        draft.plan.records.append(PlannedMany(ids, given, stored))
        draft.plan.reserve = Reserve.NOTHING
    draft.plan.outcomes.append(CommandOutcome(group, positions))


def _as_runs(draft: Draft, group: AppendGroup) -> None:
    """Plan single records of a few queues: those of one queue become one run."""
    runs: dict[str, list[bytes]] = {}
    positions: list[int] = []
    for queue, payload in zip(group.queues, group.payloads, strict=True):
        view = draft.views.get(queue) or draft.find(queue)
        if view is None or view.next_position > POSITION_MAX:
            _refuse_single(draft, group.one(len(positions)), view)
            positions.append(REFUSED)
            continue
        positions.append(view.next_position)
        payloads = runs.get(queue)
        if payloads is None:
            runs[queue] = payloads = []
            draft.store(view, view.next_position, payloads)
            view.count_again()  # the payloads follow
        payloads.append(payload)
        view.next_position += 1
    draft.plan.outcomes.append(CommandOutcome(group, positions))


def _refuse_single(draft: Draft, single: AppendGroup, view: QueueView | None) -> None:
    """Refuse one record of a group; the others are planned."""
    queue = single.queues[0]
    if view is None:
        error = draft.not_found(queue)
    else:
        error = LogFullError("positions", view.next_position, POSITION_MAX + 1)
    draft.refuse(single, error, queue)


def _apart(draft: Draft, group: AppendGroup, limited: set[str]) -> None:
    """Plan the records of queues with options one by one, and the other records of the group as usual."""
    parts: dict[str | None, AppendGroup] = {}
    # Records of one queue stay in order. Those of several queues have no order among each other.
    for queue, payload, future in zip(group.queues, group.payloads, group.futures, strict=True):
        part = parts.setdefault(queue if queue in limited else None, AppendGroup())
        part.queues.append(queue)
        part.payloads.append(payload)
        part.futures.append(future)
    for part in parts.values():
        plan_group(draft, part)


def _next_positions(queues: Sequence[Queue]) -> list[int]:
    """Return a position for each of *queues*, in which a queue may stand more than once."""
    following: dict[int, int] = {}
    positions = []
    for queue in queues:
        position = following.get(queue.id, queue.next_position)
        following[queue.id] = position + 1
        positions.append(position)
    return positions


def plan_append(draft: Draft, call: AppendRecords) -> None:
    """Plan the records of one call: stored, recognized as a repeat, or refused together."""
    view, records = draft.find(call.queue), len(call.payloads)
    if view is None:
        draft.refuse(call, draft.not_found(call.queue), call.queue)
        return
    first = view.next_position if call.position is None else call.position
    if not records:
        draft.finish(call, view, None)
    elif first + records - 1 > POSITION_MAX:
        draft.refuse(call, LogFullError("positions", first, POSITION_MAX + 1), call.queue)
    elif first >= view.next_position:
        refusal = refusal_of(draft, view, call.queue, call.payloads) if view.settings is not PLAIN else None
        if refusal is not None:
            draft.refuse(call, refusal, call.queue)
            return
        draft.store(view, first, call.payloads)
        draft.plan.outcomes.append(CommandOutcome(call, first + records - 1))
    else:
        _plan_repeat(draft, view, call, first)


def _plan_repeat(draft: Draft, view: QueueView, call: AppendRecords, first: int) -> None:
    """Plan records below the next position. Limits do not matter: a repeat needs no room, anything else is refused."""
    try:
        repeated = view.repeats(first, call.payloads, call.stored)
    except RecordsOnDiskError:
        draft.plan.on_disk.append(call)
        return
    if repeated is True:
        draft.finish(call, view, None)  # nothing is written; the caller gets None
        if view.touched():
            draft.plan.duplicates_within += 1
        else:
            draft.plan.duplicates += 1
    else:
        error = PositionInPastError(call.queue, first, view.next_position, outcome_unknown=repeated is None)
        draft.refuse(call, error, call.queue)


def _plan_sync(draft: Draft, command: Sync) -> None:
    draft.plan.must_sync = True
    draft.plan.outcomes.append(CommandOutcome(command))


_DECIDE: dict[type[Command], Callable[[Draft, Any], None]] = {
    AppendGroup: plan_group,
    AppendRecords: plan_append,
    TruncateQueue: plan_truncate,
    CreateQueue: plan_create,
    CreateQueues: plan_create_many,
    DeleteQueue: plan_delete,
    Sync: _plan_sync,
    CreateConsumer: plan_create_consumer,
    DeleteConsumer: plan_delete_consumer,
    AttachConsumer: plan_attach,
    FenceHolders: plan_fence_holders,
    MoveConsumer: plan_move_consumer,
    ChangeRule: plan_change_rule,
    Declare: plan_declare,
    ConfigureQueue: plan_configure,
    SealQueue: plan_seal,
}
