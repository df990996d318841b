"""What is reported of a queue: a list that was sent is known to be outdated by a number per queue."""

from __future__ import annotations

from dataclasses import fields

import hypothesis.strategies as st
from hypothesis import given

from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.record import Append, LogRecord
from mrecordlog_async.format.stored_options import SEALED, SetOptions, StoredOptions
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.reads import fingerprint, summarize
from mrecordlog_async.model import QueueSummary, Run

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(-4, 2), st.just(0)),
        st.tuples(st.just("seal"), st.just(0), st.just(0)),
        st.tuples(st.just("limit"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("recreate"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


def record_of(kind: str, one: int, two: int, now: QueueSummary) -> list[LogRecord]:
    """Return the log records of one step after which a queue's summary may be another one."""
    if kind == "append":
        return [Append(now.id, Run.of(now.next_position + one, [b"x" * two] * two))]
    if kind == "truncate":
        return [Truncate(now.id, max(now.next_position - 1 + one, 0))]
    if kind == "recreate":
        return [Delete(now.id), Create(now.id + 1, "q")]
    return [SetOptions(now.id, StoredOptions(SEALED * (kind == "seal" or now.sealed), max_records=100 + one))]


def states(actions: list[tuple[str, int, int]]) -> list[tuple[QueueSummary, int]]:
    """Return the summary and the fingerprint of a queue at first, and after each step."""
    queues = Queues(1)
    queues.apply(0, Create(1, "q"))
    found: list[tuple[QueueSummary, int]] = []
    for step, action in enumerate([None, *actions], 1):
        if action is not None:
            queues.apply_all(step, record_of(*action, found[-1][0]), tick=1_000 * step)
        queue = queues.get("q")
        assert queue is not None
        found.append((summarize(queue), fingerprint(queue)))
    return found


@given(steps)
def test_a_fingerprint_is_another_one_once_the_summary_is(actions: list[tuple[str, int, int]]) -> None:
    """Of any two moments: a queue that changed is never left out of a list of changes."""
    found = states(actions)
    for at, (summary, mark) in enumerate(found):
        for later, later_mark in found[at + 1 :]:
            assert (summary == later) or mark != later_mark


def test_every_field_of_a_summary_is_seen_to_change() -> None:
    """A new field must change in the test above too; a queue's name is what it is known by."""
    actions = [("append", 2, 2), ("append", 0, 3), ("truncate", -2, 0), ("seal", 0, 0), ("recreate", 0, 0)]
    summaries = [summary for summary, _ in states(actions)]
    differing = {one.name for one in fields(QueueSummary) if len({getattr(each, one.name) for each in summaries}) > 1}
    assert differing == {one.name for one in fields(QueueSummary)} - {"queue"}
