"""A drain follows its query: what is reported, also of the batch during which it is stopped."""

from __future__ import annotations

import json
from typing import Any

from mrecordlog_async.spark.drain_progress import Progress
from mrecordlog_async.spark.drain_query import follow


class Report:
    """Spark's report of batch 0, which has seven records."""

    def batchId(self) -> int:
        return 0

    def numInputRows(self) -> int:
        return 7

    def sources(self) -> list[Report]:
        return [self]

    def latestOffset(self) -> str:
        return '{"waiting": {"a": 0}, "bytes": 70}'

    def json(self) -> str:
        source = {"latestOffset": self.latestOffset()}
        return json.dumps({"batchId": 0, "numInputRows": 7, "processedRowsPerSecond": 70.0, "sources": [source]})


class Busy:
    """A query that runs batch 0, and commits it while the drain waits for that."""

    runId = "run"
    isActive = True

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._jsq = self

    @property
    def status(self) -> dict[str, Any]:
        if self.reports:
            return {"isTriggerActive": False, "message": "Waiting for next trigger"}
        self.reports = [Report()]
        return {"isTriggerActive": True, "message": "Processing new data"}

    def awaitTermination(self, seconds: int) -> bool:
        return False

    def lastProgress(self) -> Report | None:
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Report]:
        return self.reports


def test_the_batch_that_a_stop_waits_for_is_reported_and_counted() -> None:
    """It is stored, so the summary must not be short of its records."""
    query: Any = Busy()
    progress, lines = Progress(), list[str]()
    follow(query, progress, lines.append, lambda: True)
    assert (progress.batches, progress.records, len(lines)) == (1, 7, 1)
