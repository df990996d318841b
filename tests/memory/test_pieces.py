"""Runs by column, against a list of them."""

from __future__ import annotations

import gc

import hypothesis.strategies as st
from hypothesis import given

from mrecordlog_async.memory.gapped import GappedRun, HeldRun
from mrecordlog_async.memory.pieces import CHUNK_RUNS, NO_RUNS, Runs, RunSizes
from mrecordlog_async.model import POSITION_MAX, Run

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("append gaps"), st.just(0), st.integers(2, 4)),
        st.tuples(st.just("append many"), st.just(0), st.integers(1, 3 * CHUNK_RUNS)),
        st.tuples(st.just("remove"), st.just(0), st.integers(0, 3 * CHUNK_RUNS)),
        st.tuples(st.just("join"), st.just(0), st.integers(1, 3 * CHUNK_RUNS)),
    ),
    max_size=20,
)
"""What is done, a gap before it, and how many records (one run), runs of one record, or runs to remove or join."""


def a_run(first_position: int, records: int) -> Run:
    return Run.of(first_position, [b"%d" % position for position in range(records)])


def a_gapped_run(first_position: int, records: int) -> GappedRun:
    _, offsets, payload = a_run(first_position, records)
    return GappedRun.of([first_position + 3 * number for number in range(records)], offsets, payload)


class RunModel:
    """A list of runs next to the columns that must hold the same."""

    def __init__(self) -> None:
        self.runs = Runs()
        self.list: list[HeldRun] = []
        self.position = 0

    def add(self, run: HeldRun) -> None:
        if isinstance(run, GappedRun) or run.record_count > 2:
            self.runs.append_large(run)
        else:
            self.runs.append(*run)
        self.list.append(run)
        self.position = run.next_position

    def step(self, kind: str, gap: int, count: int) -> None:
        """Do one step to both."""
        if kind == "append":
            self.add(a_run(self.position + gap, count))
        elif kind == "append gaps":
            self.add(a_gapped_run(self.position, count))
        elif kind == "append many":
            for _ in range(count):
                self.add(a_run(self.position, 1))
        elif kind == "remove":
            removed, self.list = self.list[:count], self.list[count:]
            assert self.runs.remove_oldest(len(removed)) == sizes_of(removed)
        else:
            self.join(count)

    def join(self, count: int) -> None:
        newest: list[HeldRun] = []
        while self.list and isinstance(self.list[-1], Run) and len(newest) < count:
            newest.insert(0, self.list.pop())
        if not newest:
            return
        records = [record for run in newest for record in run.records()]
        positions = [record.position for record in records]
        joined: HeldRun = Run.of(positions[0], [record.payload for record in records])
        if positions[-1] - positions[0] >= len(records):
            joined = GappedRun.of(positions, joined.offsets, joined.payload)
        self.list.append(joined)
        assert self.runs.join_newest(len(newest)) == joined


def sizes_of(runs: list[HeldRun]) -> RunSizes:
    others = [column for run in runs for column in (run[1], *run[3:])]
    records, payload_bytes = sum(run.record_count for run in runs), sum(len(run.payload) for run in runs)
    return RunSizes(len(runs), records, payload_bytes, sum(map(len, others)))


@given(steps=steps, start=st.integers(-1, 400), length=st.integers(1, 50))
def test_runs_are_what_a_list_says(steps: list[tuple[str, int, int]], start: int, length: int) -> None:
    """After any additions, removals and joins: ends, counts, and the runs with any of the positions asked for."""
    model = RunModel()
    for step in steps:
        model.step(*step)
    runs, listed = model.runs, model.list
    assert len(runs) == len(listed)
    assert runs.between(0, POSITION_MAX) == listed
    stop = start + length
    inside = [run for run in listed if run.first_position < stop and start < run.next_position]
    assert runs.between(start, stop) == inside
    assert runs.between(start, stop, 2) == inside[:2]
    assert runs.ended_by(start) == sum(run.next_position <= start for run in listed)
    from_start = [record for run in runs.starting_at(start) for record in run.records() if record.position >= start]
    assert from_start == [record for run in listed for record in run.records() if record.position >= start]
    if listed:
        assert (runs.oldest(), runs.newest()) == (listed[0], listed[-1])
        assert runs.end() == listed[-1].next_position
    assert not NO_RUNS


def test_a_record_at_the_last_position_is_in_the_runs_from_a_position_on() -> None:
    """A run with gaps is cut at its beginning only."""
    runs = Runs()
    _, offsets, payload = a_run(0, 3)
    runs.append_large(GappedRun.of([5, 7, POSITION_MAX], offsets, payload))
    assert [run.first_position for run in runs.starting_at(6)] == [7, POSITION_MAX]


def test_retained_runs_are_nothing_to_the_cycle_collector() -> None:
    """Whatever number of them is held, the collector visits little more than a reference for each chunk of them."""
    runs = Runs()
    for position in range(100 * CHUNK_RUNS):
        runs.append(*a_run(position, 1))
    for records in range(257, 260):
        runs.append_large(a_run(runs.end(), records))
    gc.collect()
    visited, todo = 0, [runs]
    while todo:
        referents = [each for each in gc.get_referents(todo.pop()) if each is not Runs]
        visited += len(referents)
        todo += filter(gc.is_tracked, referents)
    assert visited <= 100 + len(Runs.__slots__)
