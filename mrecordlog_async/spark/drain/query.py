"""The streaming query of a drain: how it is started, followed batch by batch, and stopped between two batches."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mrecordlog_async.spark.checkpoints import refusal
from mrecordlog_async.spark.checkpoints.source_report import read_report
from mrecordlog_async.spark.drain.command import JobFailedError, Report
from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.settings.drain_job import DrainJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL_SECONDS = 1
STOP_SECONDS = 30.0
"""Seconds that a stop waits for the running batch; an interrupted batch runs again at the next start."""

STEP_SECONDS = 0.1
"""Between two triggers of a run that ends, and between two looks at its report, where Spark does not end it."""

IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"
"""Spark's setting: how long it reports nothing while there are no records. A query reads it when it starts."""

KEPT_REPORTS = "spark.sql.streaming.numRecentProgressUpdates"
"""Spark's setting: how many reports it keeps. Each has all offsets three times: 1 MB with 10,000 queues."""

REPORTS_KEPT = 20
"""More than there are batches between two looks. Spark keeps 100: with 100,000 queues, these fill Java's memory."""


def source_rows(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the stream of rows that the data source reads with *options*."""
    # Large batches are cut into as many tasks as Spark has cores: those of the driver are irrelevant in a cluster.
    options = {"parallelism": str(session.sparkContext.defaultParallelism), **options}
    return session.readStream.format("mrecordlog").options(**options).load()


def started(session: SparkSession, job: DrainJob, writer: DataStreamWriter) -> StreamingQuery:
    """Start *writer* with the job's checkpoint and trigger. Raises JobFailedError."""
    writer = writer.option("checkpointLocation", job.checkpoint).outputMode("append")
    if job.every_seconds is not None:
        writer = writer.trigger(processingTime=f"{round(job.every_seconds * 1_000)} milliseconds")
        with _explained():
            return writer.start()
    if not _spark_ends_runs():
        with _explained():
            return writer.trigger(processingTime=f"{round(STEP_SECONDS * 1_000)} milliseconds").start()
    # Each trigger without records is reported: the last one says which servers are down.
    with _explained(), _set_to(session, IDLE_REPORTS, 0):
        return writer.trigger(availableNow=True).start()


def _spark_ends_runs() -> bool:
    from mrecordlog_async.spark.source.stream import PASSES_LIMITS

    return PASSES_LIMITS


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The file in which the data source reports, where Spark passes nothing on; path: None where Spark does.

    ends: the run ends when the data source has reported that it has read what was there.
    """

    path: str | None = None
    ends: bool = False

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source."""
        return {} if self.path is None else {"reportTo": self.path, "stopAtEnd": str(self.ends).lower()}


@contextmanager
def source_report(*, ends: bool) -> Iterator[SourceReport]:
    """Yield where the data source reports; ends: whether this is a run that ends."""
    if _spark_ends_runs():
        yield SourceReport()
        return
    with tempfile.TemporaryDirectory(prefix="mrecordlog-drain-") as place:
        yield SourceReport(os.path.join(place, "report"), ends)


def few_reports_kept(session: SparkSession) -> AbstractContextManager[None]:
    """Keep fewer reports of queries of *session*; a running query reads the setting with each report."""
    return _set_to(session, KEPT_REPORTS, REPORTS_KEPT)


@contextmanager
def _set_to(session: SparkSession, name: str, value: int) -> Iterator[None]:
    before = session.conf.get(name)
    assert before is not None, "Spark has a default"
    session.conf.set(name, value)
    try:
        yield
    finally:
        session.conf.set(name, before)


@contextmanager
def _explained() -> Iterator[None]:
    """Replace Java's error by one sentence."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none

    try:
        yield
    except Py4JJavaError as error:
        raise JobFailedError(str(error.java_exception).partition("\n")[0]) from error


def follow(
    query: StreamingQuery,
    progress: DrainProgress,
    report: Report,
    stopped: Callable[[], bool],
    source: SourceReport = SourceReport(),  # it is frozen
) -> None:
    """Report the query's batches until it ends, or until *stopped* returns True."""
    last, seconds = -1, STEP_SECONDS if source.ends else POLL_SECONDS
    while not query.awaitTermination(seconds):  # type: ignore[arg-type]  # it takes fractions
        latest = _noted(query, progress, report, source)
        if latest is not None and latest != last:
            last = latest
            _report_batches(query, progress, report)
        if progress.ended or stopped():
            _wait_for_batch(query)
            query.stop()
            break  # it is stored, and counts; so may be one that began since
    _report_batches(query, progress, report)
    _noted(query, progress, report, source)  # after the batches, whose reports are older


def _noted(query: StreamingQuery, progress: DrainProgress, report: Report, source: SourceReport) -> int | None:
    """Take over what the data source said last, and report outages; return the batch of Spark's report, if any."""
    latest = _latest(query)
    if source.path is not None:
        progress.note(read_report(source.path))
    elif latest is not None:
        progress.note(latest.said)
    for line in progress.outages():
        report(line)
    return None if latest is None else latest.batch


class _Latest(NamedTuple):
    """Of Spark's latest report: the number of the batch, and what the data source said with it."""

    batch: int
    said: str | None


def _latest(query: StreamingQuery) -> _Latest | None:
    """Return what is needed of the latest report; None before the first one.

    Only this is fetched from Java. A whole report (`lastProgress`) has the offsets of all queues, three times: with
    5,000 queues and one report per second, that took 4 % of a core while nothing happened.
    """
    report = _java(query).lastProgress()
    return None if report is None else _Latest(report.batchId(), report.sources()[0].latestOffset())


def _java(query: StreamingQuery) -> Any:
    """Return Java's object: a drain runs where Java is, not through Spark Connect. py4j has no types."""
    return query._jsq  # noqa: SLF001  # pyspark has no public name for it


def _report_batches(query: StreamingQuery, progress: DrainProgress, report: Report) -> None:
    before = progress.batches
    for each in _java(query).recentProgress():
        is_new = each.numInputRows() and each.batchId() > progress.newest
        if is_new and progress.add(json.loads(each.json())):
            report(progress.line())
    if progress.batches > before:
        progress.task_retries += _failed_tasks(query, progress)


def _failed_tasks(query: StreamingQuery, progress: DrainProgress) -> int:
    """Return how many tasks have failed in the query's jobs since the last call."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context  # noqa: SLF001  # the public ones fail with Spark Connect
    if context is None:
        return 0
    tracker, failed = context.statusTracker(), 0
    new = [job for job in tracker.getJobIdsForGroup(str(query.runId)) if job > progress.last_job]
    for info in filter(None, map(tracker.getJobInfo, new)):
        stages = filter(None, map(tracker.getStageInfo, info.stageIds))
        failed += sum(stage.numFailedTasks for stage in stages)
    progress.last_job = max([progress.last_job, *new])
    return failed


def _wait_for_batch(query: StreamingQuery) -> None:
    """Wait until the running batch is committed, at most STOP_SECONDS."""
    deadline = time.monotonic() + STOP_SECONDS
    latest = _latest(query)
    before = latest and latest.batch
    while query.isActive and _is_busy(query) and time.monotonic() < deadline:
        latest = _latest(query)
        if (latest and latest.batch) != before:
            return
        time.sleep(0.02)


def _is_busy(query: StreamingQuery) -> bool:
    """Return whether *query* runs a batch or starts: if stopped then, Spark's processes print pages of errors."""
    status = query.status
    return bool(status["isTriggerActive"]) or status["message"].startswith("Initializing")


@contextmanager
def ending(query: StreamingQuery, stopped: Callable[[], bool]) -> Iterator[None]:
    """Stop the query at the end. A batch that fails after a stop was requested runs again at the next start."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    spark_fails = (PySparkException, Py4JError, ConnectionError, EOFError)
    try:
        yield
    except BaseException as error:
        with suppress(*spark_fails):  # the first error is the one to report
            query.stop()
        if not (stopped() and isinstance(error, spark_fails)) or refusal.is_loss(str(error)):
            raise
    else:
        query.stop()
