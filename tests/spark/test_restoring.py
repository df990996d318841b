"""A restore's task without a JVM: what is stored, and what is refused because the log differs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mrecordlog_async.spark import writer
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.restoring import restored
from tests.spark.services import ThreadedService, numbered
from tests.spark.test_writer import expected, rows


def restore(service: ThreadedService, *batches: pa.RecordBatch) -> dict[str, tuple[int, int, int]]:
    """Restore rows; return queue → first refused position, refused rows below its end and past it."""
    ends = {queue: each.next_position for queue, each in service.summary().items()}
    found: list[dict[str, Any]] = []
    for batch in restored(Options.parse({"servers": service.url, "retries": "0"}), ends, batches):
        found += batch.to_pylist()
    return {row["queue"]: (row["position"], row["present"], row["stored"]) for row in found}


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
    assert refused == {"q": (10, 1, 20)}
    assert {queue: len(records) for queue, records in service.records().items()} == {"q": 20, "r": 5}


def test_a_row_in_a_gap_is_refused(service: ThreadedService) -> None:
    """A position below the end cannot be assigned any more, even if the log has no record there."""
    service.append("q", numbered("q", 0, 3))
    service.append("q", numbered("q", 6, 9), 6)
    assert restore(service, rows("q", 0, 12)) == {"q": (3, 3, 3)}


def test_rows_that_were_truncated_meanwhile_are_not_refused(service: ThreadedService) -> None:
    """A truncate between the count and the write reaches into the rows: they are known to be truncated."""
    service.append("q", [b"another", *numbered("q", 1, 20)])
    service.truncate("q", 4)
    assert restore(service, rows("q", 0, 25)) == {}
    assert service.records() == {"q": expected("q", 5, 25)}
