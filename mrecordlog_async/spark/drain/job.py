"""The exactly-once job from logs to a Delta table: `mrecordlog drain`, or `python -m mrecordlog_async.spark drain`.

Each batch is one transaction of the table, identified by its content (`delta`). In this order: `steps` and `delta`
decide whether the job may start, `delta.confirm` settles what the last run left, and the query runs. `refusal` records
a loss.

What a batch with a commit file holds is durable in the table: the sink returns only then, and Spark writes the commit
file after it. So the data source may truncate, or acknowledge, whatever the checkpoint has committed, once the
checkpoint is synced, and nothing is read back.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from mrecordlog_async.spark.checkpoints import refusal
from mrecordlog_async.spark.checkpoints.batches import COMMITS, SparkBatches, newest
from mrecordlog_async.spark.checkpoints.hadoop_lake import LakeFiles
from mrecordlog_async.spark.checkpoints.identity import RefusedError, query_of, refuse_parquet
from mrecordlog_async.spark.checkpoints.lake import Lake
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.checkpoints.shared_storage import marked
from mrecordlog_async.spark.drain.command import (
    Report,
    Stop,
    failures_as_sentences,
    read_tokens,
    reporter,
    warnings_reported,
)
from mrecordlog_async.spark.drain.metrics import metrics_served
from mrecordlog_async.spark.drain.progress import DrainProgress, Summary
from mrecordlog_async.spark.drain.query import ending, few_reports_kept, follow, source_report, source_rows, started
from mrecordlog_async.spark.drain.steps import (
    accepted,
    held_back,
    impatient,
    newest_position,
    refuse_missing,
    refuse_unreached,
    refuse_unsafe,
    remaining,
    remembering,
)
from mrecordlog_async.spark.rows.columns import parsed_schema, with_columns, with_day
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.session import job_session
from mrecordlog_async.spark.settings.arguments import typed_job
from mrecordlog_async.spark.settings.drain_job import DrainJob
from mrecordlog_async.spark.settings.offset import Positions
from mrecordlog_async.spark.settings.option_values import WhenDown
from mrecordlog_async.spark.settings.options import Options

if TYPE_CHECKING:
    from deltalake import Schema
    from pyspark.sql import DataFrame, SparkSession

    from mrecordlog_async.spark.delta.place import TablePlace
    from mrecordlog_async.spark.delta.sink import SinkOptions


def run_drain(
    session: SparkSession,
    job: DrainJob,
    report: Report = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Summary:
    """Run *job* until it has caught up, or until *stopped* returns True; then it ends between two batches.

    Args:
        session: the Spark session that runs the query.
        job: what to drain, and where to.
        report: called with one sentence for each new batch, and for everything noticed at the start.
        stopped: called every second; returns whether the job should stop.

    Returns:
        What was stored, what is left in the logs, and which servers could not be reached.

    Raises:
        RefusedError: the job would lose data or cannot run; nothing was started.
        ServiceDownError: a service could not be reached.
        JobFailedError: the query failed; what it had committed is kept, and the next run continues there.
        SyncFailedError: the output could not be synced; nothing more is truncated.
    """
    files = LakeFiles(session)
    place = _place(job)
    from mrecordlog_async.spark.delta.start import refuse_inside  # after the look whether delta-rs is installed

    # The checkpoint may be local on a cluster: only the driver writes there.
    refuse_unsafe(job, local=place.path is not None, master=session.sparkContext.master or "")
    refuse_inside(place, files.full_path(job.checkpoint))  # before it is created there
    with closing(files.open(job.checkpoint)) as checkpoint, files.locked([checkpoint]):
        refuse_parquet(checkpoint)
        return DrainRun(session, job, place, checkpoint, report).run(stopped)


def _place(job: DrainJob) -> TablePlace:
    try:
        from mrecordlog_async.spark.delta.place import TablePlace, local_path
        from mrecordlog_async.spark.delta.table import DrainTable  # noqa: F401  # whether delta-rs is installed
    except ImportError as error:
        raise RefusedError(
            f"a drain into a Delta table needs the package {error.name}: pip install 'mrecordlog_async[spark]'"
        ) from None
    place = TablePlace(local_path(job.output) or job.output, job.storage_options)
    if place.is_misread:
        raise RefusedError(
            f"delta-rs would put the table somewhere else than {place.path}: choose a path without % and \\"
        )
    return place


class DrainRun:
    """One run of a job, whose table and checkpoint are open and locked."""

    def __init__(
        self, session: SparkSession, job: DrainJob, place: TablePlace, checkpoint: Lake, report: Report
    ) -> None:
        self.session = session
        self.job = job
        self.place = place
        self.checkpoint = checkpoint
        self.report = report
        self.synced = checkpoint.path if isinstance(checkpoint, LocalLake) else None
        self.batches = SparkBatches(checkpoint)
        self.options = Options.parse(job.source_options())
        self.progress = DrainProgress()
        self.fleet = Fleet(replace(impatient(self.options), when_down=WhenDown.SKIP))

    def run(self, stopped: Callable[[], bool]) -> Summary:
        """Prepare, run the query, and release what it has stored; for the errors see `run_drain`."""
        begun = time.monotonic()
        with closing(self.fleet):
            query_id = query_of(self.checkpoint)
            sink, columns = self._sink(query_id)
            position = self._settle(query_id, columns)
            again = refusal.check(self.checkpoint, accepted(self.job), position)
            given = self._follow(sink, query_id, again, stopped)
            # The query has ended, so nobody else releases. Failing here loses nothing: the next run does it.
            if self.job.truncate:
                _release_rest(given, self.batches, self.report)
            left, down = remaining(self.job, self.fleet, self.progress)
            held = held_back(self.fleet, self.batches)
        seconds, progress = time.monotonic() - begun, self.progress
        return Summary(progress.batches, progress.records, seconds, left, down, verified=True, held=held)

    def _sink(self, query_id: str) -> tuple[SinkOptions, Schema]:
        """Return where the rows go, and the table's columns. Raises RefusedError."""
        from mrecordlog_async.spark.delta.parts import Layout
        from mrecordlog_async.spark.delta.sink import SinkOptions

        job = self.job
        rows = _columns(job, source_rows(self.session, _source_options(job, self.synced, {}, query_id)))
        parsed = parsed_schema(job.schema).json() if job.schema is not None and not job.payload else None
        sink = SinkOptions(self.place, Layout(job.partition_by, job.target_file_bytes), self.synced, parsed)
        try:
            return sink, sink.columns(rows.schema.json())
        except ValueError as error:
            raise RefusedError(f"a Delta table cannot store a column of --schema: {error}") from None

    def _settle(self, query_id: str, columns: Schema) -> Positions:
        """Settle what the last run left; return where the newest batch ends. Raises RefusedError."""
        from mrecordlog_async.spark.delta.confirm import confirm
        from mrecordlog_async.spark.delta.start import prepare, repair

        # In this order: a torn file is set aside before anything is read, and a batch is confirmed only in a table
        # that is known to be this checkpoint's.
        for line in repair(self.checkpoint, self.place):
            self.report(line)
        position = newest_position(self.batches)

        def check_services() -> None:
            refuse_unreached(self.options, self.batches)
            refuse_missing(self.job, self.options, self.fleet, position, self.report)

        for line in prepare(self.checkpoint, self.place, columns, self.job.partition_by, query_id, check_services):
            self.report(line)
        for line in confirm(self.checkpoint, self.place, query_id, self.options):
            self.report(line)
        return position

    def _follow(
        self, sink: SinkOptions, query_id: str, again: Positions, stopped: Callable[[], bool]
    ) -> dict[str, str]:
        """Run the query until it ends; return the options of its data source."""
        from mrecordlog_async.spark.delta.sink import FORMAT, DeltaSink

        job, session = self.job, self.session
        session.dataSource.register(DeltaSink)
        with (
            metrics_served(job.metrics, self.progress, self.batches, self.options, self.report),
            remembering(self.checkpoint),
            few_reports_kept(session),
            _marker(job, self.place) as marker,
            source_report(ends=job.every_seconds is None) as reported,
        ):
            given = _source_options(job, self.synced, again, query_id, marker) | reported.options
            rows = _columns(job, source_rows(session, given))
            query = started(session, job, rows.writeStream.format(FORMAT).options(**sink.encode()))
            with ending(query, stopped):
                follow(query, self.progress, self.report, stopped, reported)
        return given


