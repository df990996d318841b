"""Which queue keeps the oldest segment, in the words of a model that looks at every queue."""

from __future__ import annotations

import random

from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.record import Append, LogRecord
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.searches import QUEUES_PER_STEP, OldestPin
from mrecordlog_async.metrics import SegmentPin
from mrecordlog_async.model import Run


def fold(queues: Queues, record: LogRecord, segment: int) -> None:
    queues.apply_all(segment, [record])


def append(queues: Queues, queue_id: int, position: int, segment: int) -> None:
    fold(queues, Append(queue_id, Run.of(position, [b"x"])), segment)


def model(queues: Queues, current: int) -> tuple[set[str], int, int] | None:
    """Return the queues that may be named, and the two counts, from a look at every queue."""
    pairs = ((queue.first_segment(), queue.name) for queue in queues)
    firsts = sorted((segment, name) for segment, name in pairs if segment is not None)
    if not firsts or firsts[0][0] >= current:
        return None
    oldest = firsts[0][0]
    second = min(firsts[1][0], current) if len(firsts) > 1 else current
    return {name for segment, name in firsts if segment == oldest}, current - oldest, second - oldest


def find(pin: OldestPin, current: int) -> SegmentPin | None:
    *_, found = pin.find_in_steps(range(current + 1))
    return found


def test_any_history_names_the_queue_that_a_look_at_all_of_them_finds() -> None:
    """The queue and both counts equal those of a search through all queues, whatever happened between two calls."""
    chance = random.Random(7)
    for _ in range(40):
        queues, segment = Queues(1), 0
        pin = OldestPin(queues)
        for queue_id in range(1, 6):
            fold(queues, Create(queue_id, f"q{queue_id}"), segment)
        for _ in range(60):
            segment += chance.random() < 0.3
            queue = chance.choice(list(queues))
            action = chance.random()
            if action < 0.6:
                append(queues, queue.id, queue.next_position, segment)
            elif action < 0.95 and queue.next_position:
                fold(queues, Truncate(queue.id, chance.randrange(queue.next_position)), segment)
            elif len(queues) > 1:
                fold(queues, Delete(queue.id), segment)
            found, expected = find(pin, segment), model(queues, segment)
            if expected is None:
                assert found is None
            else:
                assert found is not None
                assert found.queue in expected[0]
                assert (found.segments, found.alone) == expected[1:]


def test_a_queue_found_once_is_not_searched_again() -> None:
    """While the queue that was found keeps the oldest segment, another call looks at no other queue."""
    queues = Queues(1)
    for queue_id in range(1, 2 * QUEUES_PER_STEP):
        fold(queues, Create(queue_id, f"q{queue_id}"), 0)
    append(queues, 2 * QUEUES_PER_STEP - 1, 0, 0)
    pin = OldestPin(queues)
    assert len(list(pin.find_in_steps(range(3)))) > 1
    assert list(pin.find_in_steps(range(4))) == [SegmentPin(f"q{2 * QUEUES_PER_STEP - 1}", 3, 3)]
