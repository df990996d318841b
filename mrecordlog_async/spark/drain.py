"""The exactly-once job from logs to a lake: `mrecordlog drain`, or `python -m mrecordlog_async.spark drain`.

The data source reads, Spark's file sink and checkpoint write. Around them, in this order: `guards` and `identity` say
whether the job may start, `release` looks at what the last run left, the query runs, and while it does `release` proves
each committed batch and truncates the log behind it. `refusal` remembers a loss.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mrecordlog_async import token_file
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark import refusal
from mrecordlog_async.spark.batches import OFFSETS, Batches, newest
from mrecordlog_async.spark.checkpoint import Offset
from mrecordlog_async.spark.client import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.identity import RefusedError, claim
from mrecordlog_async.spark.lake import Lake, LocalLake
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.preflight import COPIES, PROVABLE, DrainJob, LakeFiles, refuse_unsafe
from mrecordlog_async.spark.release import LogWentBackError, Release
from mrecordlog_async.spark.session import job_session
from mrecordlog_async.spark.shared_storage import marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 1
STOP_SECONDS = 30.0
"""How long a stop waits for the batch that is running; a batch that is cut off runs again at the next start."""

QUEUE_NAME_BYTES = 80
"""Longer names are shortened where they name a directory: with its escapes one has at most 255 bytes."""


class JobFailedError(RecordLogError):
    """The query failed; the message is the cause. What it had committed stays, the next run goes on from there."""


class ServiceDownError(JobFailedError):
    """The query failed because a service could not be reached."""


@dataclass(slots=True)
class Progress:
    """What a query has done so far, from its own reports."""

    batches: int = 0
    records: int = 0
    rate: float = 0.0
    lag: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def add(self, report: Mapping[str, Any]) -> bool:
        """Take a progress report of Spark's; True if it tells of a new batch with records."""
        source = report["sources"][0]
        self.lag = waiting(source.get("latestOffset"))
        batch, records = report["batchId"], report["numInputRows"]
        if batch in self.seen or not records:
            return False
        self.seen.add(batch)
        self.batches += 1
        self.records += records
        self.rate = report.get("processedRowsPerSecond") or 0.0
        return True

    def line(self) -> str:
        """Say it in one line."""
        behind = ", ".join(f"{server} {count:,}" for server, count in self.lag.items())
        return f"batch {self.batches}: {self.records:,} records, {self.rate:,.0f} records/s, lag: {behind or 'none'}"


@dataclass(frozen=True, slots=True)
class Summary:
    """How a drain ended. left: records still in the subscribed queues, by server. down: servers not reached.

    records: rows that were stored; verified: they were counted in the output's files and checked against the log.
    """

    batches: int
    records: int
    seconds: float
    left: dict[str, int]
    down: dict[str, str]
    verified: bool = False

    def line(self) -> str:
        """Say it in one line."""
        rate = self.records / self.seconds if self.seconds else 0.0
        left = ", ".join(f"{server} {count:,}" for server, count in self.left.items())
        text = f"drained {self.records:,} records in {self.seconds:.1f} s ({rate:,.0f} records/s)"
        text += ", counted in the output" if self.verified else ""
        text += f"; left in the log: {left}" if self.left else ""
        return text + "".join(f"; NOT drained: server {server!r} is down" for server in self.down)


Report = Callable[[str], None]


