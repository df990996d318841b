"""What Python's cycle collector visits of the queues: its pauses stop the event loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from mrecordlog_async.format.controls import Create
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.format.table import ENTRIES_PER_PIECE
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import Run

QUEUES = 500


@pytest.fixture
def _only_when_asked() -> Iterator[None]:
    """Collect when a test asks for it, and not in between."""
    gc.disable()
    yield
    gc.enable()


def tracked() -> int:
    """Return the number of objects that a full collection visits."""
    gc.collect()
    return len(gc.get_objects())


def singles(position: int) -> list[LogRecord]:
    """Return a record for each queue, as many callers' records are stored."""
    ids = [*range(1, QUEUES + 1)]
    return [Many.of(ids[at : at + 250], [position] * 250, [b"x" * 50] * 250) for at in range(0, QUEUES, 250)]


def runs(position: int) -> list[LogRecord]:
    """Return a run for each queue, as few callers' records are stored."""
    return [Append(queue_id, Run.of(position, [b"x" * 50])) for queue_id in range(1, QUEUES + 1)]


@pytest.mark.usefixtures("_only_when_asked")
def test_a_queue_is_few_objects_to_the_collector() -> None:
    """Two when it is empty, one more with single records that were not copied yet, and one more with runs.

    Times, segments, the tail and the runs themselves are none.
    """
    queues, before, position = Queues(1), tracked(), 0

    def objects() -> float:
        return (tracked() - before) / QUEUES

    def add(segment: int, records: Callable[[int], list[LogRecord]], rounds: int) -> None:
        nonlocal position
        for _ in range(rounds):
            queues.apply_all(segment, records(position), tick=1_000 + position)
            position += 1

    queues.apply_all(0, [Create(queue_id, f"q{queue_id}") for queue_id in range(1, QUEUES + 1)])
    assert objects() <= 2.1
    add(0, singles, 20)
    assert objects() <= 3.1
    for segment in (1, 2):
        for queue in queues:
            queue.seal()
        assert objects() <= 3.1
        add(segment, singles, 100)
        assert objects() <= 4.1
    add(3, runs, 100)
    assert objects() <= 5.1


@pytest.mark.usefixtures("_only_when_asked")
def test_a_table_keeps_no_object_for_each_queue() -> None:
    """While a roll makes the table of many queues, the collector has nothing new to visit but those of one piece."""
    queues, most = Queues(1), 0
    many = 10 * ENTRIES_PER_PIECE
    queues.apply_all(0, [Create(queue_id, f"q{queue_id}") for queue_id in range(1, many + 1)])
    queues.apply_all(0, [Append(queue_id, Run.of(0, [b"x"])) for queue_id in range(1, many + 1)])
    before = len(gc.get_objects())

    def pause() -> None:
        nonlocal most
        most = max(most, len(gc.get_objects()) - before)

    queues.encoded_table(pause)
    assert 0 < most < 2.5 * ENTRIES_PER_PIECE
