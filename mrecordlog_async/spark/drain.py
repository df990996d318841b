"""The exactly-once job from logs to a lake: `mrecordlog drain`, or `python -m mrecordlog_async.spark drain`.

The format decides how: `drain_delta` runs a drain into a Delta table, the default. Here are the drains into Parquet
files: the data source reads, Spark's file sink and checkpoint write. Around them, in this order: `preflight` and
`identity` decide whether the job may start, `release` checks what the last run left, and the query runs; meanwhile
`release` proves each committed batch and then truncates the log up to its end. `refusal` records a loss.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from mrecordlog_async.spark import refusal
from mrecordlog_async.spark.batches import Batches
from mrecordlog_async.spark.checkpoint import Offset
from mrecordlog_async.spark.drain_delta import run_delta
from mrecordlog_async.spark.drain_metrics import metrics_served
from mrecordlog_async.spark.drain_progress import Progress, Summary
from mrecordlog_async.spark.drain_query import ending, follow, start_query
from mrecordlog_async.spark.drain_steps import (
    accepted,
    held_back,
    impatient,
    newest_position,
    refuse_missing,
    refuse_unreached,
    remaining,
    remembering,
    reread,
)
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import claim
from mrecordlog_async.spark.job_command import (
    Report,
    Stop,
    failures_as_sentences,
    read_tokens,
    reporter,
    warnings_reported,
)
from mrecordlog_async.spark.lake import Lake
from mrecordlog_async.spark.local_lake import LocalLake
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.preflight import DELTA, PARQUET, DrainJob, LakeFiles, refuse_unsafe
from mrecordlog_async.spark.release import Release
from mrecordlog_async.spark.session import job_session
from mrecordlog_async.spark.shared_storage import marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        ProofError: Parquet files do not hold what the log delivered; nothing more is truncated.
        LogWentBackError: a log is older than the checkpoint; nothing more is truncated.
        SyncFailedError: the output could not be synced; nothing more is truncated.
    """
    files = LakeFiles(session)
    if job.format == DELTA:
        return run_delta(session, job, files, report, stopped)
    local = files.is_local(job.output) or files.is_local(job.checkpoint)
    refuse_unsafe(job, local=local, master=session.sparkContext.master or "")
    if job.format != PARQUET:
        return _run_unproven(session, job, report, stopped)
    checkpoint, output = files.open(job.checkpoint), files.open(job.output)
    try:
        with files.locked([checkpoint, output]):
            return _run_proven(session, job, checkpoint, output, report, stopped)
    finally:
        checkpoint.close()
        output.close()


def _run_proven(
    session: SparkSession,
    job: DrainJob,
    checkpoint: Lake,
    output: Lake,
    report: Report,
    stopped: Callable[[], bool],
) -> Summary:
    options, batches = Options.parse(job.source_options()), Batches(checkpoint, output)
    fleet = Fleet(impatient(options))
    release, begun = Release(batches, fleet, truncate=job.truncate), time.monotonic()

    def refuse(report: Report) -> None:
        refuse_unreached(options, batches)
        refuse_missing(job, options, fleet, newest_position(batches), report)

    def check() -> None:
        refuse(lambda line: None)  # it is reported below

    try:
        claim(checkpoint, output, job.partition_by, adopt=job.adopt_output, check=check)
        again = _recover(job, batches, release, fleet, report)
        refuse(report)
        progress = Progress()
        with (
            metrics_served(job.metrics, progress, batches, options, report),
            remembering(checkpoint),
            _marker(job, output) as marker,
        ):
            release.refuse_older_logs()
            release.advance()
            query = start_query(session, job, job.source_options(marker, again))
            with ending(query, stopped):
                follow(query, progress, report, stopped, release.advance)
            release.finish()
        left, down = remaining(job, options, fleet, progress)
        held = held_back(fleet, batches)
    finally:
        fleet.close()
    seconds = time.monotonic() - begun
    return Summary(release.full_batches, release.rows, seconds, left, down, verified=True, held=held)


def _run_unproven(session: SparkSession, job: DrainJob, report: Report, stopped: Callable[[], bool]) -> Summary:
    """Run a job whose output cannot be read back here; nothing is truncated."""
    options = Options.parse(job.source_options())
    begun, progress, fleet = time.monotonic(), Progress(), Fleet(options)
    try:
        query = start_query(session, job, job.source_options())
        with ending(query, stopped):
            follow(query, progress, report, stopped)
        left, down = remaining(job, options, fleet, progress)
    finally:
        fleet.close()
    return Summary(progress.batches, progress.records, time.monotonic() - begun, left, down)


def _recover(job: DrainJob, batches: Batches, release: Release, fleet: Fleet, report: Report) -> Offset:
    """Check what the last run left; return the positions of logs that went back, which are reread."""
    found = release.recover(adopt=job.adopt_output)
    if found:
        report(found)
    again = refusal.check(batches.checkpoint, accepted(job), newest_position(batches))
    release.accept(again | reread(accepted(job), fleet, batches))
    return again


def _marker(job: DrainJob, output: Lake) -> AbstractContextManager[str | None]:
    """Leave a marker in an output that every machine mounts; yield None for any other output."""
    return marked(output.path) if job.shared_paths and isinstance(output, LocalLake) else nullcontext()


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
    options = {"maxRecordsPerTrigger": str(arguments.max_records_per_trigger)}
    given = {
        "maxBytesPerTrigger": arguments.max_bytes_per_trigger,
        "minPartitions": arguments.min_partitions,
        "minRecordsPerTrigger": arguments.min_batch_records,
        "maxTriggerDelay": arguments.max_delay,
        "subscribe": arguments.subscribe,
        "subscribePattern": arguments.subscribe_pattern,
        "failOnServerDown": "false" if arguments.skip_down else None,
        "failOnDataLoss": "false" if arguments.allow_data_loss else None,
        "forget": ",".join(arguments.forget) or None,
    }
    options |= {name: str(value) for name, value in given.items() if value is not None}
    servers = ",".join(arguments.server)
    options |= read_tokens(arguments.token_file, servers)
    return DrainJob(
        servers=servers,
        output=arguments.output.rstrip("/"),
        checkpoint=arguments.checkpoint.rstrip("/"),
        every_seconds=arguments.every,
        format=arguments.format,
        truncate=not arguments.no_truncate,
        consumer=arguments.consumer,
        take_over=arguments.take_over,
        metrics=arguments.metrics,
        partition_by=tuple(filter(None, arguments.partition_by.split(","))),
        shared_paths=arguments.shared_paths,
        target_file_bytes=arguments.target_file_bytes,
        schema=arguments.schema,
        payload=not arguments.no_payload,
        storage_options=dict(arguments.storage_option),
        accept_went_back=arguments.accept_went_back,
        adopt_output=arguments.adopt_output,
        options=options,
    )
