"""The two readers of a stream: for a Spark that says where the next batch begins, and for one that does not.

Both are faces of one `LogStream`. Which of them Spark gets depends on what pyspark offers, not on its version:

| pyspark | `latestOffset` | limits | a run that ends | what is released |
|---|---|---|---|---|
| 4.2 and later | gets start and limit | always | Spark's own | up to start, and at `commit(end)` |
| 4.0, 4.1 | gets nothing | see below | one batch | the same, where `option("checkpoint")` proves start |

Spark 4.0 and 4.1 call, in this order:

    the first start of a query     latestOffset() → E0, partitions({}, E0), …
    every other start              partitions(E, E), with the newest offset of the checkpoint
        a batch was begun          partitions(S, E): it runs again
    then, again and again          latestOffset() → F; if F is not E: commit(E), partitions(E, F)

So the reader knows where the last batch ended: it is the end of the last `partitions`. It does not know whether its
query ends after one batch, because `trigger(availableNow=True)` is one batch there. So without `checkpoint` and
`consumer` the first batch of a run takes all that there is, and even reads queues that are new. With one of them, the
limits hold from the first batch on, and a warning says what a run of one batch leaves.

A Spark that does not say where it continues looks like a new query. Then the first batch, without limits, is right too:
what it reads begins where Spark stands, and where it begins in a queue that is new is in its end (`Offset.first`).
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from mrecordlog_async.spark.checkpoints.named import NamedCheckpoint
from mrecordlog_async.spark.checkpoints.source_report import write_report
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.listed_plans import TriggerLimits
from mrecordlog_async.spark.source.stream import LogStream

logger = logging.getLogger("mrecordlog_async.spark")

Json = dict[str, Any]


class StartlessStreamReader(LogStream):
    """The reader for Spark 4.0 and 4.1, whose `latestOffset` gets neither a start nor a limit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._options = options
        path = options.checkpoint
        self._checkpoint = NamedCheckpoint(path) if path is not None else None
        self._at: Json | None = None  # where the last batch ended that Spark has planned
        self._begun = False  # whether Spark has requested an offset
        self._bytes = 0
        self._ended = False

    def latestOffset(self) -> Json:  # type: ignore[override]  # pyspark declares that of 4.2  # noqa: N802
        """Return where the next batch ends; the end of the last one if nothing is new. Errors: `LogStream.end_after`.

        Raises:
            OptionError: the option checkpoint does not name the checkpoint of this query.
        """
        if self._ended:
            assert self._at is not None, "the run has read what there was"
            return self._at
        start, first = self._at or {}, not self._begun
        if self._checkpoint is not None and self._at is None:
            self._checkpoint.refuse_batches()
        if first and self._options.stop_at_end:
            self.stop_where_logs_end()
        committed = self._checkpoint is not None and self._checkpoint.has_committed(start)
        end = self.end_after(start, self._limits(first), committed=committed, at_once=first)
        self._begun = True
        self._ended = self._options.stop_at_end and end is start
        self._say(first, is_new=end is not start)
        return end

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide a batch among tasks; with the same offset twice, take note of where Spark continues.

        Raises:
            OptionError: the option checkpoint does not name the checkpoint of this query, or Spark's wrapper for
                availableNow asked where a run ends before it said where that begins.
        """
        if start == end and end and self._at is None and self._begun:
            raise OptionError(
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled asks for the end of a run before this Spark "
                "says where it begins: set it to false, then a run is one batch; or use `mrecordlog drain`"
            )
        if self._checkpoint is not None:
            self._checkpoint.refuse_without(end)
        self._at = end
        return super().partitions(start, end) if start != end else []

    def _limits(self, first: bool) -> TriggerLimits:
        """Return what the next batch may hold."""
        knows_more = self._checkpoint is not None or self._options.consumer is not None
        return self.limits if knows_more or not first else TriggerLimits()

    def _say(self, first: bool, *, is_new: bool) -> None:
        """Report to the drain, which this Spark does not do; warn of what the limits of a first batch mean."""
        report = self.report or {}
        size = report.get("bytes", 0) if is_new else 0
        self._bytes += size
        if self._options.report_to is not None:
            said: Json = {name: report[name] for name in ("waiting", "retries", "held", "down") if name in report}
            write_report(self._options.report_to, {**said, "planned_bytes": self._bytes, "ended": self._ended})
        elif first and is_new:
            self._warn_of_limits(sum(plan.records for plan in self._plans.values()), size, report["waiting"])

    def _warn_of_limits(self, records: int, size: int, waiting: dict[str, int]) -> None:
        if not self.limits.hold(records, size):
            logger.warning(
                "the first batch of this run has %d records and %d bytes, more than maxRecordsPerTrigger or "
                "maxBytesPerTrigger: set the option checkpoint to the checkpointLocation of this query, then they hold "
                "for this batch, too",
                records,
                size,
            )
        elif any(waiting.values()):
            logger.warning(
                "maxRecordsPerTrigger or maxBytesPerTrigger leave %d records for later batches. With "
                "trigger(availableNow=True) this Spark ends a run after one batch: to read all in one run, raise both, "
                "or use `mrecordlog drain`",
                sum(waiting.values()),
            )


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as missing:
    if not str(missing.name).startswith("pyspark"):
        raise
    PASSES_LIMITS = False
else:
    PASSES_LIMITS = True

    class LogStreamReader(LogStream, SupportsTriggerAvailableNow):
        """The reader for Spark 4.2 and later, which says where the next batch begins, and what it may hold."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's names
            """Return the limit in records; the limit in bytes applies as well."""
            return ReadMaxRows(self.limits.records or 0)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Remember where the queues end now: the run stops there."""
            self.stop_where_logs_end()

        def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
            """Return where the next batch ends; *start* itself if nothing is new. Errors: `LogStream.end_after`."""
            return self.end_after(start, self._limits_of(limit))

        def reportLatestOffset(self) -> Json | None:  # noqa: N802
            """Return `LogStream.report`."""
            return self.report

        def _limits_of(self, limit: ReadLimit) -> TriggerLimits:
            match limit:
                case ReadAllAvailable():
                    return TriggerLimits()
                case ReadMaxRows(max_rows=records):
                    return self.limits._replace(records=records)
                case ReadMaxBytes(max_bytes=size):
                    return self.limits._replace(bytes=size)
            return self.limits


def stream_reader(options: Options) -> DataSourceStreamReader:
    """Return the reader of a stream for the installed pyspark."""
    return LogStreamReader(options) if PASSES_LIMITS else StartlessStreamReader(options)
