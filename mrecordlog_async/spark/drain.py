"""The exactly-once job from logs to a lake: `mrecordlog drain`, or `python -m mrecordlog_async.spark drain`.

The data source reads; Spark's file sink and checkpoint write. Around them, in this order: `preflight` and `identity`
decide whether the job may start, `release` checks what the last run left, and the query runs; meanwhile `release`
proves each committed batch and then truncates the log up to its end. `refusal` records a loss.
"""

from __future__ import annotations

import argparse
import difflib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from mrecordlog_async.spark import refusal
from mrecordlog_async.spark.batches import OFFSETS, Batches, newest
from mrecordlog_async.spark.checkpoint import Offset
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.drain_progress import Progress, Summary
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import RefusedError, claim
from mrecordlog_async.spark.job_command import (
    JobFailedError,
    Report,
    Stop,
    cause_of,
    failures_as_sentences,
    read_token,
    teller,
)
from mrecordlog_async.spark.lake import Lake
from mrecordlog_async.spark.local_lake import LocalLake
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.preflight import COPIES, PROVABLE, DrainJob, LakeFiles, refuse_unsafe
from mrecordlog_async.spark.release import Release
from mrecordlog_async.spark.session import job_session
from mrecordlog_async.spark.shared_storage import marked
from mrecordlog_async.spark.truncation import LogWentBackError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 1
STOP_SECONDS = 30.0
"""How long a stop waits for the running batch; an interrupted batch runs again at the next start."""

