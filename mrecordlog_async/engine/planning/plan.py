"""Planning: what a batch writes and what each of its calls returns. Pure; no file, no await.

Calls are planned one after another, in the order of the batch, and positions assigned in that order; `Admission` says
where it is decided. Later commands of a batch see what earlier ones change through a `QueueView` of each queue; memory
itself changes only after the sync. So an outcome that rests on a command of the same batch (a repeat of a record just
planned, "exists" for a queue just created) is reported after the sync as well, and fails with it.

`append`, `queue` and `consumer` decide about the commands, each kind in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from mrecordlog_async.engine.intake.commands import AppendGroup, AppendRecords, Command
from mrecordlog_async.engine.intake.controls import (
    AttachConsumer,
    ChangeRule,
    ConfigureQueue,
    CreateConsumer,
    CreateQueue,
    CreateQueues,
    DeleteConsumer,
    DeleteQueue,
    FenceHolders,
    MoveConsumer,
    SealQueue,
    Sync,
    TruncateQueue,
)
from mrecordlog_async.engine.planning import append, consumer, queue
from mrecordlog_async.engine.planning.draft import CommandOutcome, Draft, Plan
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.options import Limits


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
    draft = Draft(queues, limits, epochs_from, ids_from)
    for command in commands:
        _DECIDE[type(command)](draft, command)
        draft.plan.calls += 1
        # After the command: each batch has one at least, however much work it is.
        if draft.work >= work_max:
            break
    return draft.plan


def _plan_sync(draft: Draft, command: Sync) -> None:
    draft.plan.must_sync = True
    draft.plan.outcomes.append(CommandOutcome(command))


_DECIDE: dict[type[Command], Callable[[Draft, Any], None]] = {
    AppendGroup: append.plan_group,
    AppendRecords: append.plan_append,
    TruncateQueue: queue.plan_truncate,
    CreateQueue: queue.plan_create,
    CreateQueues: queue.plan_create_many,
    DeleteQueue: queue.plan_delete,
    Sync: _plan_sync,
    CreateConsumer: consumer.plan_create_consumer,
    DeleteConsumer: consumer.plan_delete_consumer,
    AttachConsumer: consumer.plan_attach,
    FenceHolders: consumer.plan_fence_holders,
    MoveConsumer: consumer.plan_move_consumer,
    ChangeRule: consumer.plan_change_rule,
    ConfigureQueue: queue.plan_configure,
    SealQueue: queue.plan_seal,
}
