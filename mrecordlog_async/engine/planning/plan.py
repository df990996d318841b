"""Planning: what a batch writes and what each of its calls returns. Pure; no file, no await.

Calls are planned one after another, in the order of the batch, and positions assigned in that order; `Admission` says
where it is decided. Later commands of a batch see what earlier ones change through a `QueueView` of each queue; memory
itself changes only after the sync. So an outcome that rests on a command of the same batch (a repeat of a record just
planned, "exists" for a queue just created) is reported after the sync as well, and fails with it.

Appends are decided here; `limits` decides for queues that have options, and `queue` and `consumer` about all other
commands. A group of single records is planned in one of three ways:

| the records are for | planned as |
|---|---|
| one queue without limits | one run |
| one queue with limits or a seal, or at its last positions | runs between the refused records (`plan_limited`) |
| several queues | one MANY, or one run per queue if they get `RUN_RECORDS_MIN` or more on average |

Records for several queues are split if some of these do not exist, have limits, or were named by an earlier command of
the batch that was no such group: what is for each of them is planned as for one queue (`_split`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    CommandOutcome,
    Draft,
    Plan,
    PlannedMany,
    PlannedRecord,
    PlannedRun,
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
from mrecordlog_async.format.stored_options import PLAIN
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
    commands: Sequence[Command],
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
    if len(commands) == 1 and type(commands[0]) is AppendGroup:
        usual = _usual(commands[0], queues)
        if usual is not None:
            return usual
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


def _usual(group: AppendGroup, queues: Queues) -> Plan | None:
    """Do what `plan_group` does for a batch of one group for one plain queue, in a tenth of the time; else None."""
    name = group.one_queue()
    queue = queues.get(name) if name is not None else None
    if queue is None or queue.options is not PLAIN:
        return None
    first, payloads = queue.next_position, group.payloads
    if first + len(payloads) - 1 > POSITION_MAX:
        return None
    records: list[PlannedRecord] = [PlannedRun(queue.id, first, payloads)]
    return Plan(records, [CommandOutcome(group, first)], reserve=Reserve.NOTHING, calls=1)


def plan_group(draft: Draft, group: AppendGroup) -> None:
    """Plan single records; those that cannot be stored are refused, each for itself."""
    queue = group.one_queue()
    if queue is None:
        _plan_several(draft, group)
        return
    view = draft.find(queue)
    if view is None:
        draft.refuse(group, draft.not_found(queue), queue)
    elif _needs_a_look(view, len(group.payloads)):
        plan_limited(draft, group, queue, view)
    else:
        draft.plan.outcomes.append(CommandOutcome(group, view.next_position))
        draft.store(view, view.next_position, group.payloads)


def _needs_a_look(view: QueueView, records: int) -> bool:
    """Return whether some of so many records may be refused."""
    if view.next_position + records - 1 > POSITION_MAX:
        return True
    return view.options.limits_appends()


def _plan_several(draft: Draft, group: AppendGroup) -> None:
    """Plan single records of several queues: together, but for those of queues that need a look."""
    distinct = set(group.queues)
    apart = _to_be_looked_at(draft, distinct)
    queues = draft.queues.get_all(group.queues) if not apart else None
    if queues is None:
        _split(draft, group, apart.union(name for name in distinct if draft.queues.get(name) is None))
        return
    is_plain = len(distinct) == len(queues) and not draft.singles
    positions = list(map(_NEXT_POSITION, queues)) if is_plain else _next_positions(draft, queues)
    if max(positions) > POSITION_MAX:
        _split(draft, group, {queue.name for queue, at in zip(queues, positions, strict=True) if at > POSITION_MAX})
        return
    if len(distinct) * RUN_RECORDS_MIN <= len(queues):
        _as_runs(draft, group)
    else:
        many = PlannedMany(list(map(_ID, queues)), positions, group.payloads)
        draft.plan.records.append(many)
        draft.singles.append(PlannedSingles(group.queues, distinct, many))
    draft.plan.reserve = Reserve.NOTHING
    draft.plan.outcomes.append(CommandOutcome(group, positions))


def _to_be_looked_at(draft: Draft, names: set[str]) -> set[str]:
    """Return which of *names* have limits, or were looked at before; all, once many groups were planned without."""
    if len(draft.singles) == GROUPS_AT_ONCE:
        return names
    return names & draft.queues.limited | names & draft.views.keys()


def _as_runs(draft: Draft, group: AppendGroup) -> None:
    """Plan records of a few queues, all of which exist: those of one queue become one run."""
    runs: dict[str, list[bytes]] = {}
    for queue, payload in zip(group.queues, group.payloads, strict=True):
        runs.setdefault(queue, []).append(payload)
    for queue, payloads in runs.items():
        view = draft.find(queue)
        assert view is not None, "it takes records"
        draft.store(view, view.next_position, payloads)


def _split(draft: Draft, group: AppendGroup, apart: set[str]) -> None:
    """Plan the records of each queue in *apart* by themselves, and the others of the group together."""
    parts: dict[str | None, AppendGroup] = {}
    # Records of one queue stay in order. Those of several queues have no order among each other.
    for queue, payload, future in zip(group.queues, group.payloads, group.futures, strict=True):
        part = parts.setdefault(queue if queue in apart else None, AppendGroup())
        part.queues.append(queue)
        part.payloads.append(payload)
        part.futures.append(future)
    for part in parts.values():
        plan_group(draft, part)


def _next_positions(draft: Draft, queues: Sequence[Queue]) -> list[int]:
    """Return a position for each of *queues*, which may stand there, and in earlier groups, more than once."""
    following: dict[int, int] = {}
    for singles in draft.singles:
        following.update(zip(singles.many.ids, map((1).__add__, singles.many.positions), strict=True))
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
        refusal = refusal_of(draft, view, call.queue, call.payloads) if view.options is not PLAIN else None
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
