"""Planning consumers: create, delete, attach, acknowledge, seek, and the rules for new queues. Pure.

Whatever moves the slowest consumer of a queue that keeps records until they are acknowledged carries the truncate in
its batch, after its own record. Creating a consumer moves none, so it never removes records: others may follow.
"""

from __future__ import annotations

from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.intake.controls import (
    AttachConsumer,
    Attached,
    ChangeRule,
    CreateConsumer,
    DeleteConsumer,
    FenceHolders,
    MoveConsumer,
)
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.engine.planning.draft import CommandOutcome, Draft, QueueView
from mrecordlog_async.engine.planning.queue import add_consumer, lack_in_queue, lack_of_room, truncate_to_slowest
from mrecordlog_async.errors import (
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    LogFullError,
    PositionAheadError,
    PositionTruncatedError,
    RecordLogError,
)
from mrecordlog_async.format.controls import (
    NO_OWNER,
    ConsumerDelete,
    ConsumerRule,
    ConsumerState,
    SetConsumer,
    TableRule,
    rule_bytes,
)
from mrecordlog_async.memory.settings import owner_text
from mrecordlog_async.patterns import beginning_of

RULES_MAX = 10_000
"""Rules of a log."""

STARRED_RULES_MAX = 1_000
"""Rules whose patterns begin with a star: every new queue is compared with all of them, which takes 0.3 ms."""


def plan_create_consumer(draft: Draft, call: CreateConsumer) -> None:
    """Plan a consumer without a holder."""
    view = draft.find(call.queue)
    if view is None or call.queue_id not in (None, view.id):
        draft.refuse(call, draft.not_found(call.queue), call.queue)
    elif view.consumer(call.consumer) is not None:
        if call.exist_ok:
            draft.finish(call, view, False)
        else:
            draft.refuse(call, ConsumerExistsError(call.queue, call.consumer), call.queue)
    elif (full := _lack_of_room(draft, call.queue, view)) is not None:
        draft.refuse(call, full, call.queue)
    else:
        add_consumer(draft, view, call.consumer, _clamped(view, call.start))
        draft.leave(Reserve.NOTHING)
        draft.plan.must_sync = True
        draft.plan.outcomes.append(CommandOutcome(call, True))


def plan_attach(draft: Draft, call: AttachConsumer) -> None:
    """Plan a new holder of a consumer."""
    view = draft.find(call.queue)
    if view is None:
        draft.refuse(call, draft.not_found(call.queue), call.queue)
        return
    state = view.consumer(call.consumer)
    if state is None:
        _attach_to_new(draft, call, view)
    # Without an owner anybody may attach: the new epoch fences off the holder before.
    elif state.owner not in (NO_OWNER, call.owner) and not call.take_over:
        owner = owner_text(state.owner) or ""
        draft.refuse(call, ConsumerOwnedError(call.queue, call.consumer, owner), call.queue)
    else:
        state = ConsumerState(state.position, draft.draw_id(), call.owner)
        _move(draft, view, call.consumer, state)
        draft.leave(Reserve.HALF)
        draft.plan.must_sync = True
        draft.plan.outcomes.append(CommandOutcome(call, Attached(view.id, state.epoch, state.position)))


def _attach_to_new(draft: Draft, call: AttachConsumer, view: QueueView) -> None:
    """Plan a consumer with its first holder."""
    if not call.create:
        draft.refuse(call, ConsumerNotFoundError(call.queue, call.consumer), call.queue)
    elif (full := _lack_of_room(draft, call.queue, view)) is not None:
        draft.refuse(call, full, call.queue)
    else:
        position = _clamped(view, call.start)
        epoch = add_consumer(draft, view, call.consumer, position, call.owner)
        draft.leave(Reserve.NOTHING)
        draft.plan.must_sync = True
        draft.plan.outcomes.append(CommandOutcome(call, Attached(view.id, epoch, position)))


def plan_fence_holders(draft: Draft, call: FenceHolders) -> None:
    """Plan a new epoch for each consumer whose holder must attach again: the same one, since nobody holds it."""
    held = [
        (view, name, state)
        for queue in draft.queues
        if queue.consumers and (view := draft.find(queue.name)) is not None
        for name in queue.consumers
        if (state := view.consumer(name)) is not None and state.epoch < draft.epochs_from
    ]
    if held:
        epoch = draft.draw_id()
        for view, name, state in held:
            _move(draft, view, name, state._replace(epoch=epoch))
        draft.leave(Reserve.HALF)
        draft.plan.must_sync = True
    draft.plan.outcomes.append(CommandOutcome(call))


def plan_delete_consumer(draft: Draft, call: DeleteConsumer) -> None:
    """Plan the end of a consumer, which may have kept records."""
    view = draft.find(call.queue)
    if view is None or call.queue_id not in (None, view.id):
        draft.refuse(call, draft.not_found(call.queue), call.queue)
    elif view.consumer(call.consumer) is None:
        draft.refuse(call, ConsumerNotFoundError(call.queue, call.consumer), call.queue)
    else:
        view.delete_consumer(call.consumer)
        draft.consumer_count -= 1
        draft.plan.records.append(ConsumerDelete(view.id, call.consumer))
        truncate_to_slowest(draft, view)
        draft.plan.must_sync = True
        draft.plan.outcomes.append(CommandOutcome(call))