def _columns(job: DrainJob, rows: DataFrame) -> DataFrame:
    """Add the columns that the job derives from what the data source reads. Raises RefusedError."""
    if job.schema is not None:
        rows = with_columns(rows, job.schema)
    return with_day(rows) if "date" in job.partition_by else rows


def _marker(job: DrainJob, place: TablePlace) -> AbstractContextManager[str | None]:
    """Leave a marker in a table that every machine mounts; yield None for any other table."""
    return marked(place.path) if job.shared_paths and place.path is not None else nullcontext()


def _source_options(
    job: DrainJob, synced: str | None, again: Positions, query: str, marker: str | None = None
) -> dict[str, str]:
    """Return the options of the data source, which releases what the checkpoint has committed."""
    found = job.source_options(marker, again) | job.release_options(query)
    return found | ({"syncDirs": json.dumps([synced]), "checkpoint": synced} if synced is not None else {})


def _release_rest(options: dict[str, str], batches: SparkBatches, report: Report) -> None:
    """Release up to the last committed batch, which the data source does at the start of the next batch only."""
    from mrecordlog_async.spark.consumer.holder import ConsumerLostError, ConsumerRefusedError
    from mrecordlog_async.spark.source.stream import stream_reader

    last = newest(batches.checkpoint, COMMITS)
    end = batches.offset_at(last) if last >= 0 and batches.is_committed(last) else None
    if end is None:
        return
    # What this query took over at its start is its own; if another one has taken it since, that one keeps it.
    given = options | ({"takeOver": "false"} if "takeOver" in options else {})
    reader = stream_reader(impatient(Options.parse(given)))
    reader.expect_kept()  # the query has logged it
    try:
        reader.commit(end.encode())
    except (OSError, ServerDownError, ServiceRefusedError, ConsumerRefusedError, ConsumerLostError) as error:
        report(f"what is stored was not released from the log: {error}; the next run does it")
    finally:
        reader.stop()


# The command.


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit code: 1 if a server was skipped or held back, 0 otherwise."""
    job, stop = job_of(arguments), Stop()
    with failures_as_sentences():
        session = job_session("mrecordlog drain", arguments.master)
        stop.install()
        report = reporter(session, as_json=arguments.json)
        with warnings_reported(report):
            summary = run_drain(session, job, report, stop)
    # Not within `failures_as_sentences`: a reader that has closed standard output is not Java.
    print(json.dumps(asdict(summary)) if arguments.json else summary.line(), flush=True)
    with failures_as_sentences():
        session.stop()
    return 1 if (summary.down or summary.held) and job.every_seconds is None else 0


def job_of(arguments: argparse.Namespace) -> DrainJob:
    """Return the job that the command line describes. Raises RefusedError if a token file has no token."""
    return typed_job(arguments, read_tokens(arguments.token_file, ",".join(arguments.servers)))
