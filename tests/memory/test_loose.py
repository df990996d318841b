"""Loose records: the same to every reader as records in runs, with memory charged by block and given back."""

from __future__ import annotations

import gc
import random
import tracemalloc
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.record import MANY_RECORDS_MAX, Append, LogRecord, Many
from mrecordlog_async.memory import queues as queues_module
from mrecordlog_async.memory import store as retained
from mrecordlog_async.memory.cutting import first_records, head_of
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.loose import LOOSE_BYTES_MAX, LOOSE_RECORDS_MIN, any_in_block
from mrecordlog_async.memory.pieces import Runs
from mrecordlog_async.memory.queue import ReplayError
from mrecordlog_async.memory.queues import SETTLED_AT_ONCE, Queues
from mrecordlog_async.memory.store import RetainedStore
from mrecordlog_async.model import Run
from tests.memory.states import state_of

SEGMENT = 3


def queues_with(number: int) -> Queues:
    """Make queues with the ids and names 1 to *number*."""
    queues = Queues(1)
    for queue_id in range(1, number + 1):
        queues.apply(0, Create(queue_id, str(queue_id)))
    return queues


def append_to(queues: Queues, ids: list[int], size: int = 10, segment: int = SEGMENT) -> Many:
    """Append a record to each of *ids*, which may name a queue twice, as the writer does."""
    ends: dict[int, int] = {}
    positions = []
    for queue_id in ids:
        queue = queues.by_id(queue_id)
        assert queue is not None
        positions.append(ends.setdefault(queue_id, queue.next_position))
        ends[queue_id] += 1
    many = Many.of(ids, positions, [b"%d:%d;" % at + b"." * size for at in zip(ids, positions, strict=True)])
    queues.apply_all(segment, [many])
    return many


def loose(queues: Queues) -> int:
    """Return the number of loose records."""
    return sum(len(queue.store.loose) for queue in queues)


def truncate(queues: Queues, queue_id: int, left: int = 0) -> None:
    """Truncate a queue up to its last *left* records."""
    queue = queues.by_id(queue_id)
    assert queue is not None
    queues.apply_all(SEGMENT, [Truncate(queue_id, queue.next_position - 1 - left)])


def test_loose_records_are_read_as_runs() -> None:
    """A reader sees runs, cut to what was asked for, and reading changes nothing."""
    queues = queues_with(5)
    queues.apply(SEGMENT, Append(2, Run.of(0, [b"a", b"b"])))
    append_to(queues, [1, 2, 3, 4, 5, 2, 2])
    queue = queues.get("2")
    assert queue is not None
    assert len(queue.store.loose) == 3
    payloads = [b"2:%d;.........." % position for position in (2, 3, 4)]
    assert queue.runs(None, None) == [Run.of(0, [b"a", b"b"]), Run.of(2, payloads)]
    assert queue.runs(3, 4) == [Run.of(3, payloads[1:2])]
    assert queue.runs(1, 3) == [Run.of(1, [b"b"]), Run.of(2, payloads[:1])]
    assert queue.held(None, None, most=1) == [Run.of(0, [b"a", b"b"])]
    assert queue.head(0) == [Run.of(0, [b"a", b"b"])]
    assert queue.head(3) == [Run.of(3, payloads[1:])]
    assert queue.head(5) == []
    assert queue.last_record() == (4, payloads[2])
    assert (queue.held_end(), queue.live_bytes(), queue.records) == (5, 2 + 3 * 14, 5)
    assert len(queue.store.loose) == 3
    state_of(queues)


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4])
def test_truncated_loose_records_are_dropped(left: int) -> None:
    """Any number of them, together with the runs before them."""
    queues = queues_with(4)
    queues.apply(SEGMENT, Append(1, Run.of(0, [b"a"])))
    append_to(queues, [1, 1, 2, 3, 4, 1])
    truncate(queues, 1, left)
    queue = queues.get("1")
    assert queue is not None
    assert queue.records == left
    assert len(queue.store.loose) == min(left, 3)
    assert [record.position for run in queue.runs(None, None) for record in run.records()] == [0, 1, 2, 3][4 - left :]
    state_of(queues)