def run_drain(
    session: SparkSession,
    job: DrainJob,
    report: Report = lambda line: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Summary:
    """Run the job until it has caught up, or until *stopped* says so: then it ends between two batches.

    Args:
        session: where Spark runs.
        job: what to drain and where to.
        report: is called with a sentence for each new batch, and for what a start finds.
        stopped: is asked every second.

    Raises:
        RefusedError: before anything is started.
        ServiceDownError, JobFailedError: the query failed.
        ProofError, LogWentBackError, SyncFailedError: from `release`; nothing was truncated that is not stored.
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
    # Released from between two batches: a server that hangs must not hold up the others, nor the end.
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
    """Run a job whose output cannot be read back; nothing is truncated."""
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


def waiting(latest: str | None) -> dict[str, int]:
    """Return how many records of each server the query has not taken yet, as its source reported them."""
    found = json.loads(latest) if latest else None
    return dict(found["waiting"]) if isinstance(found, dict) and "waiting" in found else {}


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
    """Add what directories are named by: a name may be longer than a directory's, and the column itself stays."""
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
        if latest is not None and latest["batchId"] != last:  # asking for all reports costs a core's third when idle
            last = latest["batchId"]
            _tell(query, progress, report)
        if stopped():
            _wait_for_batch(query)
            return
    _tell(query, progress, report)


def _tell(query: StreamingQuery, progress: Progress, report: Report) -> None:
    for each in query.recentProgress:
        if progress.add(each):
            report(progress.line())


def _wait_for_batch(query: StreamingQuery) -> None:
    """Wait until the batch that runs is committed, or the time for it is over."""
    deadline = time.monotonic() + STOP_SECONDS
    latest = query.lastProgress
    before = latest["batchId"] if latest is not None else None
    while query.isActive and _is_busy(query) and time.monotonic() < deadline:
        latest = query.lastProgress
        if (latest["batchId"] if latest is not None else None) != before:
            return
        time.sleep(0.02)


def _is_busy(query: StreamingQuery) -> bool:
    """Tell whether *query* runs a batch, or starts: Spark's processes print pages if they are stopped while they do."""
    status = query.status
    return bool(status["isTriggerActive"]) or status["message"].startswith("Initializing")


@contextmanager
def _ending(query: StreamingQuery, stopped: Callable[[], bool]) -> Iterator[None]:
    """Stop the query at the end. A batch that fails after the job was told to stop runs again at the next start."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
    from pyspark.errors import PySparkException

    spark_fails = (PySparkException, Py4JError, ConnectionError, EOFError)
    try:
        yield
    except BaseException as error:
        with suppress(*spark_fails):  # the first error is the one to tell
            query.stop()
        if not (stopped() and isinstance(error, spark_fails)) or refusal.is_loss(str(error)):
            raise
    else:
        query.stop()


@contextmanager
def _remembering(checkpoint: Lake) -> Iterator[None]:
    """Note a loss in the checkpoint, so that it does not heal by waiting."""
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
        # What the source advises is for those who use it without a drain.
        sentence = cause_of(text).partition("; to go on with")[0]
        refusal.remember(checkpoint, sentence)
        raise JobFailedError(f"{sentence}. {refusal.advice(refusal.flag_for(sentence))}") from error


def _accepted(job: DrainJob) -> set[str]:
    accepted = {refusal.WENT_BACK} if job.accept_went_back else set[str]()
    return accepted | ({refusal.LOSS} if job.options.get("failOnDataLoss") == "false" else set())


def _with_parallelism(session: SparkSession, options: dict[str, str]) -> dict[str, str]:
    """Cut large batches into as many tasks as Spark has cores: the driver's machine says nothing about a cluster."""
    return {"parallelism": str(session.sparkContext.defaultParallelism), **options}


def _refuse_missing(job: DrainJob, options: Options, fleet: Fleet, position: Offset, report: Report) -> None:
    """Refuse to catch up with a queue that no server has and the checkpoint does not know: its name is misspelt."""
    names = options.subscription.names
    if names is None:
        return
    there = {queue for queues in position.values() for queue in queues}
    try:
        for server in options.servers:
            there |= {summary.queue for summary in fleet.client(server.name).queues()}
    except (OSError, ServerDownError, ServiceRefusedError):
        return  # the query says so itself
    for name in sorted(names - there):
        near = difflib.get_close_matches(name, there, n=1)
        sentence = f"no server has a queue {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        if job.every_seconds is None:
            raise RefusedError(sentence)
        report(f"{sentence}; it is drained when it is there")


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
    """Turn Java's words for a format that is not installed into a sentence."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        text = str(error.java_exception)
        if "ClassNotFoundException" in text or "DATA_SOURCE_NOT_FOUND" in text:
            raise RefusedError(
                f"Spark has no format {job.format!r} here: add its jar (spark.jars.packages), or drain into parquet"
            ) from None
        raise JobFailedError(text.partition("\n")[0]) from error


# The command.


class Stop:
    """Turns the first SIGTERM or SIGINT into a wish, and the second one into an end."""

    def __init__(self) -> None:
        self.wished = False
        self.install()

    def install(self) -> None:
        """Take both signals; once more after Spark has started, which takes SIGINT for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._wish)

    def __call__(self) -> bool:
        """Tell whether somebody wishes the job to end."""
        return self.wished

    def _wish(self, number: int, frame: object) -> None:
        if self.wished:
            raise KeyboardInterrupt
        self.wished = True


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


def teller(session: SparkSession) -> Report:
    """Return what writes a line to standard error.

    spark-submit merges both outputs of a Python program into its standard output; Java's own way out is not merged.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return lambda line: print(line, file=sys.stderr, flush=True)
    java: Any = session.sparkContext._jvm  # py4j has no types
    error = java.System.err
    return lambda line: error.println(line)


@contextmanager
def failures_as_sentences() -> Iterator[None]:
    """Raise JobFailedError, or ServiceDownError, with one sentence for what Spark or its Java say in pages."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        text = str(error)
        kind = ServiceDownError if "ServerDownError: " in text else JobFailedError
        raise kind(cause_of(text)) from error
    except ServerDownError as error:
        raise ServiceDownError(str(error)) from error
    except Py4JJavaError as error:  # Java answered: it lives
        raise JobFailedError(str(error.java_exception).partition("\n")[0]) from error
    except (Py4JError, ConnectionError, EOFError) as error:
        raise JobFailedError(
            "Spark's Java ended in the middle (killed, or out of memory). What was not committed is still in the log: "
            "start again"
        ) from error


def job_of(arguments: argparse.Namespace) -> DrainJob:
    """Make the job that the command line describes."""
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


def cause_of(text: str) -> str:
    """Find the sentence of ours in what Spark says of a failed query, or return what it says first."""
    ours = re.findall(r"mrecordlog_async\.[\w.]*Error: (.+)", text)
    if ours:
        return str(ours[-1])
    if "XXKST" in text and "Broken pipe" in text:
        return "the Python process of the source ended in the middle (killed, or out of memory): start again"
    return text.partition("\n")[0]


def read_token(path: str | None) -> str | None:
    """Return the first token in a file. Raises RefusedError where it holds none or cannot be read."""
    try:
        return None if path is None else token_file.read_token(path)
    except token_file.TokenFileError as error:
        raise RefusedError(str(error)) from None
