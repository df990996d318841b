"""A queue in memory against a dictionary: appends and truncates of every kind, in runs of any size."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.record import Append
from mrecordlog_async.format.table import Table
from mrecordlog_async.memory.gapped import GappedRun
from mrecordlog_async.memory.queue import QUEUE_OVERHEAD_BYTES, Queue, ReplayError, SegmentPins
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.store import (
    KEPT_BYTES,
    RUN_OVERHEAD_BYTES,
    SEAL_RECORDS,
)
from mrecordlog_async.model import Run

actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 400), st.sampled_from([0, 1, 60, KEPT_BYTES])),
        st.tuples(
            st.just("append far"), st.sampled_from([2**20, 2**31 - 1, 2**31, 2**40]), st.integers(1, 3), st.just(1)
        ),
        st.tuples(st.just("append gaps"), st.integers(1, 3), st.integers(1, 600), st.just(1)),
        st.tuples(st.just("truncate"), st.integers(-300, 5)),
        st.tuples(st.just("segment")),
    ),
    max_size=40,
)


class Expected:
    """What the queue must hold: payload and segment by position."""

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}
        self.home: dict[int, int] = {}
        self.segment = self.first_position = self.next_position = 0

    def act(self, queue: Queue, kind: str, arguments: list[int]) -> None:
        """Do one step to *queue* and to the dictionaries."""
        if kind == "segment":
            self.segment += 1
        elif kind == "truncate":
            self.truncate(queue, self.next_position + arguments[0])
        elif kind == "append gaps":  # single records, each after a gap
            gap, records, _ = arguments
            for _ in range(records):
                first = self.next_position + gap
                self.append(queue, first, [b"%d" % first])
        else:
            gap, records, size = arguments
            count = min(records, 20 if size > 100 else 400)
            payloads = [b"%d" % n * (size // 3 + 1) if size else b"" for n in range(count)]
            self.append(queue, self.next_position + gap, payloads)

    def truncate(self, queue: Queue, position: int) -> None:
        dropped = [p for p in self.payloads if p <= position] if position >= self.first_position else []
        assert queue.truncate(position) == len(dropped)
        for p in dropped:
            del self.payloads[p], self.home[p]
        if position >= self.first_position:
            self.first_position, self.next_position = position + 1, max(self.next_position, position + 1)

    def append(self, queue: Queue, first: int, payloads: list[bytes]) -> None:
        queue.append(self.segment, Run.of(first, payloads))
        if self.first_position == 0 == self.next_position:
            self.first_position = first
        self.payloads.update(enumerate(payloads, first))
        self.home.update(dict.fromkeys(range(first, first + len(payloads)), self.segment))
        self.next_position = first + len(payloads)


@given(actions=actions, bounds=st.tuples(st.integers(-2, 900), st.integers(-2, 900)))
@settings(deadline=None, max_examples=150)
def test_queue_is_what_a_dictionary_says(actions: list[tuple[str, int, int, int]], bounds: tuple[int, int]) -> None:
    """Reads, counts and sizes agree with {position: payload} after any history; pins name the needed segments."""
    pins = SegmentPins()
    queue = Queue(1, "q", pins)
    expected = Expected()
    for kind, *arguments in actions:
        expected.act(queue, kind, arguments)
        positions = (expected.first_position, expected.next_position)
        assert (queue.first_position, queue.next_position, queue.records) == (*positions, len(expected.payloads))
        assert queue.live_bytes() == sum(map(len, expected.payloads.values()))
    model, home = expected.payloads, expected.home
    everything = sorted(model.items())
    assert [tuple(record) for run in queue.runs(None, None) for record in run.records()] == everything
    low, high = bounds
    inside = [(p, payload) for p, payload in everything if low <= p < high]
    assert [tuple(record) for run in queue.runs(low, high) for record in run.records()] == inside
    assert [tuple(record) for held in queue.held(low, high) for record in held.records()] == inside
    runs = queue.runs(low, high)
    assert len(runs) == len(list(runs))
    assert bool(runs) == bool(inside)
    if runs:
        assert runs[-1] == list(runs)[-1]
    beyond = [record for record in everything if record[0] >= low]
    head = [tuple(record) for held in queue.held(low, None, 1) for record in held.records()]
    assert head == beyond[: len(head)]
    assert queue.segments() == sorted(set(home.values()))
    assert pins.oldest() == min(home.values(), default=None)


def test_small_runs_are_joined() -> None:
    """A thousand single records become one run: four bytes a record over the payloads."""
    queue = Queue(0, "q", SegmentPins())
    empty = queue.memory_bytes
    for position in range(SEAL_RECORDS * 3):
        queue.append(0, Run.of(position, [b"12345678"]))
    assert len(queue.runs(None, None)) == 3
    assert queue.memory_bytes - empty <= SEAL_RECORDS * 3 * (8 + 4) + 3 * 200


def filled(step: int, records: int, size: int = 8) -> Queue:
    queue = Queue(0, "q", SegmentPins())
    for number in range(records):
        queue.append(0, Run.of(number * step, [bytes(size)]))
    return queue


@pytest.mark.parametrize("step", [2, 1_000_000_000])
def test_gaps_between_positions_cost_no_more_than_twice_as_much(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in memory nor in what a reader visits, even with a clock's nanoseconds as positions."""
    dense, gapped = filled(1, 50_000), filled(step, 50_000)
    assert len(gapped.held(None, None)) <= len(dense.held(None, None)) + 1
    assert gapped.memory_bytes < 2 * dense.memory_bytes
    made: list[GappedRun] = []
    monkeypatch.setattr(GappedRun, "runs", made.append)
    for start in (0, 25_000 * step):
        gapped.runs(start, None)
    assert not made, "runs are made when they are read"
    assert len(gapped.held(None, 49_000 * step)) <= 100, "what a truncate drops"
    assert gapped.truncate(49_000 * step) == 49_001


