"""Planning what a program declares when it opens a log: queues, their consumers, and the rules of these. Pure.

A rule says that a consumer is declared. It separates two kinds of consumers that do not exist:

| the rule | the consumer | begins |
|---|---|---|
| does not exist | is new | with the first retained record: it misses nothing that is still there |
| exists | was deleted by somebody | at the end: who deleted it gave up what it had not read |

So a rule is never stored before its consumers: one batch has both, and the queue if that is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.intake.controls import Declare, DeclaredConsumer, Recreated
from mrecordlog_async.engine.planning.consumer import RULES_MAX, change_rule, too_many_rules
from mrecordlog_async.engine.planning.draft import CommandOutcome, Draft
from mrecordlog_async.engine.planning.queue import (
    add_consumer,
    consumers_by_rule,
    create_queue,
    lack_in_queue,
    lack_of_room,
)
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.format.controls import TableRule


class _Missing(NamedTuple):
    """Things that do not exist: queues with all their consumers, consumers of queues that exist, and rules."""

    queues: Mapping[str, Mapping[str, None]]
    consumers: Sequence[DeclaredConsumer]
    rules: Sequence[TableRule]


def plan_declare(draft: Draft, call: Declare) -> None:
    """Plan what does not exist, or nothing. The result: which consumers had been deleted, and where they begin."""
    unknown = next((one.queue for one in call.consumers if not _will_exist(draft, call, one.queue)), None)
    if unknown is not None:
        draft.refuse(call, draft.not_found(unknown), unknown)
        return
    missing = _missing(draft, call)
    if (error := _lack_of_room(draft, missing)) is not None:
        draft.plan.outcomes.append(CommandOutcome(call, error=error))
        return
    for queue, consumers in missing.queues.items():
        create_queue(draft, queue, tuple(consumers), call.queues[queue])
    recreated = [again for one in missing.consumers if (again := _create_consumer(draft, one)) is not None]
    for rule in missing.rules:
        change_rule(draft, rule, removes=False)
    if missing.queues or missing.consumers or missing.rules:
        # A full disk does not keep a program from its queues: its consumers make the room.
        draft.leave(Reserve.NOTHING if missing.queues else Reserve.HALF)
    draft.plan.outcomes.append(CommandOutcome(call, recreated))


def _will_exist(draft: Draft, call: Declare, queue: str) -> bool:
    return queue in call.queues or draft.find(queue) is not None


def _missing(draft: Draft, call: Declare) -> _Missing:
    queues = {name: dict.fromkeys(consumers_by_rule(draft, name)) for name in call.queues if draft.find(name) is None}
    consumers = []
    for one in call.consumers:
        if one.queue in queues:
            queues[one.queue][one.consumer] = None
        elif (view := draft.find(one.queue)) is not None and view.consumer(one.consumer) is None:
            consumers.append(one)
    return _Missing(queues, consumers, [rule for rule in call.rules if not draft.rules.has(rule)])


def _lack_of_room(draft: Draft, missing: _Missing) -> LogFullError | None:
    if not any(missing):  # nothing is written, and a log that is above a limit has room for that
        return None
    consumers = sum(map(len, missing.queues.values())) + len(missing.consumers) + len(missing.rules)
    error = lack_of_room(draft, len(missing.queues), consumers) or _lack_in_queues(draft, missing)
    if error is None and draft.rules.count + len(missing.rules) > RULES_MAX:
        error = LogFullError("rules", draft.rules.count, RULES_MAX)
    return error or next((found for rule in missing.rules if (found := too_many_rules(draft, rule))), None)


def _lack_in_queues(draft: Draft, missing: _Missing) -> LogFullError | None:
    """Return which queue would have too many consumers, or None."""
    more = Counter(one.queue for one in missing.consumers)
    more.update({name: len(consumers) for name, consumers in missing.queues.items()})
    for name, count in more.items():
        view = draft.find(name)
        if (error := lack_in_queue(name, view.consumer_count() if view is not None else 0, count)) is not None:
            return error
    return None


def _create_consumer(draft: Draft, one: DeclaredConsumer) -> Recreated | None:
    """Plan a consumer of a queue that exists; return it if it had been deleted."""
    view = draft.find(one.queue)
    assert view is not None, "it was found before"
    was_deleted = draft.rules.has(TableRule(one.pattern, one.consumer))
    position = view.next_position if was_deleted else view.first_position
    add_consumer(draft, view, one.consumer, position)
    return Recreated(one.queue, one.consumer, position) if was_deleted else None
