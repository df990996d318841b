"""Runs to RecordBatches and back, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async.model import Run, Times
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark import blocks
from mrecordlog_async.spark.blocks import MalformedRowsError, record_batches, row_runs

PAYLOADS = st.lists(st.binary(max_size=20), min_size=1, max_size=5)


def block(queue: str, run: Run) -> Block:
    return Block(queue, 1, run.first_position, run.record_count, memoryview(run.offsets), memoryview(run.payload))


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [
        tuple(value for name, value in row.items() if name not in ("queue_id", "timestamp"))
        for batch in batches
        for row in batch.to_pylist()
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2**62), PAYLOADS), max_size=12))
def test_every_record_is_a_row(parts: list[tuple[str, int, list[bytes]]]) -> None:
    """Queues, positions and payloads are the same and in order, however blocks are joined."""
    found = list(record_batches("s", [block(queue, Run.of(at, payloads)) for queue, at, payloads in parts]))
    assert rows_of(found) == [
        ("s", queue, at + n, payload) for queue, at, payloads in parts for n, payload in enumerate(payloads)
    ]
    assert all(batch.schema == blocks.READ_SCHEMA for batch in found)


def test_small_blocks_are_joined_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RecordBatch has a fixed cost, so small blocks are joined; joining a large one would copy it."""
    monkeypatch.setattr(blocks, "BATCH_RECORDS", 10)
    monkeypatch.setattr(blocks, "BATCH_BYTES", 100)
    small = [block("q", Run.of(at, [b"x"] * 4)) for at in range(0, 12, 4)]
    large = block("q", Run.of(12, [bytes(200)]))
    assert [batch.num_rows for batch in record_batches("s", [*small, small[0], large])] == [12, 4, 1]


def test_positions_alone() -> None:
    """Without payloads there are no payloads."""
    found = list(record_batches("s", [block("q", Run.of(7, [b"x", b"y"]))], payload=False))
    assert rows_of(found) == [("s", "q", 7), ("s", "q", 8)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2**62), st.integers(1, 40)), max_size=12))
def test_every_position_is_a_row(parts: list[tuple[str, int, int]]) -> None:
    """However blocks without payloads are joined and cut, the rows are the same."""
    empty = memoryview(b"")
    sent = [Block(queue, 1, first, records, empty, empty) for queue, first, records in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BATCH_RECORDS", 16)
        found = list(record_batches("s", sent, payload=False))
    assert rows_of(found) == [("s", queue, first + n) for queue, first, records in parts for n in range(records)]
    assert all(batch.num_rows < 16 + 16 and batch.schema == blocks.POSITIONS_SCHEMA for batch in found)


def test_many_positions_are_computed_by_pyarrow() -> None:
    """Above the threshold pyarrow computes the positions; the result is the same."""
    records = blocks.RAMP_RECORDS_MIN + 5
    (found,) = record_batches("s", [block("q", Run.of(10**15, [b""] * records))])
    assert found.column("position").to_pylist() == list(range(10**15, 10**15 + records))


def test_decreasing_offsets_are_refused() -> None:
    """Decreasing offsets would make a reader of the column read outside of it."""
    bad = Run(0, b"".join(n.to_bytes(4, "little") for n in (0, 9, 2, 4)), b"abcd")
    with pytest.raises(pa.ArrowInvalid):
        list(record_batches("s", [block("q", bad)]))


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 6), st.binary(max_size=9)), max_size=30)


@settings(deadline=None)
@given(ROWS, st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_rows_are_cut_where_queue_or_position_jumps(
    rows: list[tuple[str, int, bytes]], skip: int, kind: pa.DataType
) -> None:
    """A run has one queue and consecutive positions; slices, whose offsets do not begin at 0, are cut the same way."""
    batch = pa.RecordBatch.from_pydict(
        {
            "queue": pa.array([row[0] for row in rows], pa.string()),
            "position": pa.array([row[1] for row in rows], pa.int64()),
            "payload": pa.array([row[2] for row in rows], kind),
        }
    ).slice(skip)
    found = list(row_runs(batch, None))
    assert [(each.queue, at, payload) for each in found for at, payload in each.run.records()] == rows[skip:]
    assert all(each.position == each.run.first_position for each in found)
    jumps = [(row[0], row[1] - n) for n, row in enumerate(rows[skip:])]
    assert len(found) == len(list(groupby(jumps)))


def test_text_is_utf8_and_one_queue_may_be_named_for_all() -> None:
    """For rows without queue and position, the option names the queue and the log assigns positions."""
    batch = pa.RecordBatch.from_pydict({"payload": pa.array(["grün", "x"])})
    (row_run,) = row_runs(batch, "q")
    assert (row_run.queue, row_run.position) == ("q", None)
    assert row_run.run.payloads() == ["grün".encode(), b"x"]


@pytest.mark.parametrize("column", ["queue", "position", "payload"])
def test_null_is_refused(column: str) -> None:
    """An empty payload is a record; null is refused."""
    columns: dict[str, list[Any]] = {"queue": ["a", "a"], "position": [1, 2], "payload": [b"", b"x"]}
    columns[column] = [None, columns[column][1]]
    with pytest.raises(MalformedRowsError, match=f"'{column}' is null in 1 rows"):
        list(row_runs(pa.RecordBatch.from_pydict(columns), None))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2**62), PAYLOADS, st.booleans()), min_size=1))
def test_small_blocks_give_the_same_batch_either_way(parts: list[tuple[str, int, list[bytes], bool]]) -> None:
    """Gathered record by record, or joined from an array for each block: columns, times and nulls are equal."""
    sent = []
    for number, (queue, at, payloads, timed) in enumerate(parts):
        times = Times.none()
        if timed:
            times.add(at, number)
            times.add(at + 2, number + 1)
        sent.append(block(queue, Run.of(at, payloads))._replace(times=times))
    (gathered,) = record_batches("s", sent)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "SMALL_BLOCK_RECORDS", 0)
        (joined,) = record_batches("s", sent)
    assert gathered.equals(joined)


def test_an_empty_name_of_a_queue_is_refused() -> None:
    """No queue has it, and a request for it would be for another route."""
    rows = pa.RecordBatch.from_pydict({"queue": ["q", "", ""], "payload": [b"a", b"b", b"c"]})
    with pytest.raises(MalformedRowsError, match="the column 'queue' is empty in 2 rows; filter them"):
        list(row_runs(rows, None))


WITHOUT_PANDAS = """
import sys

from mrecordlog_async.model import Run
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark.blocks import record_batches

run = Run.of(7, [b"x"] * 5_000)
block = Block("q", 1, run.first_position, run.record_count, memoryview(run.offsets), memoryview(run.payload))
for payload in (True, False):
    assert sum(batch.num_rows for batch in record_batches("s", [block], payload=payload)) == 5_000
assert "pandas" not in sys.modules
"""


def test_rows_are_read_without_pandas() -> None:
    """pyarrow imports it for what it makes of Python's values: that is most of what a worker takes to start."""
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True)