def test_many_with_few_or_large_records_does_not_become_a_block() -> None:
    """Such a block would cost more than runs, or make settling copy much at once."""
    queues = queues_with(5)
    append_to(queues, [1] * (LOOSE_RECORDS_MIN - 1))
    assert loose(queues) == 0
    append_to(queues, [1, 2, 3, 4], size=LOOSE_BYTES_MAX)
    assert loose(queues) == 0
    append_to(queues, [1, 2, 3, 4])
    assert loose(queues) == 4
    state_of(queues)


def test_another_append_and_a_gap_settle_the_records_before() -> None:
    """Loose records are the newest ones, without gaps. They may be of several segments."""
    queues = queues_with(4)
    append_to(queues, [1, 2, 3, 4])
    queues.apply(SEGMENT, Append(1, Run.of(1, [b"run"])))
    queues.apply(SEGMENT, Many.of([2, 1, 1, 1], [7, 2, 3, 4], [b"gap", b"", b"", b""]))
    queues.apply(SEGMENT + 1, Many.of([3, 1, 1, 1], [1, 5, 6, 7], [b"new", b"", b"", b""]))
    assert [len(queue.store.loose) for queue in queues] == [6, 1, 2, 1]
    assert [queue.segments() for queue in queues] == [[3, 4], [3], [3, 4], [3]]
    state = state_of(queues)
    assert [[position for position, _ in seen.records] for seen in state.queues] == [[*range(8)], [0, 7], [0, 1], [0]]


def test_place_that_is_taken_is_refused() -> None:
    """A MANY that does not fit the queues is damage, as an APPEND would be."""
    queues = queues_with(4)
    append_to(queues, [1, 2, 3, 4])
    with pytest.raises(ReplayError, match="position 0 is taken, the next one is 1"):
        queues.apply(SEGMENT, Many.of([1, 2, 3, 4], [1, 0, 1, 1], [b""] * 4))
    with pytest.raises(ReplayError, match="queue id 9, which does not exist"):
        queues.apply(SEGMENT, Many.of([1, 9, 3, 4], [2, 0, 1, 1], [b""] * 4))


def test_enough_loose_records_become_a_run() -> None:
    """At a number that depends on the queue, so that queues that are filled in turn do not settle together."""
    queues = queues_with(250)
    settled = []
    for _ in range(retained.LOOSE_RECORDS_MAX):
        before = loose(queues)
        append_to(queues, [*range(1, 251)], size=0)
        settled.append(before + 250 - loose(queues))
    assert sum(settled) > 250 * retained.LOOSE_RECORDS_LEAST
    assert max(settled) <= SETTLED_AT_ONCE + 2 * retained.LOOSE_RECORDS_MAX
    assert all(len(queue.runs(None, None)) <= 5 for queue in queues)
    state_of(queues)


def test_last_append_and_table_are_those_of_single_appends() -> None:
    """The digest does not depend on how records are kept, even after they were settled or truncated."""
    apart, together = queues_with(4), queues_with(4)
    for number in range(3):
        many = append_to(together, [1, 2, 3, 4, 1])
        apart.apply_all(SEGMENT, many.appends())
        assert apart.table() == together.table()
        for queues in (apart, together):
            truncate(queues, 2, number)
            queues.apply_all(SEGMENT, [Truncate(3, 50 * number)])
        assert apart.table() == together.table()
    for queue in together:
        together.settling.grown_bytes += queue.settle()
    assert loose(together) == 0
    assert apart.table() == together.table()


