"""The first records of a queue within limits, and the batch that holds them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrecordlog_async.memory.cutting import head_of, take_head
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue, SegmentPins
from mrecordlog_async.memory.store import RetainedStore
from mrecordlog_async.model import Batch, Record, Run

APPENDS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300), st.sampled_from((0, 1, 90, 400))), max_size=8)


def a_queue(appends: list[tuple[int, int, int]], truncated: int) -> tuple[Queue, list[Record]]:
    """Return a queue after appends of (gap, records, size) and a truncate, and its records."""
    queue = Queue(1, "q", SegmentPins())
    for gap, count, size in appends:
        first = queue.next_position + gap
        queue.append(1, Run.of(first, [b"%d" % n + bytes(size) for n in range(first, first + count)]))
    if truncated:
        queue.truncate(truncated - 1)
    return queue, [record for run in queue.runs(None, None) for record in run.records()]


def fitting(records: list[Record], records_max: int, bytes_max: int) -> list[Record]:
    """Return the first records that are within the limits, but at least one."""
    size, taken = 0, list[Record]()
    for record in records:
        size += len(record.payload)
        if taken and (len(taken) == records_max or size > bytes_max):
            break
        taken.append(record)
    return taken


@pytest.mark.parametrize("many", [1, 10**9])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(APPENDS, st.integers(0, 400), st.integers(0, 900), st.integers(1, 700), st.sampled_from((1, 500, 9_000, 10**6)))
def test_a_batch_holds_the_first_records_within_its_limits(
    monkeypatch: pytest.MonkeyPatch,
    many: int,
    appends: list[tuple[int, int, int]],
    truncated: int,
    start: int,
    records_max: int,
    bytes_max: int,
) -> None:
    """Whatever runs it is cut from, looked up at once or one by one; it knows whether a limit ended it."""
    queue, records = a_queue(appends, truncated)
    later = [record for record in records if record.position >= start]
    wanted = fitting(later, records_max, bytes_max)
    head = head_of(queue, start, records_max, bytes_max)
    runs = [run for run in queue.runs(max(start, queue.first_position), None) if later]
    assert [one for run in take_head(runs, records_max, bytes_max) for one in run.records()] == wanted
    size = sum(len(record.payload) for record in wanted)
    assert head.is_full or (len(wanted) == len(later) and len(wanted) < records_max and size < bytes_max)
    if not head.is_full or not wanted:
        assert wanted == later
    if wanted:
        batch = Batch("q", 1, head.runs, head.start, head.stop)
        assert (len(batch), batch.bytes) == (len(wanted), size)
        assert (batch.first_position, batch.last_position) == (wanted[0].position, wanted[-1].position)
        assert list(batch) == wanted
        assert batch.payloads() == [record.payload for record in wanted]
        assert [record for run in batch.runs for record in run.records()] == wanted
        assert batch == Batch("q", 1, batch.runs)


def test_a_read_that_its_bytes_end_looks_up_no_more_runs_than_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that limits batches by bytes alone allows many records; the runs of all of them are not made."""
    queue, _ = a_queue([(0, 300, 90)] * 50, 0)
    found: list[int] = []
    pieces = RetainedStore.pieces

    def counted(store: RetainedStore, first: int, last: int) -> list[HeldRun]:
        made = pieces(store, first, last)
        found.append(len(made))
        return made

    monkeypatch.setattr(RetainedStore, "pieces", counted)
    head = head_of(queue, 0, 15_000, 60_000)
    assert len(head.runs) == 3
    assert sum(found) <= len(head.runs)
