"""The records of a queue in memory: what readers are shown of runs and the tail, whatever was added and dropped."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mrecordlog_async.format.controls import Create, Truncate
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.memory.cutting import head_of
from mrecordlog_async.memory.queue import QUEUE_OVERHEAD_BYTES, Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.store import (
    COMPACT_BYTES,
    NEWEST_BYTES_MAX,
    NEWEST_MAX,
    SEAL_BYTES,
    SEAL_RECORDS,
    SEAL_SPREAD,
)
from mrecordlog_async.model import POSITION_MAX, Run

STORE, IDS = "mrecordlog_async.memory.store", range(1, 4)
SIZES = st.sampled_from([0, 1, 7, 60, 400])
SINGLES = st.lists(st.tuples(st.sampled_from(IDS), SIZES), min_size=1, max_size=8)
STEPS = st.one_of(
    st.tuples(st.just("many"), SINGLES),
    st.tuples(
        st.just("run"), st.sampled_from(IDS), st.lists(SIZES, min_size=1, max_size=6), st.sampled_from([0, 0, 3])
    ),
    st.tuples(st.just("truncate"), st.sampled_from(IDS), st.integers(0, 40)),
    st.tuples(st.just("segment")),
)
LITTLE = {
    f"{STORE}.SEAL_BYTES": 500,
    f"{STORE}.SPREAD_BYTES": 8,
    f"{STORE}.SEAL_RECORDS": 9,
    f"{STORE}.SEAL_SPREAD": 3,
    f"{STORE}.KEPT_BYTES": 300,
    f"{STORE}.KEPT_RECORDS": 5,
    f"{STORE}.COMPACT_BYTES": 50,
    f"{STORE}.NEWEST_MAX": 3,
    f"{STORE}.NEWEST_BYTES_MAX": 70,
    "mrecordlog_async.memory.queues.NEWEST_MAX": 3,
    "mrecordlog_async.memory.queues.NEWEST_BYTES_MAX": 70,
    f"{STORE}.GAPLESS_MAX": 2,
}


class Model:
    """Queues that get MANYs, others that get the same records one by one, and lists that hold what both must show."""

    def __init__(self) -> None:
        self.many, self.single = Queues(1), Queues(1)
        self.held: dict[int, dict[int, bytes]] = {}
        self.next = dict.fromkeys(IDS, 0)
        self.segment = self.tick = 1
        self.shown: list[tuple[list[Run], list[tuple[int, bytes]]]] = []
        for queue_id in IDS:
            self.apply(Create(queue_id, f"q{queue_id}"))
            self.held[queue_id] = {}

    def apply(self, record: LogRecord, *others: LogRecord) -> None:
        """Apply a record, and to the other queues *others* if there are any."""
        self.tick += 1
        dropped = self.many.apply_all(self.segment, [record], self.tick // 3)[2]
        assert self.single.apply_all(self.segment, others or [record], self.tick // 3)[2] == dropped

    def add(self, queue_id: int, size: int, gap: int = 0) -> tuple[int, bytes]:
        """Note a record at the end of a queue, after a gap."""
        position = self.next[queue_id] + gap
        payload = bytes([position % 251]) * size
        self.held[queue_id][position] = payload
        self.next[queue_id] = position + 1
        return position, payload

    def step(self, kind: str, *arguments: Any) -> None:
        """Do a step."""
        if kind == "segment":
            self.segment += 1
        elif kind == "many":
            added = [(queue_id, *self.add(queue_id, size)) for queue_id, size in arguments[0]]
            ids, positions, payloads = zip(*added, strict=True)
            self.apply(Many.of(ids, positions, payloads), *(Append(a, Run.of(b, (c,))) for a, b, c in added))
        elif kind == "run":
            queue_id, sizes, gap = arguments
            run = [self.add(queue_id, size, gap * (not at)) for at, size in enumerate(sizes)]
            self.apply(Append(queue_id, Run.of(run[0][0], [payload for _, payload in run])))
        else:
            queue_id, position = arguments
            self.apply(Truncate(queue_id, position))
            self.held[queue_id] = {at: held for at, held in self.held[queue_id].items() if at > position}
            self.next[queue_id] = max(self.next[queue_id], position + 1)

    def check(self) -> None:
        """Compare what both show, and look again at what they have shown before."""
        assert self.many.table() == self.single.table()
        assert self.many.pins.by_segment() == self.single.pins.by_segment()
        for queues in (self.many, self.single):
            for queue in queues:
                self.check_queue(queue)
            sums = sum(queue.memory_bytes for queue in queues)
            assert queues.memory_bytes - queues.overhead_bytes == sums - QUEUE_OVERHEAD_BYTES * len(queues)
        for runs, records in self.shown:
            assert [record for run in runs for record in run.pairs()] == records

    def check_queue(self, queue: Queue) -> None:
        """Compare a queue with its list."""
        held = sorted(self.held[queue.id].items())
        runs = list(queue.runs(None, None))
        assert [record for run in runs for record in run.pairs()] == held
        self.shown.append((runs, held))
        assert (queue.records, queue.live_bytes()) == (len(held), sum(len(payload) for _, payload in held))
        assert queue.first_record() == (held[0][0] if held else None)
        assert queue.memory_bytes >= QUEUE_OVERHEAD_BYTES + queue.live_bytes() + 4 * queue.records
        assert queue.memory_bytes == QUEUE_OVERHEAD_BYTES or held
        for at, _ in held[::5]:
            head = head_of(queue, at, 3, 70)
            assert head.batch(queue).payloads() == self.first(held, at)

    def first(self, held: list[tuple[int, bytes]], start: int) -> list[bytes]:
        """Return what a read from *start* on returns that takes three records, and one or more of 70 bytes."""
        found: list[bytes] = []
        for _, payload in [each for each in held if each[0] >= start][:3]:
            if found and sum(map(len, found)) + len(payload) > 70:
                break
            found.append(payload)
        return found


@given(st.lists(STEPS, max_size=25))
def test_any_history_shows_what_lists_hold(steps: list[tuple[Any, ...]]) -> None:
    """However records were added and dropped; what a read has shown stays as it was, and the sums of memory fit."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in LITTLE.items():
            patched.setattr(name, value)
        model = Model()
        for step in steps:
            model.step(*step)
            model.check()


