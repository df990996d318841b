"""A restore's task without a JVM: what is stored, and what is refused because the log differs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mrecordlog_async.spark.restore.restoring import restored
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source import writer
from tests.spark.services import ThreadedService, numbered
from tests.spark.test_writer import expected, rows


def restore(service: ThreadedService, *batches: pa.RecordBatch) -> dict[str, tuple[int | None, ...]]:
    """Restore rows; return queue → first refused position, refused rows below its end and past it; repeated rows."""
    ends = {queue: each.next_position for queue, each in service.summary().items()}
    found: list[dict[str, Any]] = []
    for batch in restored(Options.parse({"servers": service.url, "retries": "0"}), ends, batches):
        found += batch.to_pylist()
    return {row["queue"]: (row["position"], row["present"], row["stored"], row["again"]) for row in found}


def test_rows_are_stored_once(service: ThreadedService) -> None:
    """What is missing is stored at its position, and nothing is refused; again, it changes nothing."""
    service.append("q", numbered("q", 0, 30))
    for _ in range(2):
        assert restore(service, rows("q", 0, 50), rows("r", 7, 9)) == {}
        assert service.records() == {"q": expected("q", 0, 50), "r": expected("r", 7, 9)}


@pytest.mark.parametrize("at_once", [7, 100])
def test_a_queue_that_differs_gets_nothing_more(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """From the first row that differs on, nothing is stored in that queue; equal rows count as there, others load."""
    monkeypatch.setattr(writer, "APPEND_RECORDS", at_once)
    service.append("q", numbered("q", 0, 10))
    service.append("q", [b"another", *numbered("q", 11, 20)])
    refused = restore(service, rows("q", 0, 40), rows("r", 0, 5))
    assert refused == {"q": (10, 1, 20, 0)}
    assert {queue: len(records) for queue, records in service.records().items()} == {"q": 20, "r": 5}


def test_a_row_in_a_gap_is_refused(service: ThreadedService) -> None:
    """A position below the end cannot be assigned any more, even if the log has no record there."""
    service.append("q", numbered("q", 0, 3))
    service.append("q", numbered("q", 6, 9), 6)
    assert restore(service, rows("q", 0, 12)) == {"q": (3, 3, 3, 0)}


def test_rows_that_were_truncated_meanwhile_are_not_refused(service: ThreadedService) -> None:
    """A truncate between the count and the write reaches into the rows: they are known to be truncated."""
    service.append("q", [b"another", *numbered("q", 1, 20)])
    service.truncate("q", 4)
    assert restore(service, rows("q", 0, 25)) == {}
    assert service.records() == {"q": expected("q", 5, 25)}


def sorted_rows(*batches: pa.RecordBatch) -> pa.RecordBatch:
    """Return all rows in the order in which a load sorts them."""
    (batch,) = pa.Table.from_batches(batches).sort_by([("queue", "ascending"), ("position", "ascending")]).to_batches()
    return batch


def test_rows_that_are_there_twice_are_stored_once(service: ThreadedService) -> None:
    """A drain that read a log again has rows twice: the second one is there already, wherever a batch ends."""
    service.append("q", numbered("q", 0, 3))
    twice = sorted_rows(rows("q", 0, 10), rows("q", 2, 8), rows("q", 5, 6))
    assert restore(service, twice.slice(0, 9), twice.slice(9)) == {"q": (None, 0, 0, 6)}
    assert service.records() == {"q": expected("q", 0, 10)}


def test_rows_that_differ_at_one_position_end_their_queue(service: ThreadedService) -> None:
    """A log that went back assigned positions again: what is stored first stays, and nothing follows it."""
    other = rows("q", 4, 7)
    other = other.set_column(other.schema.get_field_index("payload"), "payload", pa.array([b"x"] * 3, pa.binary()))
    found = restore(service, rows("p", 0, 2), sorted_rows(rows("q", 0, 10), other))
    assert found == {"q": (4, 0, 8, 0)}
    assert len(service.records()["q"]) == 5