# A new segment.


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each join copied, loose ones and those of open runs, from now on."""
    sizes: list[int] = []
    loose_run, join_newest = RetainedStore._loose_run, Runs.join_newest

    def _loose_run(self: RetainedStore, start: int, stop: int) -> Run:
        run = loose_run(self, start, stop)
        sizes.append(run.record_count)
        return run

    def joined(self: Runs, count: int) -> HeldRun:
        sizes.append(count)
        return join_newest(self, count)

    monkeypatch.setattr(RetainedStore, "_loose_run", _loose_run)
    monkeypatch.setattr(Runs, "join_newest", joined)
    return sizes


def test_entering_a_segment_joins_nothing(joined: list[int]) -> None:
    """After a roll all queues enter the new segment within moments: whatever they hold stays as it is."""
    queues = queues_with(250)
    for queue_id in range(1, 251):
        queues.apply(SEGMENT, Append(queue_id, Run.of(0, [b"open"])))
    for _ in range(100):
        append_to(queues, [*range(1, 251)])
    append_to(queues, [*range(1, 251)], segment=SEGMENT + 1)
    queues.apply_all(SEGMENT + 2, [Append(1, Run.of(102, [b"run"]))])
    assert joined == [101]  # of the queue with another kind of append, which comes after its loose records
    assert [queue.segments() for queue in queues] == [[3, 4, 5]] + 249 * [[3, 4]]
    truncate(queues, 1, left=1)
    truncate(queues, 2, left=1)
    assert [queue.segments() for queue in queues] == [[5], [4]] + 248 * [[3, 4]]
    state_of(queues)


def test_records_of_earlier_segments_are_settled_in_steps(joined: list[int]) -> None:
    """A step ends when its time is over, after one queue at least; what is settled once is not looked at again."""
    queues = queues_with(250)
    for _ in range(40):
        append_to(queues, [*range(1, 251)])
    assert not queues.settling.has_old()
    queues.settling.settle_old()
    assert joined == []
    append_to(queues, [1, 2, 3, 4], segment=SEGMENT + 1)
    steps = 0
    while queues.settling.has_old():
        done = len(joined)
        queues.settling.settle_old(lambda done=done: len(joined) - done >= 10)  # type: ignore[misc]  # the default is a number
        assert len(joined) - done <= 10
        steps += 1
    assert joined == 4 * [41] + 246 * [40]
    assert steps <= 250 / 10 + 1
    assert loose(queues) == queues.blocks.memory_bytes == 0
    append_to(queues, [1, 2, 3, 4], segment=SEGMENT + 1)
    assert not queues.settling.has_old()
    state_of(queues)


def test_dead_blocks_of_earlier_segments_cost_a_step_no_more_than_its_time() -> None:
    """A million truncated blocks must not be passed in a single step."""
    queues = queues_with(4)
    for _ in range(100):
        append_to(queues, [1, 2, 3, 4])
    for queue_id in range(1, 5):
        truncate(queues, queue_id)
    append_to(queues, [1, 2, 3, 4], segment=SEGMENT + 1)
    looks = 0
    while queues.settling.has_old():
        looks += 1
        queues.settling.settle_old(lambda: True)
    assert looks == 100
    assert loose(queues) == 4


@pytest.mark.parametrize(("records", "size"), [(1, 1 << 20), (7, 1 << 20), (2_000, 3 * 14), (3_000, 1 << 20)])
def test_a_read_joins_no_more_than_it_returns(joined: list[int], records: int, size: int) -> None:
    """A reader that takes a few records at a time does not copy hundreds each time."""
    queues = queues_with(4)
    for _ in range(200):
        append_to(queues, [1, 2, 3, 4], size=8)
    queue = queues.by_id(1)
    assert queue is not None
    head = head_of(queue, 10, records, size)
    assert head.stop - head.start == sum(joined) == min(records, 190, size // 12)
    assert head.is_full is (head.stop < 200)
    joined.clear()
    assert sum(run.record_count for run in first_records(queue, 10, None, records)) == sum(joined) == min(records, 190)


# Memory.


def test_block_is_charged_until_its_last_record_is_dropped() -> None:
    """What one record keeps in memory is counted as in use."""
    queues = queues_with(4)
    empty = queues.memory_bytes
    append_to(queues, [1, 2, 3, 4], size=1_000)
    full = queues.blocks.memory_bytes
    assert full > 4_000
    for queue_id in (1, 2):
        truncate(queues, queue_id)
    assert queues.blocks.memory_bytes == full
    truncate(queues, 3)  # a quarter is left: it is settled
    assert queues.blocks.memory_bytes == 0
    truncate(queues, 4)
    assert queues.memory_bytes == empty


def test_queue_that_lives_in_dead_blocks_does_not_keep_them() -> None:
    """The worst case: one queue keeps a record of each block, and everything else in the blocks is truncated."""
    queues = queues_with(MANY_RECORDS_MAX)
    for _ in range(250):
        append_to(queues, [*range(1, MANY_RECORDS_MAX + 1)], size=90)
        for queue_id in range(2, MANY_RECORDS_MAX + 1):
            truncate(queues, queue_id)
    kept = queues.by_id(1)
    assert kept is not None
    assert kept.records == 250
    assert queues.blocks.memory_bytes == 0
    assert queues.memory_bytes < 500 * MANY_RECORDS_MAX + 250 * 250
    state_of(queues)


def test_sparse_blocks_are_settled_in_steps() -> None:
    """Truncating most queues makes many blocks sparse at once; each batch settles a limited number of records."""
    queues = queues_with(250)
    for _ in range(200):
        append_to(queues, [*range(1, 251)], size=90)
    truncates = [Truncate(queue_id, 10_000) for queue_id in range(1, 201)]
    before = loose(queues)
    queues.apply_all(SEGMENT, truncates)
    steps = []
    while queues.settling.has_sparse():
        steps.append(loose(queues))
        queues.settling.settle_sparse()
    assert before - 200 * 200 == 50 * 200
    assert len(steps) > 3
    assert all(a - b <= SETTLED_AT_ONCE + retained.LOOSE_RECORDS_MAX for a, b in pairwise(steps))
    assert loose(queues) == queues.blocks.memory_bytes == 0
    state_of(queues)


def test_memory_that_dead_records_take_is_freed_on_demand() -> None:
    """Blocks that are not sparse yet count too, as far as settling them frees anything."""
    queues = queues_with(250)
    for _ in range(40):
        append_to(queues, [*range(1, 251)], size=90)
    for queue_id in range(1, 151):
        truncate(queues, queue_id)
    assert not queues.settling.has_sparse()
    before = queues.memory_bytes
    queues.settling.free_memory(100_000)
    assert queues.memory_bytes <= before - 100_000
    queues.settling.free_memory(1 << 40)
    assert queues.memory_bytes < before / 2
    state_of(queues)


def test_settling_notes_the_last_append_of_each_queue() -> None:
    """While its payload is at hand: a roll would compute those of all queues at once, which every commit waits for."""
    queues = queues_with(4)
    append_to(queues, [1, 2, 3, 4])
    queues.encoded_table()
    append_to(queues, [1, 2, 3, 4])
    queues.apply_all(SEGMENT + 1, [])
    queues.settling.settle_old()
    assert loose(queues) == 0
    with patch.object(RetainedStore, "checksum", side_effect=AssertionError):
        queues.encoded_table()


def test_nothing_is_settled_while_a_table_is_written() -> None:
    """The log's thread reads the queues meanwhile."""
    queues = queues_with(4)
    append_to(queues, [1, 2, 3, 4])
    for queue_id in (1, 2):
        truncate(queues, queue_id)
    queues.apply_all(SEGMENT + 1, [])
    pauses: list[int] = []

    def settle() -> None:
        queues.settling.free_memory(1 << 40)
        queues.settling.settle_old()
        pauses.append(loose(queues))

    queues.encoded_table(settle)
    assert pauses == [2]
    assert queues.settling.has_old()


