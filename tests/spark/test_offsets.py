"""Offsets: whatever happens to logs and queries between batches, every record is read exactly once."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.positions.offsets import (
    advanced,
    as_text,
    assemble,
    check,
    enrol,
    resolve_position,
    shares,
    truncations,
)
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.settings.offset import Positions


def summary(queue: str, first: int, following: int, queue_id: int = 1, records: int | None = None) -> QueueSummary:
    records = following - first if records is None else records
    return QueueSummary(queue, queue_id, first, following, records, records * 10, None)


@settings(deadline=None)
@given(st.integers(1, 10_000), st.dictionaries(st.text(max_size=3), st.integers(0, 10_000), max_size=6))
def test_shares_are_in_proportion_and_never_nothing(limit: int, weights: dict[str, int]) -> None:
    """Every server with records gets at least one; only that minimum may exceed the limit."""
    found = shares(limit, weights)
    assert set(found) == {name for name, weight in weights.items() if weight}
    assert all(share >= 1 for share in found.values())
    assert sum(found.values()) <= limit + len(found)


# Offsets.


def test_offsets_are_equal_as_text() -> None:
    """Spark compares offsets as text, so the order of keys must not start a new batch."""
    assert as_text({"b": {"z": [1, 2], "a": [3, 4]}, "a": {}}) == '{"a":{},"b":{"a":[3,4],"z":[1,2]}}'


def test_start_itself_is_returned_when_nothing_is_new() -> None:
    """A new but equal offset would make every trigger run an empty batch."""
    start: Positions = {"a": {"q": [1, 5]}}
    assert assemble(start, {"a": {"q": [1, 5]}}, {}, {"a": {}}) is start


def test_only_what_moved_in_the_same_queue_is_read() -> None:
    """Enrolled and recreated queues are read from the next batch on."""
    start: Positions = {"a": {"q": [1, 5], "same": [2, 7], "recreated": [3, 1]}}
    end: Positions = {"a": {"q": [1, 9], "same": [2, 7], "recreated": [8, 4], "enrolled": [9, 100]}}
    assert list(advanced(start, end)) == [("a", "q", 1, 5, 9)]


def test_a_queue_that_began_with_the_batch_is_read_from_where_the_offset_says() -> None:
    """`first` counts only where the start has no position of the queue: a start that has one is not read again."""
    start: Positions = {"a": {"q": [1, 5], "recreated": [3, 1]}}
    end: Positions = {"a": {"q": [1, 9], "recreated": [8, 14], "new": [9, 100]}}
    first = {"a": {"q": 0, "recreated": 10, "new": 90}}
    found = [("a", "q", 1, 5, 9), ("a", "recreated", 8, 10, 14), ("a", "new", 9, 90, 100)]
    assert list(advanced(start, end, first)) == found


@pytest.mark.parametrize(
    ("first", "following", "queue_id", "message"),
    [
        (0, 50, 2, "recreated; it is unknown whether it held records"),
        (0, 4, 1, "went back"),
        (6, 9, 1, "positions 5 to 5 were truncated"),
    ],
)
def test_losses_are_seen_and_never_truncated(first: int, following: int, queue_id: int, message: str) -> None:
    """A queue that does not match the checkpoint is reported and not truncated."""
    listings = {"a": {"q": summary("q", first, following, queue_id)}}
    checked = check({"a": {"q": [1, 5]}}, {"a": Listed(listings["a"])})
    assert [message in loss for loss in checked.lost] == [True]
    assert checked.positions == {"a": {"q": [queue_id, first]}}
    assert truncations(checked.intact, listings) == {}


def test_truncations_are_what_was_read_and_is_retained() -> None:
    """A truncate includes its position: if 5 is next, up to 4 is truncated, and only if such records are left."""
    listings = {"a": {"q": summary("q", 2, 9), "done": summary("done", 5, 9), "fresh": summary("fresh", 0, 3)}}
    intact: Positions = {"a": {"q": [1, 5], "done": [1, 5], "fresh": [1, 0]}}
    assert truncations(intact, listings) == {"a": {"q": [1, 4]}}


def test_a_starting_position_is_for_a_server_seen_first() -> None:
    """A queue that is created later is read from its first record, even with startingOffsets=latest."""
    listings = {"known": {"new": summary("new", 3, 9)}, "fresh": {"new": summary("new", 3, 9)}}
    first_positions, lost = enrol({"known": {}}, listings, "latest")
    assert (first_positions, lost) == ({"known": {"new": [1, 3]}, "fresh": {"new": [1, 9]}}, [])


def test_positions_outside_the_log_are_moved_and_named() -> None:
    """A position below or above the log is moved into it, and the loss is reported."""
    assert resolve_position({"a": {"q": 7}}, "a", summary("q", 3, 9)) == (7, None)
    assert resolve_position({"a": {"q": -2}}, "a", summary("q", 3, 9)) == (3, None)
    assert resolve_position({"a": {"q": -1}}, "a", summary("q", 3, 9)) == (9, None)
    assert resolve_position({}, "a", summary("q", 3, 9)) == (3, None)
    for wanted, moved in ((1, 3), (10, 9)):
        position, loss = resolve_position({"a": {"q": wanted}}, "a", summary("q", 3, 9))
        assert position == moved and loss is not None


class QueryAgainstLogs(RuleBasedStateMachine):
    """Two model logs and a query that is driven, killed and replayed: committed rows are read once, then truncated.

    The model keeps every acknowledged record. So at any time the committed rows must be, for each incarnation of each
    queue, the records from where reading began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[str, dict[str, ModelQueue]] = {"a": {}, "b": {}}
        self.next_id = 1
        self.committed: Positions = {}
        self.planned: Positions | None = None
        self.rows: list[tuple[str, int, int]] = []  # (server, queue id, position)
        self.every: dict[int, ModelQueue] = {}

    @rule(server=st.sampled_from("ab"), queue=st.sampled_from("xyz"), count=st.integers(1, 9), gap=st.integers(0, 3))
    def append(self, server: str, queue: str, count: int, gap: int) -> None:
        found = self.logs[server].get(queue)
        if found is None:
            found = self.logs[server][queue] = self.every[self.next_id] = ModelQueue(self.next_id)
            self.next_id += 1
        found.append(found.next + gap, count)

    @precondition(lambda self: self.planned is None and self.caught_up())
    @rule(server=st.sampled_from("ab"), queue=st.sampled_from("xyz"))
    def delete(self, server: str, queue: str) -> None:
        self.logs[server].pop(queue, None)
        # A poll sees that it was deleted, so recreating it is not a loss.
        if self.latest(10**9) != self.committed:
            self.commit()

    @rule(limit=st.integers(1, 12))
    def plan(self, limit: int) -> None:
        if self.planned is None:
            end = self.latest(limit)
            if json.dumps(end) != json.dumps(self.committed):
                self.planned = json.loads(json.dumps(end))

    @precondition(lambda self: self.planned is not None)
    @rule()
    def commit(self) -> None:
        self.planned = self.planned or json.loads(json.dumps(self.latest(10**9)))
        self.rows += self.read(self.committed, self.planned)
        self.committed, self.planned = self.planned, None

    @precondition(lambda self: self.planned is not None)
    @rule()
    def die_while_reading(self) -> None:
        """Read a batch and lose it: the replay must return the same rows."""
        assert self.planned is not None
        assert self.read(self.committed, self.planned) == self.read(self.committed, self.planned)

    @invariant()
    def every_record_at_most_once_and_in_order(self) -> None:
        assert len(self.rows) == len(set(self.rows))
        for queue_id, queue in self.every.items():
            mine = [position for _, each, position in self.rows if each == queue_id]
            assert mine == queue.positions[: len(mine)], "nothing is skipped"

    @invariant()
    def nothing_is_truncated_that_is_not_committed(self) -> None:
        read = {(each, position) for _, each, position in self.rows}
        for queue_id, queue in self.every.items():
            assert all((queue_id, at) in read for at in queue.positions if at < queue.first)

    def teardown(self) -> None:
        """At the end everything has been read and truncated."""
        for _ in range(200):
            if self.planned is not None:
                self.commit()
            self.planned = None
            end = self.latest(7)
            if end == self.committed:
                break
            self.planned = end
        for log in self.logs.values():
            for queue in log.values():
                assert [at for _, each, at in self.rows if each == queue.id] == queue.positions
                assert queue.first == queue.next

    def caught_up(self) -> bool:
        return self.latest(10**9) == self.committed

    def listings(self) -> dict[str, dict[str, QueueSummary]]:
        return {
            server: {name: summary(name, q.first, q.next, q.id, len(q.kept())) for name, q in log.items()}
            for server, log in self.logs.items()
        }

    def latest(self, limit: int) -> Positions:
        """Do what the stream reader's latestOffset does, with a model instead of the services."""
        listings = self.listings()
        surveys = {server: Listed(listing) for server, listing in listings.items()}
        checked = check(self.committed, surveys, ended=self.ended(listings))
        assert not checked.lost
        for server, due in truncations(checked.intact, listings).items():
            for name, (_, position) in due.items():
                self.logs[server][name].first = position + 1
        listings = self.listings()
        first_positions, _ = enrol(self.committed, listings, "earliest")
        ends = {server: self.advance(server, queues, limit) for server, queues in checked.intact.items()}
        return assemble(self.committed, checked.positions, ends, first_positions)

    def ended(self, listings: Mapping[str, Mapping[str, QueueSummary]]) -> dict[str, dict[str, int | None]]:
        """Return where the deleted queues of the checkpoint ended."""
        return {
            server: {queue: self.every[at[0]].next for queue, at in self.committed.get(server, {}).items()}
            for server in listings
        }

    def advance(self, server: str, queues: Mapping[str, list[int]], limit: int) -> dict[str, list[int]]:
        found = {}
        for name, (queue_id, position) in queues.items():
            queue = self.logs[server][name]
            due = [at for at in queue.positions if at >= position]
            found[name] = [queue_id, due[limit - 1] + 1 if len(due) > limit else queue.next]
        return found

    def read(self, start: Positions, end: Positions) -> list[tuple[str, int, int]]:
        rows = []
        for server, name, queue_id, first, stop in advanced(start, end):
            queue = self.logs[server][name]
            assert queue.id == queue_id and queue.first <= first, "what was planned is still there"
            rows += [(server, queue_id, at) for at in queue.positions if first <= at < stop]
        return rows


class ModelQueue:
    """A queue that remembers every position it ever held."""

    def __init__(self, queue_id: int) -> None:
        self.id = queue_id
        self.first = 0
        self.next = 0
        self.positions: list[int] = []

    def append(self, position: int, count: int) -> None:
        if self.first == self.next == 0:
            self.first = position
        self.positions += range(position, position + count)
        self.next = position + count

    def kept(self) -> list[int]:
        return [at for at in self.positions if at >= self.first]


QueryAgainstLogs.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestQueryAgainstLogs = QueryAgainstLogs.TestCase
