"""Planning what changes a queue but for its records: create, delete, truncate, options and seal. Pure."""

from __future__ import annotations

from collections.abc import Collection

from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.intake.controls import (
    ConfigureQueue,
    CreateQueue,
    CreateQueues,
    DeleteQueue,
    SealQueue,
    TruncateQueue,
)
from mrecordlog_async.engine.planning.draft import CommandOutcome, Draft, QueueView
from mrecordlog_async.engine.planning.limits import too_low
from mrecordlog_async.errors import ConsumerBehindError, LogFullError, QueueExistsError, QueueSealedError
from mrecordlog_async.format.controls import (
    NO_OWNER,
    ConsumerState,
    Create,
    Delete,
    SetConsumer,
    consumer_bytes,
)
from mrecordlog_async.format.stored_options import KEEP_UNTIL_ACKNOWLEDGED, PLAIN, SEALED, StoredOptions
from mrecordlog_async.format.table import entry_bytes
from mrecordlog_async.memory.consumers import CONSUMERS_MAX

COMPARE_WORK = 0.1
"""Comparing a name with a rule takes a tenth of the time of planning and applying a log record."""


def plan_truncate(draft: Draft, call: TruncateQueue) -> None:
    """Plan a truncate, unless a consumer still needs its records."""
    view = draft.find(call.queue)
    if view is None or call.queue_id not in (None, view.id):
        draft.refuse(call, draft.not_found(call.queue), call.queue)
    elif call.position < view.first_position:  # they are truncated already: nothing is written
        draft.finish(call, view, 0)
    elif (behind := _behind(call.queue, view, call.position, call.past_consumers)) is not None:
        draft.refuse(call, behind, call.queue)
    else:
        draft.plan.outcomes.append(CommandOutcome(call, dropped_by=draft.truncate(view, call.position)))


def plan_create(draft: Draft, call: CreateQueue) -> None:
    """Plan a queue with the consumers that rules give it."""
    view = draft.find(call.queue)
    if view is not None:
        if call.exist_ok:
            draft.finish(call, view, False)
        else:
            draft.refuse(call, QueueExistsError(call.queue), call.queue)
        return
    consumers = consumers_by_rule(draft, call.queue) if draft.rules.count else ()
    error = lack_of_room(draft, 1, len(consumers)) or lack_in_queue(call.queue, 0, len(consumers))
    if error is not None:
        draft.refuse(call, error, call.queue)
        return
    create_queue(draft, call.queue, consumers, call.options)
    draft.plan.reserve = Reserve.NOTHING
    draft.plan.outcomes.append(CommandOutcome(call, True))


def plan_create_many(draft: Draft, call: CreateQueues) -> None:
    """Plan all queues of a call that do not exist, or none of them; the result is how many these are."""
    new = []
    touched = False
    for name in call.queues:
        view = draft.find(name)
        if view is None:
            new.append(name)
        elif not call.exist_ok:
            draft.refuse(call, QueueExistsError(name), name)
            return
        else:
            touched = touched or view.touched()
    if not new:  # nothing is written, and a log that is above a limit has room for that
        (draft.plan.outcomes if touched else draft.plan.immediate).append(CommandOutcome(call, 0))
        return
    consumers = [consumers_by_rule(draft, name) if draft.rules.count else () for name in new]
    error = lack_of_room(draft, len(new), sum(map(len, consumers)))
    for name, given in zip(new, consumers, strict=True):
        error = error or lack_in_queue(name, 0, len(given))
    if error is not None:
        draft.refuse(call, error, new[0])
        return
    for name, given in zip(new, consumers, strict=True):
        create_queue(draft, name, given, call.options)
    draft.plan.reserve = Reserve.NOTHING
    draft.plan.outcomes.append(CommandOutcome(call, len(new)))


def lack_of_room(draft: Draft, queues: int, consumers: int) -> LogFullError | None:
    """Return which limit this many more *queues* and *consumers* would exceed, or None."""
    if draft.queue_count + queues > draft.limits.queues:
        return LogFullError("queues", draft.queue_count, draft.limits.queues)
    if draft.consumer_count + consumers > draft.limits.consumers:
        return LogFullError("consumers", draft.consumer_count, draft.limits.consumers)
    return None


def lack_in_queue(queue: str, consumers: int, more: int) -> LogFullError | None:
    """Return why a queue with this many *consumers* may not be given *more*, or None."""
    return LogFullError("consumers", consumers, CONSUMERS_MAX, queue) if consumers + more > CONSUMERS_MAX else None


