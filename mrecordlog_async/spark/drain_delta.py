"""A drain into a Delta table: each batch is one transaction of the table, identified by its content (`delta`).

What a batch with a commit file holds is durable in the table: the sink returns only then, and Spark writes the commit
file after it. So the data source may truncate, or acknowledge, whatever the checkpoint has committed, once the
checkpoint is synced, and nothing is read back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mrecordlog_async.spark import refusal
from mrecordlog_async.spark.batches import COMMITS, Batches, newest
from mrecordlog_async.spark.checkpoint import Offset
from mrecordlog_async.spark.columns import parsed_schema, with_columns, with_day
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.drain_metrics import metrics_served
from mrecordlog_async.spark.drain_progress import Progress, Summary
from mrecordlog_async.spark.drain_query import ending, follow, source_rows, started
from mrecordlog_async.spark.drain_steps import (
    accepted,
    held_back,
    impatient,
    newest_position,
    refuse_missing,
    refuse_unreached,
    remaining,
    remembering,
)
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import OUTPUT, RefusedError, query_of
from mrecordlog_async.spark.job_command import Report
from mrecordlog_async.spark.lake import Lake
from mrecordlog_async.spark.local_lake import LocalLake
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.preflight import DrainJob, LakeFiles, refuse_unsafe

if TYPE_CHECKING:
    from deltalake import Schema
    from pyspark.sql import DataFrame, SparkSession

    from mrecordlog_async.spark.delta.place import Place
    from mrecordlog_async.spark.delta.sink import SinkOptions


def run_delta(
    session: SparkSession, job: DrainJob, files: LakeFiles, report: Report, stopped: Callable[[], bool]
) -> Summary:
    """Run *job*; arguments, result and errors are those of `run_drain`."""
    place = _place(job)
    from mrecordlog_async.spark.delta.start import refuse_inside  # after the look whether delta-rs is installed

    # The checkpoint may be local on a cluster: only the driver writes there.
    refuse_unsafe(job, local=place.path is not None, master=session.sparkContext.master or "")
    checkpoint = files.open(job.checkpoint)
    try:
        refuse_inside(place, checkpoint.path)
        with files.locked([checkpoint]):
            return _run(session, job, place, checkpoint, report, stopped)
    finally:
        checkpoint.close()


def _place(job: DrainJob) -> Place:
    try:
        from mrecordlog_async.spark.delta.place import Place, local_path
        from mrecordlog_async.spark.delta.table import Table  # noqa: F401  # whether delta-rs is installed
    except ImportError as error:
        raise RefusedError(
            f"a drain into a Delta table needs the package {error.name}: pip install 'mrecordlog_async[spark]'"
        ) from None
    place = Place(local_path(job.output) or job.output, job.storage_options)
    if place.is_misread:
        raise RefusedError(
            f"delta-rs would put the table somewhere else than {place.path}: choose a path without % and \\"
        )
    return place


def _run(
    session: SparkSession,
    job: DrainJob,
    place: Place,
    checkpoint: Lake,
    report: Report,
    stopped: Callable[[], bool],
) -> Summary:
    from mrecordlog_async.spark.delta.confirm import confirm
    from mrecordlog_async.spark.delta.sink import FORMAT, DeltaSink
    from mrecordlog_async.spark.delta.start import prepare, repair

    if checkpoint.read(OUTPUT) is not None:
        raise RefusedError(f"{checkpoint.path} belongs to an output of Parquet files: use --format parquet")
    synced = checkpoint.path if isinstance(checkpoint, LocalLake) else None
    options = Options.parse(job.source_options())
    begun, progress, fleet = time.monotonic(), Progress(), Fleet(impatient(options))
    batches = Batches(checkpoint, checkpoint)
    try:
        query_id = query_of(checkpoint)
        sink, columns = _sink(session, job, place, synced, query_id)
        for line in repair(checkpoint, place):
            report(line)
        position = newest_position(batches)

        def check_services() -> None:
            refuse_unreached(options, batches)
            refuse_missing(job, options, fleet, position, report)

        for line in prepare(checkpoint, place, columns, job.partition_by, query_id, check_services):
            report(line)
        for line in confirm(checkpoint, place, query_id, options):
            report(line)
        again = refusal.check(checkpoint, accepted(job), position)
        given = _source_options(job, synced, again, query_id)
        session.dataSource.register(DeltaSink)
        rows = _columns(job, source_rows(session, given))
        writer = rows.writeStream.format(FORMAT).options(**sink.encode())
        with metrics_served(job.metrics, progress, batches, options, report), remembering(checkpoint):
            query = started(session, job, writer)
            with ending(query, stopped):
                follow(query, progress, report, stopped)
        if job.truncate:
            _release_rest(given, batches, report)
        left, down = remaining(job, options, fleet, progress)
        held = held_back(fleet, batches)
    finally:
        fleet.close()
    seconds = time.monotonic() - begun
    return Summary(progress.batches, progress.records, seconds, left, down, verified=True, held=held)


def _sink(
    session: SparkSession, job: DrainJob, place: Place, synced: str | None, query: str
) -> tuple[SinkOptions, Schema]:
    """Return where the rows go, and the table's columns. Raises RefusedError."""
    from mrecordlog_async.spark.delta.parts import Layout
    from mrecordlog_async.spark.delta.sink import SinkOptions

    rows = _columns(job, source_rows(session, _source_options(job, synced, {}, query)))
    sink = SinkOptions(place, Layout(job.partition_by, job.target_file_bytes), synced, _rest(job))
    try:
        return sink, sink.columns(rows.schema.json())
    except ValueError as error:
        raise RefusedError(f"a Delta table cannot store a column of --schema: {error}") from None


def _columns(job: DrainJob, rows: DataFrame) -> DataFrame:
    """Add the columns that the job derives from what the data source reads. Raises RefusedError."""
    if job.schema is not None:
        rows = with_columns(rows, job.schema)
    return with_day(rows) if "date" in job.partition_by else rows


def _rest(job: DrainJob) -> str | None:
    """Return the columns that are parsed, if payloads are not stored."""
    return parsed_schema(job.schema).json() if job.schema is not None and not job.payload else None


def _source_options(job: DrainJob, synced: str | None, again: Offset, query: str) -> dict[str, str]:
    """Return the options of the data source, which releases what the checkpoint has committed."""
    found = job.source_options(again=again) | job.release_options(query)
    return found | ({"syncDirs": json.dumps([synced])} if synced is not None else {})


def _release_rest(options: dict[str, str], batches: Batches, report: Report) -> None:
    """Release up to the last committed batch, which the data source does at the start of the next batch only."""
    from mrecordlog_async.spark.consumer.holder import ConsumerLostError, ConsumerRefusedError
    from mrecordlog_async.spark.stream import LogStreamReader

    last = newest(batches.checkpoint, COMMITS)
    end = batches.checkpoint_at(last) if last >= 0 and batches.is_committed(last) else None
    if end is None:
        return
    # What this query took over at its start is its own; if another one has taken it since, that one keeps it.
    given = options | ({"takeOver": "false"} if "takeOver" in options else {})
    reader = LogStreamReader(impatient(Options.parse(given)))
    reader.expect_kept()  # the query has logged it
    try:
        reader.commit(end.encode())
    except (OSError, ServerDownError, ServiceRefusedError, ConsumerRefusedError, ConsumerLostError) as error:
        report(f"what is stored was not released from the log: {error}; the next run does it")
    finally:
        reader.stop()
