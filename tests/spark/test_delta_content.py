"""What a batch holds, as numbers, and whether it is in the table already."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrecordlog_async.spark.delta.content import BatchVerdict, ForeignBatchError, digest, judge, merged, rows_of
from mrecordlog_async.spark.rows.blocks import READ_SCHEMA

ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2]), st.integers(0, 2**63 - 1)), max_size=20)


def batch(rows: list[tuple[str, int, int]]) -> pa.RecordBatch:
    columns = {"server": ["s"] * len(rows), "queue": [row[0] for row in rows], "queue_id": [row[1] for row in rows]}
    columns |= {"position": [row[2] for row in rows], "timestamp": [None] * len(rows), "payload": [b""] * len(rows)}
    return pa.RecordBatch.from_pydict(columns, READ_SCHEMA)


@settings(deadline=None)
@given(ROWS, st.integers(0, 20))
def test_the_digest_does_not_depend_on_the_tasks(rows: list[tuple[str, int, int]], at: int) -> None:
    """However rows are divided and ordered, the content is the same; the sums are exact for the largest positions."""
    whole = merged(rows_of(batch(rows)))
    assert merged([*rows_of(batch(rows[at:])), *rows_of(batch(rows[:at]))]) == whole
    assert sum(each.sum for each in whole) == sum(row[2] for row in rows)
    assert 0 <= digest(whole) < 2**63
    if rows:
        assert digest(whole) != digest(merged(rows_of(batch(rows[1:]))))


@pytest.mark.parametrize(("stands", "stored"), [(None, None), (6, 5)])
def test_a_batch_right_after_the_last_one_is_stored(stands: int | None, stored: int | None) -> None:
    """The first batch goes into a table that has none of its query."""
    assert judge(0 if stands is None else 7, 5, stands, stored, "t") is BatchVerdict.STORE


def test_a_batch_that_is_there_is_skipped() -> None:
    """The same number with the same content was stored by a run that was killed."""
    assert judge(7, 5, 7, 5, "t") is BatchVerdict.SKIP


@pytest.mark.parametrize(
    ("batch", "stands", "stored", "said"),
    [
        (7, 7, 6, "already has a batch 7 of this query with other records"),
        (7, 9, 5, "ends with batch 9 .* the checkpoint is older"),
        (7, None, None, "has no batch of this query, .* the table was replaced"),
        (7, 3, 5, "ends with batch 3 .* the table is older"),
    ],
)
def test_anything_else_ends_the_query(batch: int, stands: int | None, stored: int | None, said: str) -> None:
    """The sentence says which case it looks like, and what to do."""
    with pytest.raises(ForeignBatchError, match=f"t {said}.*lake resume"):
        judge(batch, 5, stands, stored, "t")
