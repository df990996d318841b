"""Packing: every record of the ranges is in exactly one partition."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.positions.partitions import Partition, Range, pack, partition_size


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    """Ranges of several queues, some with gaps, some empty."""
    found = []
    for index in range(draw(st.integers(0, 12))):
        start, records = draw(st.integers(0, 1_000)), draw(st.integers(0, 5_000))
        gap = draw(st.sampled_from([0, 0, 1, 10**12]))
        size = draw(st.sampled_from([0, 1, 200, 10_000])) * records
        found.append(Range(f"q{index}", index, start, start + records + gap, records, size))
    return found


@given(
    ranges(),
    st.one_of(st.none(), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(1, 10_000)),
    st.integers(1, 16),
)
@settings(max_examples=300, deadline=None)
def test_packing_neither_loses_nor_doubles_a_record(
    whole: list[Range], partitions_min: int | None, records_max: int | None, cores: int
) -> None:
    """The partitions together are the ranges, and ranges without gaps keep to the limit of records."""
    partitions = pack("s", whole, partition_size(whole, partitions_min, records_max, cores))
    pieces = [piece for partition in partitions for piece in partition.ranges]
    for each in whole:
        mine = [piece for piece in pieces if piece.queue == each.queue]
        assert sum(piece.records for piece in mine) == each.records
        assert sum(piece.bytes for piece in mine) == (each.bytes if each.records else 0)
        if mine:
            bounds = [each.start, *(piece.stop for piece in mine)]
            assert bounds == [*(piece.start for piece in mine), each.stop]
    for partition in partitions:
        assert partition.records > 0
        dense = all(piece.records == piece.stop - piece.start for piece in partition.ranges)
        assert not dense or records_max is None or partition.records <= records_max


@given(ranges())
def test_a_partition_arrives_as_it_was_sent(whole: list[Range]) -> None:
    """Whether a task gets thousands of ranges or none, they are those that were planned."""
    sent = Partition("s", tuple(whole), "log", "address", Endpoint("http://a", name="a"))
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_small_batches_are_one_task() -> None:
    """A small batch is one task, because a task costs more than reading a few records."""
    whole = [Range(f"q{n}", n, 0, 20, 20, 400) for n in range(100)]
    assert len(pack("s", whole, partition_size(whole, None, None, 8))) == 1


def test_large_batches_use_every_core() -> None:
    """A large batch is cut into equal tasks, one for each core."""
    whole = [Range("q", 1, 0, 1_000_000, 1_000_000, 200_000_000)]
    partitions = pack("s", whole, partition_size(whole, None, None, 4))
    assert [partition.records for partition in partitions] == [250_000] * 4


@pytest.mark.parametrize(("least", "tasks"), [(1, 16), (4, 16), (16, 16), (32, 32)])
def test_the_least_number_of_tasks_is_no_limit(least: int, tasks: int) -> None:
    """A large batch has a task for each core, however few are the least; more than cores are obeyed."""
    whole = [Range("q", 1, 0, 1_000_000, 1_000_000, 200_000_000)]
    assert len(pack("s", whole, partition_size(whole, least, None, 16))) == tasks


def test_pieces_that_follow_each_other_are_one_range() -> None:
    """Adjacent pieces of a queue become one range of the request."""
    pieces = [Range("q", 1, at, at + 10, 10, 100) for at in range(0, 100, 10)]
    size = partition_size(pieces, None, None, 1)
    assert pack("s", pieces, size) == [Partition("s", (Range("q", 1, 0, 100, 100, 1_000),))]
