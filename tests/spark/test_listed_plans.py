"""Plans that need no request: what they say is what a model of the queue holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.bulk_schemas import PlanStart
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.responses import PlannedQueue
from mrecordlog_async.spark.source.listed_plans import PIECE_BYTES, PIECE_RECORDS, ReadBefore, TriggerLimits

NO_LIMITS = TriggerLimits()


@dataclass
class ModelQueue:
    """A queue, as position → payload bytes."""

    name: str = "q"
    id: int = 1
    first: int = 0
    next: int = 0
    sizes: dict[int, int] = field(default_factory=dict)

    def append(self, *sizes: int, gap: int = 0) -> None:
        self.next += gap
        for size in sizes:
            self.sizes[self.next] = size
            self.next += 1

    def truncate(self, before: int) -> None:
        self.first = max(self.first, before)

    def summary(self) -> QueueSummary:
        kept = [size for at, size in self.sizes.items() if at >= self.first]
        return QueueSummary(self.name, self.id, self.first, self.next, len(kept), sum(kept), None)


class Reader:
    """Reads queues to their ends, as the stream does."""

    def __init__(self) -> None:
        self.before = ReadBefore()
        self.positions: dict[str, int] = {}

    def trigger(
        self, *queues: ModelQueue, limits: TriggerLimits = NO_LIMITS
    ) -> tuple[list[PlannedQueue], list[PlanStart], TriggerLimits]:
        """Return what is planned and what is left to request, and read all of it."""
        listed = Listed({queue.name: queue.summary() for queue in queues})
        starts = [PlanStart(queue.name, self.positions.get(queue.name, 0), queue.id, queue.next) for queue in queues]
        starts = [start for start in starts if start.start != start.stop]
        found, rest, left = self.before.planned({"log": starts}, {"log": listed}, limits)
        requested = [(log, self._requested(queues, start)) for log, some in rest.items() for start in some]
        self.before.note([*found, *requested], {"log": listed})
        self.positions |= {queue.name: queue.next for queue in queues}
        return [plan for _, plan in found], rest["log"], left

    def _requested(self, queues: tuple[ModelQueue, ...], start: PlanStart) -> PlannedQueue:
        queue = next(each for each in queues if each.name == start.queue)
        assert start.start is not None and start.stop is not None
        held = [size for at, size in queue.sizes.items() if start.start <= at < start.stop]
        return PlannedQueue(queue.name, "ok", queue.id, start.start, start.stop, len(held), [], bytes=sum(held))


@pytest.mark.parametrize("seed", range(20))
def test_plans_hold_what_the_queue_holds(seed: int) -> None:
    """Whatever was appended, skipped and truncated, a plan has the records and bytes of exactly its range."""
    chance, queue, reader = random.Random(seed), ModelQueue(), Reader()
    planned = 0
    for _ in range(60):
        queue.append(*(chance.randrange(100) for _ in range(chance.randrange(4))), gap=chance.random() < 0.05)
        start = reader.positions.get("q", 0)
        found, _, _ = reader.trigger(queue)
        for plan in found:
            held = [size for at, size in queue.sizes.items() if start <= at < queue.next]
            assert (plan.start, plan.stop, plan.records, plan.bytes) == (start, queue.next, len(held), sum(held))
            assert [piece[2:] for piece in plan.pieces] == [(start, queue.next, len(held), sum(held))]
            planned += 1
        # A drain truncates up to the start of the batch; others may be behind, or truncate further.
        queue.truncate(chance.choice((0, start, start, queue.next)))
    assert planned


def test_queue_with_gaps_is_requested() -> None:
    """Positions do not count its records."""
    queue, reader = ModelQueue(), Reader()
    queue.append(1, 2)
    queue.append(3, gap=1)
    assert [start.queue for start in reader.trigger(queue)[1]] == ["q"]


def test_queue_that_was_read_by_another_process_is_requested_once() -> None:
    """After a restart nobody knows how many bytes lie before the position; the response to the request says it."""
    queue, reader = ModelQueue(), Reader()
    queue.append(1, 2, 3)
    reader.positions["q"] = 2
    assert reader.trigger(queue)[1]
    queue.append(4)
    queue.truncate(2)
    assert [plan.bytes for plan in reader.trigger(queue)[0]] == [4]


def test_recreated_queue_does_not_use_the_bytes_of_the_one_before() -> None:
    """They are those of other records."""
    queue, reader = ModelQueue(), Reader()
    queue.append(1, 2)
    reader.trigger(queue)
    recreated = ModelQueue(id=2, next=2, sizes={0: 50, 1: 60})
    recreated.append(7)
    assert reader.trigger(recreated)[1]


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ([1] * (PIECE_RECORDS + 1), TriggerLimits()),
        ([PIECE_BYTES, 1], TriggerLimits()),
        ([1, 1, 1], TriggerLimits(records=2)),
        ([1, 1, 1], TriggerLimits(bytes=2)),
    ],
)
def test_large_range_is_requested(sizes: list[int], limits: TriggerLimits) -> None:
    """The service cuts it, and divides what a batch may hold."""
    queue, reader = ModelQueue(), Reader()
    queue.append(*sizes)
    assert reader.trigger(queue, limits=limits)[1:] == ([PlanStart("q", 0, 1, len(sizes))], limits)


def test_requested_queues_get_what_the_planned_ones_leave() -> None:
    """Both together keep within the limits of the batch."""
    planned, requested, reader = ModelQueue("a"), ModelQueue("b"), Reader()
    planned.append(10, 10)
    requested.append(20, gap=1)
    found, rest, left = reader.trigger(planned, requested, limits=TriggerLimits(records=4, bytes=100))
    assert ([plan.queue for plan in found], [start.queue for start in rest]) == (["a"], ["b"])
    assert left == TriggerLimits(records=2, bytes=80)