def test_counted_memory_is_that_of_the_process() -> None:
    """Even after nine of ten queues were truncated."""
    chance = random.Random(7)
    queues = queues_with(1_000)
    gc.collect()
    tracemalloc.start()
    try:
        counted = queues.memory_bytes
        for _ in range(400):
            append_to(queues, chance.sample(range(1, 1_001), MANY_RECORDS_MAX), size=100)
        assert tracemalloc.get_traced_memory()[0] < 1.05 * (queues.memory_bytes - counted)
        for queue_id in range(101, 1_001):
            truncate(queues, queue_id)
        while queues.settling.has_sparse():
            queues.settling.settle_sparse()
        live = sum(queue.live_bytes() for queue in queues)
        assert tracemalloc.get_traced_memory()[0] < 1.05 * (queues.memory_bytes - counted) + 200_000
        assert queues.memory_bytes - counted < 1.5 * live
    finally:
        tracemalloc.stop()


def test_any_place_in_a_block() -> None:
    """Places in earlier and later blocks do not count."""
    places = array("Q", [5, 0x105, 0x106, 0x300])
    assert [any_in_block(places, number) for number in range(5)] == [True, True, False, True, False]


# Any history.

steps = st.one_of(
    st.tuples(st.just("many"), st.lists(st.integers(1, 5), min_size=1, max_size=12)),
    st.tuples(st.just("many"), st.lists(st.integers(1, 5), min_size=1, max_size=12)),
    st.tuples(st.just("run"), st.integers(1, 5), st.integers(0, 2), st.integers(1, 3)),
    st.tuples(st.just("gap"), st.lists(st.integers(1, 5), min_size=4, max_size=6, unique=True), st.integers(0, 3)),
    st.tuples(st.just("truncate"), st.integers(1, 5), st.integers(-2, 9)),
    st.tuples(st.just("delete"), st.integers(1, 5)),
    st.tuples(st.just("roll")),
    st.tuples(st.just("settle"), st.integers(1, 5)),
    st.tuples(st.just("settle_old"), st.integers(1, 5)),
    st.tuples(st.just("read"), st.integers(1, 5), st.integers(0, 40), st.integers(1, 9), st.integers(1, 40)),
    st.tuples(st.just("free"), st.integers(0, 5_000)),
)


