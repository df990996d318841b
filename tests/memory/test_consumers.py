"""The consumers of a queue against a model that visits all of them for every change."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mrecordlog_async.engine.planning.draft import QueueView
from mrecordlog_async.format.controls import NO_OWNER, ConsumerDelete, ConsumerState, Create, SetConsumer, Truncate
from mrecordlog_async.format.record import Append
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import CONSUMER_OVERHEAD_BYTES, Queues, memory_of_name
from mrecordlog_async.model import Run

NAMES = st.sampled_from("abcd")
CHANGES = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("truncate"), st.integers(0, 12)),
    st.tuples(st.just("move"), NAMES, st.integers(0, 12)),
    st.tuples(st.just("delete"), NAMES),
)


class Model:
    """A queue and its consumers, in memory and as lists of positions."""

    def __init__(self) -> None:
        self.queues = Queues(1)
        self.queues.apply(0, Create(1, "q"))
        self.records: list[int] = []
        self.next = self.first = 0
        self.positions: dict[str, int] = {}
        self.skipped: dict[str, int] = {}

    @property
    def queue(self) -> Queue:
        """The queue in memory."""
        queue = self.queues.by_id(1)
        assert queue is not None
        return queue

    def append(self, records: int) -> None:
        """Append records."""
        if (self.first, self.next) == (0, 0) and records == 3:
            self.first = self.next = 5  # a queue may begin with a gap, which moves no consumer
        self.queues.apply(0, Append(1, Run.of(self.next, [b"x"] * records)))
        self.records += range(self.next, self.next + records)
        self.next += records

    def truncate(self, position: int) -> None:
        """Truncate, past the end as well."""
        self.queues.apply(0, Truncate(1, position))
        for name, at in self.positions.items():
            self.skipped[name] += sum(at <= record <= position for record in self.records)
            self.positions[name] = max(at, position + 1)
        self.records = [record for record in self.records if record > position]
        self.first = max(self.first, position + 1)
        self.next = max(self.next, self.first)

    def move(self, name: str, position: int) -> None:
        """Create a consumer, or move it to where the queue has records."""
        position = min(max(position, self.first), self.next)
        self.queues.apply(0, SetConsumer(1, name, ConsumerState(position, 7, NO_OWNER)))
        self.positions[name] = position
        self.skipped.setdefault(name, 0)

    def delete(self, name: str) -> None:
        """Delete a consumer if it exists."""
        if self.positions.pop(name, None) is not None:
            self.queues.apply(0, ConsumerDelete(1, name))
            del self.skipped[name]

    def check(self) -> None:
        """Compare memory with the model."""
        queue = self.queue
        assert {name: state.position for name, state in queue.consumer_states()} == self.positions
        assert {name: queue.consumers.skipped(name) for name in queue.consumers} == self.skipped
        assert self.positions.get(queue.slowest_consumer()) == min(self.positions.values(), default=None)
        slowest = QueueView.of(queue).slowest()
        assert (slowest and slowest[0]) == min(self.positions.values(), default=None)


@given(st.lists(CHANGES, max_size=25))
def test_positions_and_what_is_skipped_match_a_model(changes: list[tuple[str, str | int, int]]) -> None:
    """Consumers that truncates pass move with the queue and count what they lose, even when they move on later."""
    model = Model()
    for change, *arguments in changes:
        getattr(model, change)(*arguments)
        model.check()


@pytest.mark.parametrize("name", ["c" * 200, "é" * 100, "日本"])
def test_memory_of_a_consumer_is_charged_with_its_name_and_given_back(name: str) -> None:
    """A name that is not ASCII may take four bytes for each character."""
    model = Model()
    before = model.queues.memory_bytes
    model.move(name, 0)
    assert model.queues.memory_bytes - before == CONSUMER_OVERHEAD_BYTES + memory_of_name(name)
    assert memory_of_name(name) >= len(name.encode())
    model.delete(name)
    assert model.queues.memory_bytes == before