QUEUE_NAME_BYTES = 80
"""Longer queue names are shortened in directory names, which have at most 255 bytes with their escapes."""


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
        report: called with one sentence for each new batch, and for each finding at the start.
        stopped: called every second.

    Returns:
        What was stored, what is left in the logs, and which servers could not be reached.

    Raises:
        RefusedError: the job would lose data or cannot run; nothing was started.
        ServiceDownError: a service could not be reached.
        JobFailedError: the query failed; what it had committed is kept, and the next run continues there.
        ProofError: the output does not hold what the log delivered; nothing more is truncated.
        LogWentBackError: a log is older than the checkpoint; nothing more is truncated.
        SyncFailedError: the disk did not take the output; nothing more is truncated.
    """
    files = LakeFiles(session)
    local = files.is_local(job.output) or files.is_local(job.checkpoint)
    refuse_unsafe(job, local=local, master=session.sparkContext.master or "")
    if job.format != PROVABLE:
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
    claim(checkpoint, output, job.partition_by, adopt=job.adopt_output)
    options = Options.parse(job.source_options())
    # `release` sends requests between two batches: a server that hangs must delay neither the others nor the end.
    fleet = Fleet(replace(options, timeout_seconds=min(options.timeout_seconds, 10.0), retries=min(options.retries, 1)))
    batches = Batches(checkpoint, output)
    release = Release(batches, fleet, truncate=job.truncate)
    begun, progress = time.monotonic(), Progress()
    shared = marked(output.path) if job.shared_paths and isinstance(output, LocalLake) else nullcontext()
    try:
        found = release.recover(adopt=job.adopt_output)
        if found:
            report(found)
        position = batches.end(newest(checkpoint, OFFSETS)) or {}
        again = refusal.check(checkpoint, _accepted(job), position)
        release.accept(again)
        _refuse_missing(job, options, fleet, position, report)
        with _remembering(checkpoint), shared as marker:
            release.refuse_older_logs()
            release.advance()
            query = _start(session, job, _with_parallelism(session, job.source_options(marker, again)))
            with _ending(query, stopped):
                _follow(query, progress, report, stopped, release)
            release.finish()
        left, down = _left(options, fleet)
    finally:
        fleet.close()
    return Summary(release.full_batches, release.rows, time.monotonic() - begun, left, down, verified=True)


def _run_unproven(session: SparkSession, job: DrainJob, report: Report, stopped: Callable[[], bool]) -> Summary:
    """Run a job whose output cannot be read back here; nothing is truncated."""
    options = Options.parse(job.source_options())
    begun, progress, fleet = time.monotonic(), Progress(), Fleet(options)
    try:
        query = _start(session, job, _with_parallelism(session, job.source_options()))
        with _ending(query, stopped):
            _follow(query, progress, report, stopped)
        left, down = _left(options, fleet)
    finally:
        fleet.close()
    return Summary(progress.batches, progress.records, time.monotonic() - begun, left, down)


def _start(session: SparkSession, job: DrainJob, options: Mapping[str, str]) -> StreamingQuery:
    frame = session.readStream.format("mrecordlog").options(**options).load()
    writer = (
        _with_copies(frame, job.partition_by)
        .writeStream.format(job.format)
        .option("checkpointLocation", job.checkpoint)
        .option("path", job.output)
        .outputMode("append")
    )
    if job.partition_by:
        writer = writer.partitionBy(*(COPIES[column] for column in job.partition_by))
    if job.every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(job.every_seconds * 1_000)} milliseconds")
    with _explained(job):
        return writer.start()


def _with_copies(frame: DataFrame, columns: tuple[str, ...]) -> DataFrame:
    """Add the columns that directories are named after: shortened copies; the original columns are kept."""
    from pyspark.sql.functions import expr

    for column in columns:
        short = f"concat(substring({column}, 1, 20), '~', md5({column}))"
        name = f"if(octet_length({column}) > {QUEUE_NAME_BYTES}, {short}, {column})"
        frame = frame.withColumn(COPIES[column], expr(name))
    return frame


def _follow(
    query: StreamingQuery,
    progress: Progress,
    report: Report,
    stopped: Callable[[], bool],
    release: Release | None = None,
) -> None:
    last = -1
    while not query.awaitTermination(POLL_SECONDS):
        if release is not None:
            release.advance()
        latest = query.lastProgress
        # Only for a new batch: reading every report each time would use a third of a core when idle.
        if latest is not None and latest["batchId"] != last:
            last = latest["batchId"]
            _report_batches(query, progress, report)
        if stopped():
            _wait_for_batch(query)
            return
    _report_batches(query, progress, report)


def _report_batches(query: StreamingQuery, progress: Progress, report: Report) -> None:
    for each in query.recentProgress:
        if progress.add(each):
            report(progress.line())


def _wait_for_batch(query: StreamingQuery) -> None:
    """Wait until the running batch is committed, at most STOP_SECONDS."""
    deadline = time.monotonic() + STOP_SECONDS
    latest = query.lastProgress
    before = latest["batchId"] if latest is not None else None
    while query.isActive and _is_busy(query) and time.monotonic() < deadline:
        latest = query.lastProgress
        if (latest["batchId"] if latest is not None else None) != before:
            return
        time.sleep(0.02)


def _is_busy(query: StreamingQuery) -> bool:
    """Return whether *query* runs a batch or starts: if stopped then, Spark's processes print pages of errors."""
    status = query.status
    return bool(status["isTriggerActive"]) or status["message"].startswith("Initializing")


@contextmanager
def _ending(query: StreamingQuery, stopped: Callable[[], bool]) -> Iterator[None]:
    """Stop the query at the end. A batch that fails after a stop was requested runs again at the next start."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
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


@contextmanager
def _remembering(checkpoint: Lake) -> Iterator[None]:
    """Record a loss in the checkpoint, so that a later start does not overlook it."""
    from pyspark.errors import PySparkException

    try:
        yield
    except LogWentBackError as error:
        refusal.remember(checkpoint, str(error))
        raise LogWentBackError(f"{error}. {refusal.advice(refusal.flag_for(str(error)))}") from None
    except PySparkException as error:
        text = str(error)
        if not refusal.is_loss(text):
            raise
        # The source's advice is for users who read without a drain.
        sentence = cause_of(text).partition("; to continue with")[0]
        refusal.remember(checkpoint, sentence)
        raise JobFailedError(f"{sentence}. {refusal.advice(refusal.flag_for(sentence))}") from error


def _accepted(job: DrainJob) -> set[str]:
    accepted = {refusal.WENT_BACK} if job.accept_went_back else set[str]()
    return accepted | ({refusal.LOSS} if job.options.get("failOnDataLoss") == "false" else set())


def _with_parallelism(session: SparkSession, options: dict[str, str]) -> dict[str, str]:
    """Split large batches into as many tasks as Spark has cores: the driver's core count is irrelevant in a cluster."""
    return {"parallelism": str(session.sparkContext.defaultParallelism), **options}


