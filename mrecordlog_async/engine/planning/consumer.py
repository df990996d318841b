"""Planning consumers: create, delete, attach, acknowledge, seek, and the rules for new queues. Pure.

Whatever moves the slowest consumer of a queue that keeps records until they are acknowledged carries the truncate in
its batch, after its own record. Creating a consumer moves none, so it never removes records: others may follow.
"""

from __future__ import annotations

from mrecordlog_async.engine.intake.setting_commands import (
    AttachConsumer,
    Attached,
    ChangeRule,
    CreateConsumer,
    DeleteConsumer,
    FenceHolders,
    MoveConsumer,
)
from mrecordlog_async.engine.planning.draft import Outcome
from mrecordlog_async.engine.planning.queue import QueuePlanner
from mrecordlog_async.engine.planning.view import QueueView
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
from mrecordlog_async.format import record as log_record
from mrecordlog_async.format.record import NO_OWNER, ConsumerState
from mrecordlog_async.format.table import TableRule, rule_bytes
from mrecordlog_async.memory.settings import owner_text
from mrecordlog_async.patterns import beginning_of

STARRED_RULES_MAX = 1_000
"""Rules whose patterns begin with a star: every new queue is compared with all of them, which takes 0.3 ms."""


class ConsumerPlanner(QueuePlanner):
    """Plans changes of consumers."""

    def _create_consumer(self, call: CreateConsumer) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        elif view.consumer(call.consumer) is not None:
            if call.exist_ok:
                self._finish(call, view, False)
            else:
                self._refuse(call, ConsumerExistsError(call.queue, call.consumer), call.queue)
        elif self._consumer_count >= self._limits.consumers:
            self._refuse(call, self._too_many_consumers(), call.queue)
        else:
            self._add_consumer(view, call.consumer, _clamped(view, call.start))
            self.plan.needs_space = self.plan.must_sync = True
            self.plan.outcomes.append(Outcome(call, True))

    def _attach(self, call: AttachConsumer) -> None:
        view = self._find(call.queue)
        if view is None:
            self._refuse(call, self._not_found(call.queue), call.queue)
            return
        state = view.consumer(call.consumer)
        if state is None:
            self._attach_to_new(call, view)
        elif state.owner not in (NO_OWNER, call.owner) and not call.take_over:
            owner = owner_text(state.owner) or ""
            self._refuse(call, ConsumerOwnedError(call.queue, call.consumer, owner), call.queue)
        else:
            state = ConsumerState(state.position, self._draw_id(), call.owner)
            self._move(view, call.consumer, state)
            self.plan.attaches = self.plan.must_sync = True
            self.plan.outcomes.append(Outcome(call, Attached(view.id, state.epoch, state.position)))

    def _attach_to_new(self, call: AttachConsumer, view: QueueView) -> None:
        """Plan a consumer with its first holder."""
        if not call.create:
            self._refuse(call, ConsumerNotFoundError(call.queue, call.consumer), call.queue)
        elif self._consumer_count >= self._limits.consumers:
            self._refuse(call, self._too_many_consumers(), call.queue)
        else:
            position = _clamped(view, call.start)
            epoch = self._add_consumer(view, call.consumer, position, call.owner)
            self.plan.needs_space = self.plan.must_sync = True
            self.plan.outcomes.append(Outcome(call, Attached(view.id, epoch, position)))

    def _fence_holders(self, call: FenceHolders) -> None:
        """Plan a new epoch for each consumer whose holder must attach again: the same one, since nobody holds it."""
        held = [
            (view, name, state)
            for queue in self._queues
            if queue.consumers and (view := self._find(queue.name)) is not None
            for name in queue.consumers
            if (state := view.consumer(name)) is not None and state.epoch < self._epochs_from
        ]
        if held:
            epoch = self._draw_id()
            for view, name, state in held:
                self._move(view, name, state._replace(epoch=epoch))
            self.plan.attaches = self.plan.must_sync = True
        self.plan.outcomes.append(Outcome(call))

    def _delete_consumer(self, call: DeleteConsumer) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        elif view.consumer(call.consumer) is None:
            self._refuse(call, ConsumerNotFoundError(call.queue, call.consumer), call.queue)
        else:
            view.delete_consumer(call.consumer)
            self._consumer_count -= 1
            self.plan.records.append(log_record.ConsumerDelete(view.id, call.consumer))
            self._truncate_to_slowest(view)
            self.plan.must_sync = True
            self.plan.outcomes.append(Outcome(call))

    def _move_consumer(self, call: MoveConsumer) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
            return
        state = view.consumer(call.consumer)
        error = self._refused_move(call, view, state)
        if error is not None:
            self._refuse(call, error, call.queue)
            return
        assert state is not None
        if call.epoch is None:
            state = state._replace(epoch=self._draw_id())
            self.plan.attaches = self.plan.must_sync = True
        elif call.position == state.position or (call.position < state.position and not call.seeks):
            self._finish(call, view, state.position)  # it stands there, or further on: nothing is written
            return
        self._move(view, call.consumer, state._replace(position=call.position))
        call.frees_space = self._truncate_to_slowest(view) or call.epoch is None
        self.plan.needs_space |= not call.frees_space
        self.plan.outcomes.append(Outcome(call, call.position))

    def _refused_move(self, call: MoveConsumer, view: QueueView, state: ConsumerState | None) -> RecordLogError | None:
        """Return why a consumer must not move, or None."""
        if state is None:
            return ConsumerNotFoundError(call.queue, call.consumer)
        if call.epoch is not None and (call.epoch != state.epoch or call.epoch < self._epochs_from):
            return ConsumerFencedError(call.queue, call.consumer, call.epoch, state.epoch)
        if call.position > view.next_position:
            # An acknowledgement names the last record that it covers.
            return PositionAheadError(call.queue, call.position - (not call.seeks), view.next_position)
        if call.seeks and call.position < view.first_position:
            return PositionTruncatedError(call.queue, call.position, view.first_position)
        return None

    def _move(self, view: QueueView, name: str, state: ConsumerState) -> None:
        view.set_consumer(name, state)
        self.plan.records.append(log_record.Consumer(view.id, name, state))

    # Rules. They belong to no queue, so their outcomes always wait for the batch.

    def _change_rule(self, call: ChangeRule) -> None:
        rule = TableRule(call.pattern, call.consumer)
        if call.removes == self._rules.has(rule):
            self._plan_rule(call, rule)
        elif call.removes:
            self.plan.outcomes.append(Outcome(call, error=ConsumerNotFoundError(call.pattern, call.consumer)))
        elif call.exist_ok:
            self.plan.outcomes.append(Outcome(call, False))
        else:
            self.plan.outcomes.append(Outcome(call, error=ConsumerExistsError(call.pattern, call.consumer)))

    def _plan_rule(self, call: ChangeRule, rule: TableRule) -> None:
        """Plan a rule's creation or removal."""
        error = self._too_many_rules(rule) if not call.removes else None
        if error is not None:
            self.plan.outcomes.append(Outcome(call, error=error))
            return
        self._rules.change(rule, removes=call.removes)
        self._consumer_count += -1 if call.removes else 1
        self.plan.records.append(log_record.ConsumerRule(*rule, removes=call.removes))
        self.plan.more_table_bytes += 0 if call.removes else rule_bytes(rule)
        self.plan.needs_space |= not call.removes
        self.plan.must_sync = True
        self.plan.outcomes.append(Outcome(call, True))

    def _too_many_rules(self, rule: TableRule) -> LogFullError | None:
        """Return why there must not be one rule more, or None."""
        if self._consumer_count >= self._limits.consumers:
            return self._too_many_consumers()
        starred = self._rules.starred()
        if beginning_of(rule.pattern) or starred < STARRED_RULES_MAX:
            return None
        return LogFullError("rules", starred, STARRED_RULES_MAX)

    def _too_many_consumers(self) -> LogFullError:
        return LogFullError("consumers", self._consumer_count, self._limits.consumers)


def _clamped(view: QueueView, start: int | None) -> int:
    """Return where a new consumer begins."""
    return view.first_position if start is None else min(max(start, view.first_position), view.next_position)
