"""A replay for positions alone leaves the tables that one with payloads leaves."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import Run
from mrecordlog_async.recovery.positions import PositionStores

IDS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("append"), IDS, st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("many"), IDS, st.integers(1, 3), st.just(0)),
    st.tuples(st.just("truncate"), IDS, st.integers(0, 4), st.just(0)),
    st.tuples(st.just("delete"), IDS, st.just(0), st.just(0)),
)


@given(st.lists(st.tuples(st.booleans(), STEPS), max_size=30))
def test_tables_are_as_after_a_replay_with_payloads(history: list[tuple[bool, tuple[str, int, int, int]]]) -> None:
    """With gaps, appends of several runs, and truncates into the last append. So are the segments that are needed."""
    known, counted, segment = Queues(1), Queues(1, PositionStores()), 0
    for batch, (rolls, step) in enumerate(history):
        segment += rolls
        records = records_of(known, *step)
        counted.stores.begin_batch(batch, 0)
        for queues in (known, counted):
            queues.apply_all(segment, records, batch + 1)
        assert counted.table() == known.table()
        assert counted.pins.by_segment() == known.pins.by_segment()


def records_of(queues: Queues, kind: str, number: int, records: int, gap: int) -> list[LogRecord]:
    """Return the records of a batch that does *kind* to queue *number*, which it creates if it does not exist."""
    queue = queues.get(f"q{number}")
    if queue is None:
        return [Create(queues.next_queue_id, f"q{number}")]
    position, payloads = queue.next_position, [bytes([queue.next_position % 251]) * records] * records
    if kind == "append":
        run = Run.of(position + gap, payloads)
        return [Append(queue.id, run), *(Append(queue.id, Run.of(run.next_position, payloads), True),) * (gap > 1)]
    if kind == "many":
        return [Many.of([queue.id] * records, range(position, position + records), payloads)]
    return [Delete(queue.id)] if kind == "delete" else [Truncate(queue.id, queue.first_position + records)]


def test_no_payload_is_kept_past_its_batch() -> None:
    """So a segment of any size can be replayed. The checksum of the last append is that of its records."""
    queues = Queues(1, PositionStores())
    queues.apply(0, Create(1, "q"))
    run = Run.of(0, [b"x" * 1_000])
    queues.apply_all(0, [Append(1, run)], 1)
    queues.stores.begin_batch(2, 0)
    queue = queues.by_id(1)
    assert queue is not None
    assert (queue.store.memory_bytes, queue.store.records, list(queue.runs(None, None))) == (0, 1, [])
    known = Queues(1)
    known.apply(0, Create(1, "q"))
    known.apply_all(0, [Append(1, run)], 1)
    assert queues.table() == known.table()