def test_memory_is_counted_to_the_byte_with_gaps_and_without() -> None:
    """What truncates give back is what appends took: an emptied queue costs what a new one does."""
    for step in (1, 2, 2**33):
        queue = filled(step, 5_000)
        while queue.records:
            queue.truncate(queue.first_position + 700 * step)
            kept = queue.held(None, None)
            assert queue.records == sum(run.record_count for run in kept)
            assert queue.live_bytes() == sum(len(run.payload) for run in kept)
            columns = [sum(map(len, run[1:])) for run in queue.store.pieces(0, 2**62)]
            assert queue.memory_bytes == QUEUE_OVERHEAD_BYTES + sum(RUN_OVERHEAD_BYTES + size for size in columns)
        assert queue.memory_bytes == Queue(0, "q", SegmentPins()).memory_bytes
        assert queue.store.held_bytes == 0


def test_the_oldest_segment_is_known_without_looking_at_all() -> None:
    """Each batch asks for it; 10,000 segments made an append six times as slow."""
    pins, needed = SegmentPins(), set[int]()
    rng = random.Random(1)
    for step in range(3_000):
        if not needed or rng.random() < 0.6:
            segment = rng.randrange(1_000) if step % 3 else max(needed, default=0) + 1
            pins.add(segment, 1)
            if segment in needed:
                pins.drop(segment)  # two queues needed it, now one
            needed.add(segment)
        else:
            segment = rng.choice(sorted(needed))
            pins.drop(segment)
            needed.remove(segment)
        assert pins.oldest() == min(needed, default=None)
        assert len(pins._oldest) <= 2_000
    for _ in range(3_000):
        pins.add(5, 1)
    assert len(pins._oldest) <= 2_000


@pytest.mark.parametrize(("size", "turns"), [(0, SEAL_RECORDS * 2), (500, 300)])
def test_queues_that_fill_in_step_are_not_joined_all_at_once(size: int, turns: int) -> None:
    """A thousand queues with a record each in turn: no turn joins more than a few, or it would stop the event loop."""
    queues = [Queue(number, f"q{number}", SegmentPins()) for number in range(1000)]
    most = 0
    for position in range(turns):
        run = Run.of(position, [bytes(size)])
        for queue in queues:
            queue.append(0, run)
        joined = sum(not queue.store._ends for queue in queues)  # type: ignore[attr-defined]  # of `RetainedStore`
        most = max(most, joined)
    assert 0 < most <= 100


def test_large_payload_is_handed_out_without_a_copy() -> None:
    """What is larger than a tail is kept as the object that came."""
    queue = Queue(1, "q", SegmentPins())
    payload = bytes(100_000)
    queue.append(0, Run.of(0, [payload]))
    (run,) = queue.runs(None, None)
    assert next(run.records()).payload is payload


def test_run_cuts() -> None:
    """Heads and parts of runs keep positions and payloads together."""
    run = Run.of(10, [b"a", b"", b"ccc", b"dd"])
    assert list(run.cut(11, 13).records()) == [(11, b""), (12, b"ccc")]
    assert run.cut(0, 99) is run
    assert list(run.cut_bytes(1).records()) == [(10, b"a"), (11, b"")]
    assert list(run.cut_bytes(0).records()) == [(10, b"a")]
    assert run.cut_bytes(6) is run


@pytest.mark.parametrize(
    "record",
    [
        Append(9, Run.of(0, [b"x"])),
        Truncate(9, 0),
        Delete(9),
        Create(4, "new"),
        Create(9, "q"),
        Append(5, Run.of(1, [b"x"])),
    ],
)
def test_record_that_does_not_fit_the_state_is_refused(record: Append | Truncate | Delete | Create) -> None:
    """Unknown ids, known ids and names, and taken positions are no history that a log can have."""
    queues = Queues.from_table(Table(5, ()))
    queues.apply(0, Create(5, "q"))
    queues.apply(0, Append(5, Run.of(0, [b"a", b"b"])))
    before = queues.table()
    with pytest.raises(ReplayError):
        queues.apply(0, record)
    assert queues.table() == before


def test_a_queue_over_several_segments_counts_what_all_of_them_hold() -> None:
    """Replayed forward, truncated in the middle of one: records, bytes, segments and pins are those of what is left."""
    queues = Queues(0)
    for segment, record in (
        (0, Create(0, "q")),
        (0, Append(0, Run.of(0, [b"%d" % n for n in range(10)]))),
        (1, Append(0, Run.of(10, [b"%d" % n for n in range(10, 20)]))),
        (2, Append(0, Run.of(20, [b"20", b"21"]))),
        (2, Truncate(0, 14)),
    ):
        queues.apply(segment, record)
    queue = queues.get("q")
    assert queue is not None
    assert [p for run in queue.runs(None, None) for p, _ in run.records()] == list(range(15, 22))
    assert queue.records == 7
    assert queue.live_bytes() == 14
    assert queue.segments() == [1, 2]
    assert queues.pins.oldest() == 1
    assert queues.memory_bytes == queue.memory_bytes + len("q")
