"""The time of each record: whatever is appended, settled and truncated, it is what a dictionary says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async.format.controls import Create, Truncate
from mrecordlog_async.format.record import Append, Many
from mrecordlog_async.memory import store as retained
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import oldest_tick, position_at, tick_at, tick_spans, times_of
from mrecordlog_async.memory.times import (
    NO_TICK,
    begin_times,
    drop_times,
    first_at,
    memory_of_times,
    note_time,
    tick_of,
)
from mrecordlog_async.model import TICK_NS, Run, Times, text_of_tick, tick_of_time, time_of_tick

QUEUES = 5

steps = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, QUEUES), st.integers(0, 3), st.integers(1, 300)),
        st.tuples(st.just("many"), st.just(0), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(1, QUEUES), st.integers(0, 400), st.just(0)),
        st.tuples(st.just("segment"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("clock"), st.just(0), st.integers(-3, 40), st.just(0)),
    ),
    max_size=60,
)


class Model:
    """The tick of every retained record, by queue and position, next to the queues themselves."""

    def __init__(self) -> None:
        self.queues = Queues(1)
        self.ticks: dict[int, dict[int, int]] = {}
        self.segment = 0
        self.now = 1_000
        for queue_id in range(1, QUEUES + 1):
            self.queues.apply(0, Create(queue_id, str(queue_id)))
            self.ticks[queue_id] = {}

    def queue(self, queue_id: int) -> Queue:
        """Return a queue."""
        queue = self.queues.by_id(queue_id)
        assert queue is not None
        return queue

    def step(self, kind: str, queue_id: int, number: int, records: int) -> None:
        """Do one step to both."""
        if kind == "clock":
            self.now = max(self.now + number, 1)
        elif kind == "segment":
            self.segment += 1
        elif kind == "run":
            first = self.queue(queue_id).next_position + number
            run = Run.of(first, [b"x"] * records)
            self.queues.apply_all(self.segment, [Append(queue_id, run)], self.now)
            self.ticks[queue_id] |= dict.fromkeys(range(first, first + records), self.now)
        elif kind == "many":
            self._many(gap=number, rounds=records)
        else:
            position = self.queue(queue_id).first_position + number - 3
            if position >= 0:
                self.queues.apply_all(self.segment, [Truncate(queue_id, position)])
                ticks = self.ticks[queue_id]
                self.ticks[queue_id] = {at: tick for at, tick in ticks.items() if at > position}

    def _many(self, gap: int, rounds: int) -> None:
        ids = [*range(1, QUEUES + 1)] * rounds
        positions = []
        after = {queue_id: self.queue(queue_id).next_position for queue_id in ids}
        after[1] += gap
        for queue_id in ids:
            positions.append(after[queue_id])
            self.ticks[queue_id][after[queue_id]] = self.now
            after[queue_id] += 1
        self.queues.apply_all(self.segment, [Many.of(ids, positions, [b""] * len(ids))], self.now)

    def check(self) -> None:
        """Check every queue."""
        queue_bytes = self.queues.memory_bytes
        assert queue_bytes == sum(queue.memory_bytes + len(queue.name) for queue in self.queues)
        for queue_id, ticks in self.ticks.items():
            _check(self.queue(queue_id), ticks)


def _check(queue: Queue, ticks: dict[int, int]) -> None:
    positions = sorted(ticks)
    assert {at: tick_at(queue, at) for at in positions} == ticks
    assert oldest_tick(queue) == (ticks[positions[0]] if positions else NO_TICK)
    for tick in {near for stored in ticks.values() for near in (stored - 1, stored, stored + 1)} | {NO_TICK}:
        found = position_at(queue, tick)
        assert queue.first_position <= found <= queue.next_position
        first = next((at for at in positions if ticks[at] >= tick), queue.next_position)
        assert found <= first
        assert not any(found <= at < first for at in positions)
    first, last = queue.first_position, queue.next_position
    for start, stop in ((first, last), ((first + last) // 2, last), (first, (first + last) // 2)):
        if start < stop:
            spans = list(times_of(queue, start, stop).spans(start, stop))
            assert (spans[0][0], spans[-1][1]) == (start, stop)
            spread = {at: tick for begin, end, tick in spans for at in range(begin, end)}
            assert {at: spread[at] for at in positions if start <= at < stop} == {
                at: tick for at, tick in ticks.items() if start <= at < stop
            }


@given(steps)
@settings(max_examples=150, deadline=None)
def test_times_are_what_a_dictionary_says(history: list[tuple[str, int, int, int]]) -> None:
    """The tick of each record, the first one since any tick, and the oldest; memory is charged for to the byte."""
    with (
        patch.object(retained, "SEAL_RECORDS", 6),
        patch.object(retained, "SEAL_SPREAD", 2),
        patch.object(retained, "KEPT_RECORDS", 5),
    ):
        model = Model()
        for step in history:
            model.step(*step)
        model.check()


def test_a_queue_with_one_time_needs_no_index() -> None:
    """The first time costs nothing; the memory for others is charged, and freed with them."""
    queues = Queues(1)
    queues.apply(0, Create(1, "q"))
    queue = queues.by_id(1)
    assert queue is not None
    for number in range(3):
        queues.apply(0, Append(1, Run.of(number, [b"x"])), 7)
    before = queue.memory_bytes
    queues.apply(0, Truncate(1, 1))
    without = queue.memory_bytes
    a_run = (before - without) // 2
    queues.apply(0, Append(1, Run.of(3, [b"x"])), 8)
    assert queue.memory_bytes > without + a_run
    queues.apply(0, Truncate(1, 3))
    assert queue.memory_bytes < without


@pytest.mark.parametrize("cut_at", [2, 3, 5])
def test_a_time_whose_records_are_truncated_is_not_found(cut_at: int) -> None:
    """Not even at positions that were never taken, before the first record that is left, and after the clock went back.

    Searches take the first entry with a time that is late enough, so none may be left without a record.
    """
    queues = Queues(1)
    queues.apply(0, Create(1, "q"))
    for tick, first, records in ((1_051, 1, 2), (1_040, 7, 43), (1_050, 50, 1)):
        queues.apply(0, Append(1, Run.of(first, [b"x"] * records)), tick)
    queues.apply(0, Truncate(1, cut_at))
    queue = queues.by_id(1)
    assert queue is not None
    assert position_at(queue, 1_050) == 50
    assert position_at(queue, 1_051) == 51
    assert [tick for _, _, tick in tick_spans(queue)] == [1_040, 1_050]
    _check(queue, dict.fromkeys(range(7, 50), 1_040) | {50: 1_050})


@pytest.mark.parametrize("back_at", [None, 3_000])
def test_an_index_stays_short_while_its_queue_is_truncated(back_at: int | None) -> None:
    """Entries before the first record are dropped, and searches find the same with the clock going back once."""
    index = begin_times(0, 1)
    ticks = {0: 1}
    for position in range(1, 5_000):
        ticks[position] = position + 1 if position != back_at else 2
        note_time(index, position, ticks[position], ticks[position - 1])
        drop_times(index, position - 50)
        assert memory_of_times(index) < 1_100
        ticks.pop(position - 51, None)
    assert {position: tick_of(index, position) for position in ticks} == ticks
    for tick in range(4_900, 5_002):
        assert first_at(index, tick) == min((at for at in ticks if ticks[at] >= tick), default=None)


def test_a_time_needs_a_zone_and_must_not_be_in_the_future() -> None:
    """Each mistake is named; a minute ahead is allowed, because clocks differ."""
    now = datetime.now(UTC)
    assert time_of_tick(tick_of_time(now)) == now - timedelta(microseconds=now.microsecond % 100_000)
    east = now.astimezone(timezone(timedelta(hours=5)))
    assert tick_of_time(east) == tick_of_time(now)
    assert tick_of_time(now + timedelta(seconds=30)) > tick_of_time(now)
    assert tick_of_time(datetime(1969, 12, 31, tzinfo=UTC)) < 0
    assert tick_of_time(time_of_tick(17_000_000_001)) == 17_000_000_001
    with pytest.raises(ValueError, match="is in the future"):
        tick_of_time(now + timedelta(minutes=5))
    with pytest.raises(ValueError, match="has no time zone"):
        tick_of_time(datetime(2020, 1, 1))  # the mistake under test
    with pytest.raises(TypeError, match="must be a datetime"):
        tick_of_time(1.5e9)  # type: ignore[arg-type]  # the mistake under test
    assert TICK_NS * 10 == 1_000_000_000


def test_times_are_shown_with_the_digit_that_is_known() -> None:
    """As text, a time has its zone and one decimal; times that are not known have no spans."""
    assert text_of_tick(17_000_000_001) == "2023-11-14T22:13:20.1Z"
    assert datetime.fromisoformat(text_of_tick(17_000_000_009)) == time_of_tick(17_000_000_009)
    assert list(Times.none().spans(0, 10)) == []
    assert Times.none().time_at(3) is None
    times = Times.none()
    for position, tick in ((5, 1), (7, 1), (9, 4)):
        times.add(position, tick)
    assert list(times.spans(5, 12)) == [(5, 9, 1), (9, 12, 4)]
    assert list(times.spans(6, 8)) == [(6, 8, 1)]
    assert times.time_at(10) == time_of_tick(4)
