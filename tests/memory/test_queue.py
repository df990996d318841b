"""A queue in memory against a dictionary: whatever is appended and truncated, in runs of any size."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async.format.record import Append, Create, Delete, Table, Truncate
from mrecordlog_async.memory.queue import KEPT_BYTES, SEAL_RECORDS, FoldError, Queue, SegmentPins
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import Runs
from mrecordlog_async.model import Record, Run

actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 400), st.sampled_from([0, 1, 60, KEPT_BYTES])),
        st.tuples(st.just("truncate"), st.integers(-300, 5)),
        st.tuples(st.just("segment")),
    ),
    max_size=40,
)


@given(actions=actions, bounds=st.tuples(st.integers(-2, 900), st.integers(-2, 900)))
@settings(deadline=None, max_examples=150)
def test_queue_is_what_a_dictionary_says(actions: list[tuple[str, int, int, int]], bounds: tuple[int, int]) -> None:
    """Reads, counts and sizes agree with {position: payload} after any history; pins name the needed segments."""
    pins = SegmentPins()
    queue = Queue(1, "q", pins)
    model: dict[int, bytes] = {}
    home: dict[int, int] = {}
    segment, start, next_position = 0, 0, 0
    for kind, *arguments in actions:
        if kind == "segment":
            segment += 1
        elif kind == "truncate":
            position = next_position + arguments[0]
            gone = [p for p in model if p <= position] if position >= start else []
            assert queue.truncate(position) == len(gone)
            for p in gone:
                del model[p], home[p]
            if position >= start:
                start, next_position = position + 1, max(next_position, position + 1)
        else:
            gap, records, size = arguments
            payloads = [
                b"%d" % n * (size // 3 + 1) if size else b"" for n in range(min(records, 20 if size > 100 else 400))
            ]
            first = next_position + gap
            queue.append(segment, Run.of(first, payloads))
            if start == 0 == next_position:
                start = first
            model.update(zip(range(first, first + len(payloads)), payloads, strict=True))
            home.update(dict.fromkeys(range(first, first + len(payloads)), segment))
            next_position = first + len(payloads)
        assert (queue.start, queue.next, queue.records) == (start, next_position, len(model))
        assert queue.live_bytes() == sum(map(len, model.values()))
    everything = sorted(model.items())
    assert [tuple(record) for run in queue.runs(None, None) for record in run.each()] == everything
    low, high = bounds
    inside = [(p, payload) for p, payload in everything if low <= p < high]
    assert [tuple(record) for run in queue.runs(low, high) for record in run.each()] == inside
    assert queue.last_record() == (Record(*everything[-1]) if everything else None)
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


@pytest.mark.parametrize(("size", "turns"), [(0, SEAL_RECORDS * 2), (500, 300)])
def test_queues_that_fill_in_step_are_not_joined_all_at_once(size: int, turns: int) -> None:
    """A thousand queues with a record each in turn: no turn joins more than a few, or it would stop the event loop."""
    queues = [Queue(number, f"q{number}", SegmentPins()) for number in range(1000)]
    most = 0
    for position in range(turns):
        run = Run.of(position, [bytes(size)])
        joined = sum(queue.append(0, run) < 0 for queue in queues)
        most = max(most, joined)
    assert 0 < most <= 100


def test_joined_runs_hold_what_the_parts_held() -> None:
    """Runs of one record and of several, empty payloads among them, become one run with the same records."""
    runs = Runs()
    parts = [Run.of(5, [b"a"]), Run.of(6, [b"", b"bb", b""]), Run.of(9, [b""]), Run.of(10, [b"c", b"d"])]
    for part in parts:
        runs.append(*part)
    assert runs.joined() == Run.of(5, [b"a", b"", b"bb", b"", b"", b"c", b"d"])
    runs.drop_oldest()
    assert runs.joined() == Run.of(6, [b"", b"bb", b"", b"", b"c", b"d"])


def test_large_payload_is_handed_out_without_a_copy() -> None:
    """What is larger than a tail is kept as the object that came."""
    queue = Queue(1, "q", SegmentPins())
    payload = bytes(100_000)
    queue.append(0, Run.of(0, [payload]))
    (run,) = queue.runs(None, None)
    assert next(run.each()).payload is payload


def test_run_cuts() -> None:
    """Heads and parts of runs keep positions and payloads together."""
    run = Run.of(10, [b"a", b"", b"ccc", b"dd"])
    assert list(run.cut(11, 13).each()) == [(11, b""), (12, b"ccc")]
    assert run.cut(0, 99) is run
    assert list(run.cut_bytes(1).each()) == [(10, b"a"), (11, b"")]
    assert list(run.cut_bytes(0).each()) == [(10, b"a")]
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
    with pytest.raises(FoldError):
        queues.apply(0, record)
    assert queues.table() == before


def test_adopted_queue_counts_what_both_halves_hold() -> None:
    """Joining the fold of older segments with the last one's gives the state of the whole."""
    older = Queues(0)
    older.apply(0, Create(0, "q"))
    older.apply(0, Append(0, Run.of(0, [b"%d" % n for n in range(10)])))
    older.apply(1, Append(0, Run.of(10, [b"%d" % n for n in range(10, 20)])))
    last = Queues.from_table(older.table())
    last.apply(2, Append(0, Run.of(20, [b"20", b"21"])))
    last.apply(2, Truncate(0, 14))
    last.adopt(older)
    queue = last.get("q")
    assert queue is not None
    assert [p for run in queue.runs(None, None) for p, _ in run.each()] == list(range(15, 22))
    assert queue.records == 7
    assert queue.live_bytes() == 14
    assert queue.segments() == [1, 2]
    assert last.pins.oldest() == 1