def plan_move_consumer(draft: Draft, call: MoveConsumer) -> None:
    """Plan an acknowledgement, a seek of the holder, or a move of an operator."""
    view = draft.find(call.queue)
    if view is None or call.queue_id not in (None, view.id):
        draft.refuse(call, draft.not_found(call.queue), call.queue)
        return
    state = view.consumer(call.consumer)
    error = _refused_move(draft, call, view, state)
    if error is not None:
        draft.refuse(call, error, call.queue)
        return
    assert state is not None
    before = state.position
    if call.epoch is None:
        state = state._replace(epoch=draft.draw_id())
        draft.plan.must_sync = True
    elif call.position == state.position or (call.position < state.position and not call.seeks):
        draft.finish(call, view, state.position)  # it stands there, or further on: nothing is written
        return
    _move(draft, view, call.consumer, state._replace(position=call.position))
    draft.plan.moves.append(ConsumerMove(view.id, call.consumer, before, call.position, call.seeks))
    # After the record of the move: a replay sees the consumer past the records before they go.
    truncates = truncate_to_slowest(draft, view)
    if call.epoch is None:
        call.reserve = Reserve.HALF
    else:
        call.reserve = Reserve.ALL if truncates else Reserve.NOTHING
    draft.leave(call.reserve)
    draft.plan.outcomes.append(CommandOutcome(call, call.position))


def _refused_move(
    draft: Draft, call: MoveConsumer, view: QueueView, state: ConsumerState | None
) -> RecordLogError | None:
    """Return why a consumer must not move, or None."""
    if state is None:
        return ConsumerNotFoundError(call.queue, call.consumer)
    if call.epoch is not None and (call.epoch != state.epoch or call.epoch < draft.epochs_from):
        return ConsumerFencedError(call.queue, call.consumer, call.epoch, state.epoch)
    if call.position > view.next_position:
        # An acknowledgement names the last record that it covers.
        return PositionAheadError(call.queue, call.position - (not call.seeks), view.next_position)
    if call.seeks and call.position < view.first_position:
        return PositionTruncatedError(call.queue, call.position, view.first_position)
    return None


def _move(draft: Draft, view: QueueView, name: str, state: ConsumerState) -> None:
    view.set_consumer(name, state)
    draft.plan.records.append(SetConsumer(view.id, name, state))


# Rules. They belong to no queue, so their outcomes always wait for the batch.


def plan_change_rule(draft: Draft, call: ChangeRule) -> None:
    """Plan a rule's creation or removal; what exists already, or does not exist, is reported."""
    rule = TableRule(call.pattern, call.consumer)
    if call.removes == draft.rules.has(rule):
        _plan_rule(draft, call, rule)
    elif call.removes:
        draft.plan.outcomes.append(CommandOutcome(call, error=ConsumerNotFoundError(call.pattern, call.consumer)))
    elif call.exist_ok:
        draft.plan.outcomes.append(CommandOutcome(call, False))
    else:
        draft.plan.outcomes.append(CommandOutcome(call, error=ConsumerExistsError(call.pattern, call.consumer)))


def _plan_rule(draft: Draft, call: ChangeRule, rule: TableRule) -> None:
    """Plan a rule's creation or removal."""
    error = too_many_rules(draft, rule) if not call.removes else None
    if error is not None:
        draft.plan.outcomes.append(CommandOutcome(call, error=error))
        return
    change_rule(draft, rule, removes=call.removes)
    draft.leave(call.reserve)
    draft.plan.outcomes.append(CommandOutcome(call, True))


def change_rule(draft: Draft, rule: TableRule, *, removes: bool) -> None:
    """Plan that *rule*, which does not exist, is added, or that one which does is removed."""
    draft.rules.change(rule, removes=removes)
    draft.consumer_count += -1 if removes else 1
    draft.plan.records.append(ConsumerRule(*rule, removes=removes))
    draft.plan.more_table_bytes += 0 if removes else rule_bytes(rule)
    draft.plan.must_sync = True


def too_many_rules(draft: Draft, rule: TableRule) -> LogFullError | None:
    """Return why there must not be one rule more, or None."""
    if draft.rules.count >= RULES_MAX:
        return LogFullError("rules", draft.rules.count, RULES_MAX)
    starred = draft.rules.starred()
    if beginning_of(rule.pattern) or starred < STARRED_RULES_MAX:
        return lack_of_room(draft, 0, 1)
    return LogFullError("starred_rules", starred, STARRED_RULES_MAX)


def _lack_of_room(draft: Draft, queue: str, view: QueueView) -> LogFullError | None:
    """Return why *queue* must not be given one consumer more, or None."""
    return lack_of_room(draft, 0, 1) or lack_in_queue(queue, view.consumer_count(), 1)


def _clamped(view: QueueView, start: int | None) -> int:
    """Return where a new consumer begins."""
    return view.first_position if start is None else min(max(start, view.first_position), view.next_position)
