"""A drain follows its query: what is reported, even of the batch during which it is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mrecordlog_async.spark.checkpoints.source_report import write_report
from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.drain.query import SourceReport, follow


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


class Endless(Busy):
    """A query of Spark 4.0, which does not end by itself; *report*: the file of its data source."""

    def __init__(self, report: Path) -> None:
        super().__init__()
        self.reports = [Report(0)]
        self.stopped = False
        self._report, self._looks = str(report), 0

    def awaitTermination(self, seconds: float) -> bool:
        self._looks += 1
        facts = {"waiting": {"a": 9 - self._looks}, "down": {"b": "refused"}, "planned_bytes": 10 * self._looks}
        write_report(self._report, {**facts, "retries": 1, "held": [], "ended": self._looks == 3})
        assert self._looks <= 3, "the run has ended"
        return False

    def lastProgress(self) -> Report | None:
        return Offset(0)

    def recentProgress(self) -> list[Report]:
        return [Offset(0)]

    def stop(self) -> None:
        self.stopped = True


class Offset(Report):
    """A report of Spark 4.0, which only has the offset."""

    def latestOffset(self) -> str:
        return '{"version": 3, "logs": {}}'


def test_a_run_that_spark_does_not_end_ends_when_the_source_has_reported_it(tmp_path: Path) -> None:
    """The file of the data source also has what Spark's reports lack: lag, servers that are down, bytes."""
    query: Any = Endless(tmp_path / "report")
    progress, lines = DrainProgress(), list[str]()
    follow(query, progress, lines.append, lambda: False, SourceReport(str(tmp_path / "report"), ends=True))
    assert query.stopped
    assert (progress.batches, progress.records, progress.bytes, progress.lag) == (1, 7, 30, {"a": 6})
    assert lines == [
        "server 'b' is down, the others continue: refused",
        "batch 1: 7 records, 70 records/s, lag: a 8; DOWN: b",
    ]
