"""A drain follows its query: what is reported, even of the batch during which it is stopped."""

from __future__ import annotations

import json
from typing import Any

from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.drain.query import follow


class Report:
    """Spark's report of a batch, which has seven records."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def batchId(self) -> int:
        return self._batch

    def numInputRows(self) -> int:
        return 7

    def sources(self) -> list[Report]:
        return [self]

    def latestOffset(self) -> str:
        return '{"waiting": {"a": 0}, "bytes": 70}'

    def json(self) -> str:
        source = {"latestOffset": self.latestOffset()}
        return json.dumps(
            {"batchId": self._batch, "numInputRows": 7, "processedRowsPerSecond": 70.0, "sources": [source]}
        )


class Busy:
    """A query that runs batch 0, and commits it while the drain waits for that; batch 1 while it is stopped."""

    runId = "run"
    isActive = True

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._jsq = self

    @property
    def status(self) -> dict[str, Any]:
        if self.reports:
            return {"isTriggerActive": False, "message": "Waiting for next trigger"}
        self.reports = [Report(0)]
        return {"isTriggerActive": True, "message": "Processing new data"}

    def awaitTermination(self, seconds: int) -> bool:
        return False

    def lastProgress(self) -> Report | None:
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Report]:
        return self.reports

    def stop(self) -> None:
        self.reports.append(Report(1))


def test_the_batches_that_a_stop_waits_for_are_reported_and_counted() -> None:
    """They are stored, so the summary must not be short of their records."""
    query: Any = Busy()
    progress, lines = DrainProgress(), list[str]()
    follow(query, progress, lines.append, lambda: True)
    assert (progress.batches, progress.records, len(lines)) == (2, 14, 2)
