"""Planning: what a batch writes and what each of its calls returns. Pure; no file, no await.

Positions are assigned in arrival order. Later commands of a batch see what earlier ones change through a `QueueView` of
each queue; memory itself changes only after the sync. So an outcome that rests on a command of the same batch (a repeat
of a record just planned, "exists" for a queue just created) is reported after the sync as well, and fails with it.

`append`, `queue` and `consumer` decide about the commands, each kind in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from mrecordlog_async.engine.intake.commands import (
    Append,
    AppendGroup,
    Command,
    CreateQueue,
    DeleteQueue,
    Sync,
    TruncateQueue,
)
from mrecordlog_async.engine.intake.setting_commands import (
    AttachConsumer,
    ChangeRule,
    ConfigureQueue,
    CreateConsumer,
    DeleteConsumer,
    FenceHolders,
    MoveConsumer,
    SealQueue,
)
from mrecordlog_async.engine.planning.append import AppendPlanner
from mrecordlog_async.engine.planning.consumer import ConsumerPlanner
from mrecordlog_async.engine.planning.draft import Outcome, Plan
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
    planner = _Planner(queues, limits, epochs_from, ids_from)
    for command in commands:
        _DECIDE[type(command)](planner, command)
        planner.plan.calls += 1
        if planner.work >= work_max:
            break
    return planner.plan


class _Planner(AppendPlanner, ConsumerPlanner):
    """Builds one plan."""

    def _sync(self, command: Sync) -> None:
        self.plan.must_sync = True
        self.plan.outcomes.append(Outcome(command))


_DECIDE: dict[type[Command], Callable[[_Planner, Any], None]] = {
    AppendGroup: _Planner._append_group,
    Append: _Planner._append,
    TruncateQueue: _Planner._truncate,
    CreateQueue: _Planner._create,
    DeleteQueue: _Planner._delete,
    Sync: _Planner._sync,
    CreateConsumer: _Planner._create_consumer,
    DeleteConsumer: _Planner._delete_consumer,
    AttachConsumer: _Planner._attach,
    FenceHolders: _Planner._fence_holders,
    MoveConsumer: _Planner._move_consumer,
    ChangeRule: _Planner._change_rule,
    ConfigureQueue: _Planner._configure,
    SealQueue: _Planner._seal,
}