def _refuse_missing(job: DrainJob, options: Options, fleet: Fleet, position: Offset, report: Report) -> None:
    """Refuse to catch up with a queue that is neither on a server nor in the checkpoint: a misspelt name."""
    names = options.subscription.names
    if names is None:
        return
    there = {queue for queues in position.values() for queue in queues}
    try:
        for server in options.servers:
            there |= {summary.queue for summary in fleet.client(server.name).queues()}
    except (OSError, ServerDownError, ServiceRefusedError):
        return  # the query reports it
    for name in sorted(names - there):
        near = difflib.get_close_matches(name, there, n=1)
        sentence = f"no server has a queue {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        if job.every_seconds is None:
            raise RefusedError(sentence)
        report(f"{sentence}; it is drained once it exists")


def _left(options: Options, fleet: Fleet) -> tuple[dict[str, int], dict[str, str]]:
    left, down = dict[str, int](), dict[str, str]()
    for server in options.servers:
        try:
            found = fleet.client(server.name).queues()
            left[server.name] = sum(each.records for each in found if options.subscription.includes(each.queue))
        except (OSError, ServerDownError, ServiceRefusedError) as error:
            down[server.name] = str(error)
    return left, down


@contextmanager
def _explained(job: DrainJob) -> Iterator[None]:
    """Replace Java's error for a format that is not installed by one sentence."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        text = str(error.java_exception)
        if "ClassNotFoundException" in text or "DATA_SOURCE_NOT_FOUND" in text:
            raise RefusedError(
                f"the format {job.format!r} is not installed in Spark; add its jar (spark.jars.packages), or use "
                "--format parquet"
            ) from None
        raise JobFailedError(text.partition("\n")[0]) from error


# The command.


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    job, stop = job_of(arguments), Stop()
    with failures_as_sentences():
        session = job_session("mrecordlog drain", arguments.master)
        stop.install()
        summary = run_drain(session, job, teller(session), stop)
        print(json.dumps(asdict(summary)) if arguments.json else summary.line(), flush=True)
        session.stop()
    return 1 if summary.down and job.every_seconds is None else 0


def job_of(arguments: argparse.Namespace) -> DrainJob:
    """Return the job that the command line describes."""
    options = {"maxRecordsPerTrigger": str(arguments.max_records_per_trigger)}
    given = {
        "maxBytesPerTrigger": arguments.max_bytes_per_trigger,
        "minPartitions": arguments.min_partitions,
        "subscribe": arguments.subscribe,
        "subscribePattern": arguments.subscribe_pattern,
        "failOnServerDown": "false" if arguments.skip_down else None,
        "failOnDataLoss": "false" if arguments.allow_data_loss else None,
        "token": read_token(arguments.token_file),
    }
    options |= {name: str(value) for name, value in given.items() if value is not None}
    return DrainJob(
        servers=",".join(arguments.server),
        output=arguments.output.rstrip("/"),
        checkpoint=arguments.checkpoint.rstrip("/"),
        every_seconds=arguments.every,
        format=arguments.format,
        truncate=not arguments.no_truncate,
        partition_by=tuple(filter(None, arguments.partition_by.split(","))),
        shared_paths=arguments.shared_paths,
        accept_went_back=arguments.accept_went_back,
        adopt_output=arguments.adopt_output,
        options=options,
    )