@given(history=st.lists(steps, max_size=30), most=st.sampled_from([3, 9, 400]))
@settings(deadline=None, max_examples=250)
def test_any_history_ends_as_with_single_appends(history: list[tuple[Any, ...]], most: int) -> None:
    """Contents, positions, tables, pins and what truncates report are the same; the sums of memory fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained, "LOOSE_RECORDS_MAX", most)
        patch.setattr(retained, "LOOSE_SPREAD", 2)
        patch.setattr(queues_module, "LOOSE_RECORDS_LEAST", most - 1)
        patch.setattr(retained, "KEPT_RECORDS", 5)
        together, apart = queues_with(5), queues_with(5)
        segment = 0
        for kind, *arguments in history:
            if kind == "roll":
                segment += 1
            elif kind == "settle":
                together.settling.settle_sparse(*arguments)
            elif kind == "settle_old":
                left = iter(range(arguments[0]))
                together.settling.settle_old(lambda left=left: next(left, None) is None)  # type: ignore[misc]  # it is one
            elif kind == "read":
                for queue_id, *limits in [arguments]:
                    assert first_read(together, queue_id, *limits) == first_read(apart, queue_id, *limits)
            elif kind == "free":
                together.settling.free_memory(*arguments)
            else:
                records = [*records_of(kind, arguments, together)]
                told = together.apply_all(segment, records)
                each = [single for record in records for single in singles_of(record)]
                assert told == apart.apply_all(segment, each)
            assert state_of(together) == state_of(apart)
            assert together.table() == apart.table()
            assert [queue.segments() for queue in together] == [queue.segments() for queue in apart]
            assert [queue.last_record() for queue in together] == [queue.last_record() for queue in apart]
            assert [queue.held_end() for queue in together] == [queue.held_end() for queue in apart]


def first_read(queues: Queues, queue_id: int, start: int, records: int, size: int) -> object:
    """Return what a reader with limits gets of a queue."""
    queue = queues.by_id(queue_id)
    if queue is None:
        return None
    head = head_of(queue, start, records, size)
    payloads = [record for run in head.runs for record in run.records() if head.start <= record.position < head.stop]
    taken = [record for run in first_records(queue, start, None, records) for record in run.records()]
    return payloads, head.stop if payloads else None, head.is_full, taken


def records_of(kind: str, arguments: list[Any], queues: Queues) -> Iterator[LogRecord]:
    """Yield the log records of a step; none if a queue of it was deleted."""
    ids = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
    found = {queue_id: queue for queue_id in ids if (queue := queues.by_id(queue_id)) is not None}
    ids = [queue_id for queue_id in ids if queue_id in found]
    if not ids:
        return
    queue = found[ids[0]]
    if kind == "many":
        ends = {queue_id: queue.next_position for queue_id, queue in found.items()}
        positions = []
        for queue_id in ids:
            positions.append(ends[queue_id])
            ends[queue_id] += 1
        yield Many.of(ids, positions, [b"%d" % at * 9 for at in positions])
    elif kind == "gap":
        positions = [found[queue_id].next_position + arguments[1] for queue_id in ids]
        yield Many.of(ids, positions, [b"gap"] * len(ids))
    elif kind == "run":
        first = queue.next_position + arguments[1]
        yield Append(queue.id, Run.of(first, [b"run"] * arguments[2]))
    elif kind == "truncate":
        yield Truncate(queue.id, max(queue.next_position - 1 - arguments[1], 0))
    else:
        yield Delete(queue.id)


def singles_of(record: LogRecord) -> Iterator[LogRecord]:
    """Yield *record*, a MANY as its APPENDs."""
    if isinstance(record, Many):
        yield from record.appends()
    else:
        yield record
