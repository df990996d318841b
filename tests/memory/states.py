"""What queues that are not those of an open log hold in memory, as the judge of histories shows it."""

from __future__ import annotations

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.settings import options_of
from mrecordlog_async.memory.stored_times import times_of
from tests.faults.judge import QueueState, State
from tests.faults.settings_model import Settings

from .sums import check_queues


def state_of(queues: Queues) -> State:
    """Return what a reader sees of *queues*, of which all records are in memory; check their sums."""
    shown = tuple(_state_of(queue) for queue in sorted(queues, key=lambda queue: queue.name))
    rules = tuple((rule.pattern, rule.name) for rule in sorted(queues.rules.all))
    state = State(queues.next_queue_id, shown, rules)
    check_queues(queues, state)
    return state


def _state_of(queue: Queue) -> QueueState:
    records = [(record.position, record.payload) for run in queue.runs(None, None) for record in run.records()]
    spans = times_of(queue, queue.first_position, queue.next_position).spans(queue.first_position, queue.next_position)
    return QueueState(
        queue.name,
        queue.id,
        queue.first_position,
        queue.next_position,
        tuple(records),
        tuple((name, *state) for name, state in sorted(queue.consumer_states())),
        Settings(options_of(queue.options), queue.is_sealed()),
        tuple((start, tick) for start, _, tick in spans),
    )
