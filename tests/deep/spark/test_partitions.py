"""Dividing a batch: every record of the ranges is in exactly one task."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.log_server import LogServer, ReadTask
from mrecordlog_async.spark.planning import TaskLimits, tasks_of
from mrecordlog_async.spark.state import ReadRange


def divided(
    whole: list[ReadRange], tasks: int, tasks_min: int | None = None, records: int | None = None
) -> list[ReadTask]:
    limits = TaskLimits(tasks, tasks_min, records or POSITION_MAX)
    return tasks_of([(LogServer("s", Endpoint("http://s")), "log", whole)], limits)


@st.composite
def ranges(draw: st.DrawFn) -> list[ReadRange]:
    """Ranges of several queues, some with gaps, some empty."""
    found = []
    for index in range(draw(st.integers(0, 12))):
        start, records = draw(st.integers(0, 1_000)), draw(st.integers(0, 5_000))
        gap = draw(st.sampled_from([0, 0, 1, 10**12]))
        size = draw(st.sampled_from([0, 1, 200, 10_000])) * records
        found.append(ReadRange(f"q{index}", index, start, start + records + gap, records, size))
    return found


@given(
    ranges(),
    st.one_of(st.none(), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(1, 10_000)),
    st.integers(1, 16),
)
@settings(max_examples=300, deadline=None)
def test_dividing_neither_loses_nor_doubles_a_record(
    whole: list[ReadRange], partitions_min: int | None, records_max: int | None, cores: int
) -> None:
    """The tasks together are the ranges, and ranges without gaps keep to the limit of records."""
    partitions = divided(whole, cores, partitions_min, records_max)
    pieces = [piece for partition in partitions for piece in partition.ranges]
    for each in whole:
        mine = [piece for piece in pieces if piece.queue == each.queue]
        assert sum(piece.records for piece in mine) == each.records
        assert sum(piece.bytes for piece in mine) == (each.bytes if each.records else 0)
        if mine:
            bounds = [each.start, *(piece.stop for piece in mine)]
            assert bounds == [*(piece.start for piece in mine), each.stop]
    for partition in partitions:
        records = sum(piece.records for piece in partition.ranges)
        assert records > 0
        dense = all(piece.records == piece.stop - piece.start for piece in partition.ranges)
        assert not dense or records_max is None or records <= records_max


def test_small_batches_are_one_task() -> None:
    """A small batch is one task, because a task costs more than reading a few records."""
    whole = [ReadRange(f"q{n}", n, 0, 20, 20, 400) for n in range(100)]
    assert len(divided(whole, 8)) == 1


def test_large_batches_use_every_core() -> None:
    """A large batch is cut into equal tasks, one for each core."""
    whole = [ReadRange("q", 1, 0, 1_000_000, 1_000_000, 200_000_000)]
    partitions = divided(whole, 4)
    assert [sum(each.records for each in task.ranges) for task in partitions] == [250_000] * 4


@pytest.mark.parametrize(("least", "tasks"), [(1, 16), (4, 16), (16, 16), (32, 32)])
def test_the_least_number_of_tasks_is_no_limit(least: int, tasks: int) -> None:
    """A large batch has a task for each core, however few are the least; more than cores are obeyed."""
    whole = [ReadRange("q", 1, 0, 1_000_000, 1_000_000, 200_000_000)]
    assert len(divided(whole, 16, least)) == tasks