def create_queue(draft: Draft, name: str, consumers: Collection[str], options: StoredOptions | None) -> None:
    """Plan a queue that does not exist, with its *consumers*."""
    # Few lines and few calls: thousands of queues are often created at once.
    plan, queue_id = draft.plan, draft.draw_id()
    view = draft.views[name] = QueueView(None, queue_id, 0, 0)
    draft.queue_count += 1
    plan.must_sync = True
    plan.records.append(Create(queue_id, name))
    plan.more_table_bytes += entry_bytes(name)
    for consumer in consumers:
        add_consumer(draft, view, consumer, 0)
    if options is not None and options != PLAIN:
        draft.set_options(view, options)


def consumers_by_rule(draft: Draft, queue: str) -> Collection[str]:
    """Return the names of the consumers that a new queue gets."""
    found, compared = draft.rules.matching(queue)
    consumers = dict.fromkeys(rule.name for rule in found)
    draft.work += compared * COMPARE_WORK + len(consumers)
    return consumers


def add_consumer(draft: Draft, view: QueueView, name: str, position: int, owner: bytes = NO_OWNER) -> int:
    """Plan a new consumer; return its epoch."""
    state = ConsumerState(position, draft.draw_id(), owner)
    view.set_consumer(name, state)
    draft.consumer_count += 1
    draft.plan.records.append(SetConsumer(view.id, name, state))
    draft.plan.more_table_bytes += consumer_bytes(name)
    return state.epoch


def plan_delete(draft: Draft, call: DeleteQueue) -> None:
    """Plan the end of a queue, unless a consumer still needs its records."""
    view = draft.find(call.queue)
    if view is None or call.queue_id not in (None, view.id):
        draft.refuse(call, draft.not_found(call.queue), call.queue)
    elif (behind := _behind(call.queue, view, view.next_position - 1, call.past_consumers)) is not None:
        draft.refuse(call, behind, call.queue)
    else:
        draft.queue_count -= 1
        draft.consumer_count -= view.consumer_count()
        draft.views[call.queue] = None  # later commands of the batch do not find the queue
        draft.plan.records.append(Delete(view.id))
        draft.plan.outcomes.append(CommandOutcome(call, dropped_by=draft.count_removal()))
        draft.plan.must_sync = True


def plan_configure(draft: Draft, call: ConfigureQueue) -> None:
    """Plan other options, and the truncate that they may allow."""
    view = draft.find(call.queue)
    if view is None:
        draft.refuse(call, draft.not_found(call.queue), call.queue)
        return
    before, wanted = view.options, call.options
    wanted = wanted._replace(flags=wanted.flags | before.flags & SEALED)  # only deleting a queue ends its seal
    if wanted == before:
        draft.finish(call, view, None)
    elif (error := too_low(call.queue, view, wanted)) is not None:
        draft.refuse(call, error, call.queue)
    else:
        draft.set_options(view, wanted)
        call.reserve = Reserve.ALL if truncate_to_slowest(draft, view) else Reserve.NOTHING
        draft.leave(call.reserve)
        draft.plan.outcomes.append(CommandOutcome(call))


def plan_seal(draft: Draft, call: SealQueue) -> None:
    """Plan the end of appends to a queue."""
    view = draft.find(call.queue)
    if view is None or call.queue_id not in (None, view.id):
        draft.refuse(call, draft.not_found(call.queue), call.queue)
        return
    before = view.options
    if before.flags & SEALED:
        draft.refuse(call, QueueSealedError(call.queue, view.next_position), call.queue)
        return
    draft.set_options(view, before._replace(flags=before.flags | SEALED))
    draft.leave(call.reserve)
    draft.plan.outcomes.append(CommandOutcome(call, view.next_position))


def truncate_to_slowest(draft: Draft, view: QueueView) -> bool:
    """Plan the truncate that a queue which keeps records until they are acknowledged needs; return whether any.

    Where they are kept for longer than that, retention removes them.
    """
    options = view.options
    if not options.flags & KEEP_UNTIL_ACKNOWLEDGED or options.keep_at_least_ns:
        return False
    slowest = view.slowest()
    if slowest is None or slowest[0] <= view.first_position:
        return False
    draft.truncate(view, slowest[0] - 1)
    return True


def _behind(queue: str, view: QueueView, position: int, past_consumers: bool) -> ConsumerBehindError | None:
    """Return which consumer forbids removing the records up to *position*, or None."""
    slowest = view.slowest() if not past_consumers else None
    if slowest is None or slowest[0] > min(position, view.next_position - 1):
        return None
    return ConsumerBehindError(queue, slowest[1], slowest[0], position)