def queue_of(queues: Queues, queue_id: int) -> Queue:
    """Return a queue that exists."""
    queue = queues.by_id(queue_id)
    assert queue is not None
    return queue


def fill(queues: Queues, queue_id: int, records: int, size: int) -> None:
    """Append single records to a queue, as a MANY does."""
    first = queue_of(queues, queue_id).next_position
    queues.apply(0, Many.of([queue_id] * records, range(first, first + records), [bytes(size)] * records))


def one_queue() -> tuple[Queues, Queue]:
    """Return queues with one among them, whose id is 1."""
    queues = Queues(1)
    queues.apply(0, Create(1, "q"))
    return queues, queue_of(queues, 1)


@pytest.mark.parametrize("size", [0, 10, 200, 5_000])
def test_a_tail_becomes_a_run_of_32_to_64_kib_or_500_to_1000_records(size: int) -> None:
    """With what the last copy adds that fills it. Which of these sizes depends on the queue."""
    queues, queue = one_queue()
    fill(queues, 1, 2_500, size)
    runs = list(queue.runs(None, None))
    assert len(runs) > 2
    for run in runs[:-2]:  # but for the tail and the newest records
        held, more = (
            len(run.payload) + len(run.offsets),
            NEWEST_MAX * (size + 4) if size <= NEWEST_BYTES_MAX else size + 4,
        )
        by_records = SEAL_RECORDS - SEAL_SPREAD < run.record_count < SEAL_RECORDS + NEWEST_MAX
        assert by_records or SEAL_BYTES // 2 < held < SEAL_BYTES + more + 4


def test_a_reader_that_pauses_keeps_no_append_from_a_tail() -> None:
    """And sees what was there when it began."""
    queues, queue = one_queue()
    fill(queues, 1, 10, 100)
    read, records = iter(queue.runs(None, None)), queue.store.runs_from(3, 2, POSITION_MAX)
    first = next(records)
    fill(queues, 1, 2_000, 100)
    queues.apply(0, Truncate(1, 1_000))
    assert sum(run.record_count for run in read) == 10
    assert (first.first_position, first.record_count) == (3, 2)


def test_a_read_of_a_tail_copies_no_more_than_it_returns() -> None:
    """A reader that takes a few records at a time does not copy hundreds each time."""
    queues, queue = one_queue()
    fill(queues, 1, 400, 50)
    for start in (7, 397):
        (run,) = queue.held(start, None, records_max=2)
        assert (run.first_position, run.record_count, len(run.payload)) == (start, 2, 100)
        assert next(queue.store.runs_from(start, 100, 120)).payload == bytes(100)


def test_a_read_that_ends_within_the_tail_continues_there() -> None:
    """Single records that were not copied to the tail yet follow it in a read only if that has all of the tail."""
    queues, queue = one_queue()
    fill(queues, 1, NEWEST_MAX + 5, 10)
    whole = [record for run in queue.runs(None, None) for record in run.pairs()]
    for wanted in range(1, NEWEST_MAX + 5):
        runs = list(queue.store.runs_from(0, wanted, POSITION_MAX))
        found = [record for run in runs for record in run.pairs()]
        assert found == whole[: len(found)] and len(found) >= wanted
        assert [
            record for run in queue.store.runs_from(0, POSITION_MAX, 10 * wanted) for record in run.pairs()
        ] == found


def test_what_is_truncated_of_a_tail_leaves_memory() -> None:
    """At the latest when it is more than what is left, and half a KiB."""
    queues, queue = one_queue()
    fill(queues, 1, 300, 100)
    most = queue.memory_bytes
    for position in range(290):
        queues.apply(0, Truncate(1, position))
        live = queue.live_bytes() + 4 * queue.records
        assert queue.memory_bytes < QUEUE_OVERHEAD_BYTES + 300 + 1.3 * (2 * live + COMPACT_BYTES)
    assert queue.memory_bytes < most // 10
    queues.apply(0, Truncate(1, 299))
    assert queue.memory_bytes == QUEUE_OVERHEAD_BYTES


def test_a_roll_needs_no_read_of_the_queues_it_knows() -> None:
    """The checksum of a last append is kept until there is another one."""
    queues, queue = one_queue()
    fill(queues, 1, 10, 100)
    table = queues.table()
    with patch(f"{STORE}.RetainedStore.checksum", side_effect=AssertionError):
        assert queues.table() == table
        assert queue.last_append() == table.entries[0].last_append
