"""Planning what changes a queue but for its records: create, delete, truncate, options and seal. Pure."""

from __future__ import annotations

from collections.abc import Collection

from mrecordlog_async.engine.intake.commands import CreateQueue, DeleteQueue, TruncateQueue
from mrecordlog_async.engine.intake.setting_commands import ConfigureQueue, SealQueue
from mrecordlog_async.engine.planning.draft import Outcome, PlannerBase
from mrecordlog_async.engine.planning.view import QueueView
from mrecordlog_async.errors import (
    ConsumerBehindError,
    LogFullError,
    QueueExistsError,
    QueueOptionsError,
    QueueSealedError,
)
from mrecordlog_async.format import record as log_record
from mrecordlog_async.format.record import NO_OWNER
from mrecordlog_async.format.stored_options import (
    DEFAULT_OPTIONS,
    DROP_OLDEST,
    KEEP_UNTIL_ACKNOWLEDGED,
    SEALED,
    StoredOptions,
)
from mrecordlog_async.format.table import consumer_bytes, entry_bytes

COMPARE_WORK = 0.1
"""Comparing a name with a rule takes a tenth of the time of planning and applying a log record."""


class QueuePlanner(PlannerBase):
    """Plans changes of queues."""

    def _truncate(self, call: TruncateQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        elif call.position < view.first_position:
            self._finish(call, view, 0)
        elif (behind := _behind(call.queue, view, call.position, call.past_consumers)) is not None:
            self._refuse(call, behind, call.queue)
        else:
            self.plan.outcomes.append(Outcome(call, dropped_by=self._truncate_view(view, call.position)))

    def _create(self, call: CreateQueue) -> None:
        view = self._find(call.queue)
        if view is not None:
            if call.exist_ok:
                self._finish(call, view, False)
            else:
                self._refuse(call, QueueExistsError(call.queue), call.queue)
            return
        if self._queue_count >= self._limits.queues:
            self._refuse(call, LogFullError("queues", self._queue_count, self._limits.queues), call.queue)
            return
        consumers = self._consumers_by_rule(call.queue) if self._rules.count else ()
        if self._consumer_count + len(consumers) > self._limits.consumers:
            self._refuse(call, LogFullError("consumers", self._consumer_count, self._limits.consumers), call.queue)
        else:
            # Few lines and few calls: thousands of queues are often created at once.
            queue_id = self._draw_id()
            view = self._views[call.queue] = QueueView(None, queue_id, 0, 0)
            self._queue_count += 1
            plan = self.plan
            plan.records.append(log_record.Create(queue_id, call.queue))
            plan.more_table_bytes += entry_bytes(call.queue)
            for name in consumers:
                self._add_consumer(view, name, 0)
            if call.options is not None and call.options != DEFAULT_OPTIONS:
                self._set_options(view, call.queue, call.options)
            plan.outcomes.append(Outcome(call, True))
            plan.needs_space = plan.must_sync = True

    def _consumers_by_rule(self, queue: str) -> Collection[str]:
        """Return the names of the consumers that a new queue gets."""
        found, compared = self._rules.matching(queue)
        consumers = dict.fromkeys(rule.name for rule in found)
        self.work += compared * COMPARE_WORK + len(consumers)
        return consumers

    def _add_consumer(self, view: QueueView, name: str, position: int, owner: bytes = NO_OWNER) -> int:
        """Plan a new consumer; return its epoch."""
        state = log_record.ConsumerState(position, self._draw_id(), owner)
        view.set_consumer(name, state)
        self._consumer_count += 1
        self.plan.records.append(log_record.Consumer(view.id, name, state))
        self.plan.more_table_bytes += consumer_bytes(name)
        return state.epoch

    def _delete(self, call: DeleteQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
        elif (behind := _behind(call.queue, view, view.next_position - 1, call.past_consumers)) is not None:
            self._refuse(call, behind, call.queue)
        else:
            self._queue_count -= 1
            self._consumer_count -= view.consumer_count()
            self._views[call.queue] = None  # later commands of the batch do not find the queue
            self.plan.records.append(log_record.Delete(view.id))
            self.plan.outcomes.append(Outcome(call, dropped_by=self._removal()))
            self.plan.must_sync = True

    def _configure(self, call: ConfigureQueue) -> None:
        view = self._find(call.queue)
        if view is None:
            self._refuse(call, self._not_found(call.queue), call.queue)
            return
        before, wanted = view.options or DEFAULT_OPTIONS, call.options
        wanted = wanted._replace(flags=wanted.flags | before.flags & SEALED)
        if wanted == before:
            self._finish(call, view, None)
        elif (error := _too_low(call.queue, view, wanted)) is not None:
            self._refuse(call, error, call.queue)
        else:
            self._set_options(view, call.queue, wanted)
            call.frees_space = self._truncate_to_slowest(view)
            self.plan.needs_space |= not call.frees_space
            self.plan.must_sync = True
            self.plan.outcomes.append(Outcome(call))

    def _seal(self, call: SealQueue) -> None:
        view = self._find(call.queue)
        if view is None or call.queue_id not in (None, view.id):
            self._refuse(call, self._not_found(call.queue), call.queue)
            return
        before = view.options or DEFAULT_OPTIONS
        if before.flags & SEALED:
            self._refuse(call, QueueSealedError(call.queue, view.next_position), call.queue)
            return
        self._set_options(view, call.queue, before._replace(flags=before.flags | SEALED))
        self.plan.attaches = self.plan.must_sync = True
        self.plan.outcomes.append(Outcome(call, view.next_position))

    def _set_options(self, view: QueueView, queue: str, values: StoredOptions) -> None:
        """Plan other options of a queue."""
        view.configure(values if values != DEFAULT_OPTIONS else None)
        if values.limits_appends():
            self._limited.add(queue)
        self.plan.records.append(log_record.SetOptions(view.id, values))

    def _truncate_to_slowest(self, view: QueueView) -> bool:
        """Plan the truncate that a queue which keeps records until they are acknowledged needs; return whether any."""
        if view.options is None or not view.options.flags & KEEP_UNTIL_ACKNOWLEDGED:
            return False
        slowest = view.slowest()
        if slowest is None or slowest[0] <= view.first_position:
            return False
        self._truncate_view(view, slowest[0] - 1)
        return True


def _behind(queue: str, view: QueueView, position: int, past_consumers: bool) -> ConsumerBehindError | None:
    """Return which consumer forbids removing the records up to *position*, or None."""
    slowest = view.slowest() if not past_consumers else None
    if slowest is None or slowest[0] > min(position, view.next_position - 1):
        return None
    return ConsumerBehindError(queue, slowest[1], slowest[0], position)


def _too_low(queue: str, view: QueueView, wanted: StoredOptions) -> QueueOptionsError | None:
    """Return which limit is below what the queue holds, or None. A queue that drops records drops them when it must."""
    if wanted.flags & DROP_OLDEST:
        return None
    records, size = view.held() if wanted.max_records or wanted.max_bytes else (0, 0)
    for name, limit, held in (("max_records", wanted.max_records, records), ("max_bytes", wanted.max_bytes, size)):
        if limit and held > limit:
            return QueueOptionsError(
                queue, f"{name}={limit} is below the {held} that it holds; truncate it first, or choose a higher limit"
            )
    return None
