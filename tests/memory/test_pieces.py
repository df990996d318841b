"""Runs by column, against a list of them."""

from __future__ import annotations

import gc

import hypothesis.strategies as st
from hypothesis import given

from mrecordlog_async.memory.pieces import MOVED_UP_FROM, NO_RUNS, GappedRun, HeldRun, Runs, SealedRuns
from mrecordlog_async.model import POSITION_MAX, Run

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("append many"), st.just(0), st.integers(1, 2 * MOVED_UP_FROM)),
        st.tuples(st.just("drop"), st.just(0), st.integers(1, 2 * MOVED_UP_FROM)),
    ),
    max_size=20,
)
"""What is done, a gap before it, and how many records (one run), runs of one record, or runs to drop."""


def a_run(first_position: int, records: int) -> Run:
    return Run.of(first_position, [b"%d" % position for position in range(records)])


def a_gapped_run(first_position: int, records: int) -> GappedRun:
    _, offsets, payload = a_run(first_position, records)
    return GappedRun.of([first_position + 3 * number for number in range(records)], offsets, payload)


@given(steps=steps, start=st.integers(-1, 400), length=st.integers(1, 50))
def test_runs_are_what_a_list_says(steps: list[tuple[str, int, int]], start: int, length: int) -> None:
    """After any additions and drops: ends, counts, and the runs with any of the positions asked for."""
    runs, model, position = Runs(), list[Run](), 0
    for kind, gap, count in steps:
        if kind == "drop":
            for _ in range(min(count, len(model))):
                assert runs.drop_oldest() == model.pop(0)
            continue
        for records in [count] if kind == "append" else [1] * count:
            model.append(a_run(position + gap, records))
            runs.append(*model[-1])
            position = model[-1].next_position
    assert len(runs) == len(model)
    assert runs.between(0, POSITION_MAX) == model
    stop = start + length
    assert runs.between(start, stop) == [
        run for run in model if run.first_position < stop and start < run.next_position
    ]
    if model:
        assert (runs.oldest(), runs.newest()) == (model[0], model[-1])
        assert runs.first_position() == model[0].first_position
    assert not NO_RUNS


@given(steps=steps, start=st.integers(-1, 400), length=st.integers(1, 50))
def test_sealed_runs_are_what_a_list_says(steps: list[tuple[str, int, int]], start: int, length: int) -> None:
    """Even where some of them have gaps inside."""
    runs, model, position = SealedRuns(), list[HeldRun](), 0
    for kind, gap, count in steps:
        if kind == "drop":
            for _ in range(min(count, len(model))):
                assert runs.drop_oldest() == model.pop(0)
            continue
        for records in [count] if kind == "append" else [1] * count:
            run = a_gapped_run(position, records + 1) if gap else a_run(position, records)
            model.append(run)
            runs.append(run)
            position = run.next_position
    assert len(runs) == len(model)
    assert runs.between(0, POSITION_MAX) == model
    stop = start + length
    inside = [run for run in model if run.first_position < stop and start < run.next_position]
    assert runs.between(start, stop) == inside
    assert runs.first_from(start) == next((run for run in model if start < run.next_position), None)
    if model:
        assert (runs.oldest(), runs.newest()) == (model[0], model[-1])


def test_a_record_at_the_last_position_is_in_the_runs_from_a_position_on() -> None:
    """A run with gaps is cut at its beginning only."""
    runs = SealedRuns()
    _, offsets, payload = a_run(0, 3)
    runs.append(GappedRun.of([5, 7, POSITION_MAX], offsets, payload))
    assert [run.first_position for run in runs.starting_at(6)] == [7, POSITION_MAX]


def test_retained_runs_are_nothing_to_the_cycle_collector() -> None:
    """A thousand more runs are not one object more for it to visit."""
    runs = Runs()
    runs.append(*a_run(0, 1))
    gc.collect()
    before = len(gc.get_objects())
    for position in range(1, 1_001):
        runs.append(*a_run(position, 1))
    assert len(gc.get_objects()) - before < 10
