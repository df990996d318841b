"""The exactly-once job from logs to a lake: `mrecordlog drain`, or `python -m mrecordlog_async.spark drain`.

The data source and Spark's checkpoint do the work; what keeps a user from losing data around them is in `guards`.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.client import ServerDownError, ServiceError
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.guards import DrainJob, LakeFiles, refuse_unsafe
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.plan import Offset
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.spark.shared import marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 1


class JobFailedError(RecordLogError):
    """The query failed; the message is the cause. What it had committed stays, the next run goes on from there."""


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
        self.lag = lag(_offset(source.get("latestOffset")), _offset(source.get("endOffset")))
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
    """How a drain ended. left: records still in the subscribed queues, by server. down: servers not reached."""

    batches: int
    records: int
    seconds: float
    left: dict[str, int]
    down: dict[str, str]

    def line(self) -> str:
        """Say it in one line."""
        rate = self.records / self.seconds if self.seconds else 0.0
        left = ", ".join(f"{server} {count:,}" for server, count in self.left.items())
        text = (
            f"drained {self.records:,} records in {self.seconds:.1f} s ({rate:,.0f} records/s); left in the log: {left}"
        )
        return text + "".join(f"; NOT drained: server {server!r} is down" for server in self.down)


def run_drain(
    session: SparkSession, job: DrainJob, report: Callable[[Progress], None] = lambda progress: None
) -> Summary:
    """Run the job until it has caught up, or is interrupted. Raises RefusedError before anything is started."""
    files = LakeFiles(session)
    refuse_unsafe(job, files.exists, files.is_local, session.sparkContext.master or "")
    directories = [files.make(path) for path in (job.output, job.checkpoint) if files.is_local(path)]
    proof = marked(files.make(job.output)) if job.shared_paths and files.is_local(job.output) else nullcontext()
    begun = time.monotonic()
    progress = Progress()
    with proof as marker:
        options = job.source_options(directories, marker)
        query = _start(session, job, options)
        try:
            _follow(query, progress, report)
        finally:
            query.stop()
    return _summarize(Options.parse(options), progress, time.monotonic() - begun)


def lag(latest: Offset, end: Offset) -> dict[str, int]:
    """Return how many positions each server is ahead of the query."""
    return {
        server: sum(
            max(position - _read_to(end, server, queue, queue_id), 0) for queue, (queue_id, position) in queues.items()
        )
        for server, queues in latest.items()
    }


def _read_to(end: Offset, server: str, queue: str, queue_id: int) -> int:
    known = end.get(server, {}).get(queue)
    return known[1] if known is not None and known[0] == queue_id else 0


def _offset(text: str | None) -> Offset:
    found = json.loads(text) if text else None
    return found if isinstance(found, dict) else {}


def _start(session: SparkSession, job: DrainJob, options: Mapping[str, str]) -> StreamingQuery:
    writer = (
        session.readStream.format("mrecordlog")
        .options(**options)
        .load()
        .writeStream.format(job.format)
        .option("checkpointLocation", job.checkpoint)
        .option("path", job.output)
        .outputMode("append")
    )
    if job.partition_by:
        writer = writer.partitionBy(*job.partition_by)
    if job.every_seconds is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(job.every_seconds * 1_000)} milliseconds").start()


def _follow(query: StreamingQuery, progress: Progress, report: Callable[[Progress], None]) -> None:
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(POLL_SECONDS))
        for each in query.recentProgress:
            if progress.add(each):
                report(progress)


def _summarize(options: Options, progress: Progress, seconds: float) -> Summary:
    fleet = Fleet(options)
    left, down = dict[str, int](), dict[str, str]()
    for server in options.servers:
        try:
            found = fleet.client(server.name).queues()
            left[server.name] = sum(each.records for each in found if options.subscription.includes(each.queue))
        except (ServerDownError, ServiceError) as error:
            down[server.name] = str(error)
    fleet.close()
    return Summary(progress.batches, progress.records, seconds, left, down)


# The command.


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from pyspark.errors import PySparkException

    job = job_of(arguments)
    session = spark_session(
        "mrecordlog drain", master=arguments.master, settings={"spark.ui.showConsoleProgress": "false"}
    )
    session.sparkContext.setLogLevel("ERROR")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        summary = run_drain(session, job, lambda progress: print(progress.line(), file=sys.stderr, flush=True))
    except PySparkException as error:
        raise JobFailedError(cause_of(str(error))) from error
    print(json.dumps(asdict(summary)) if arguments.json else summary.line())
    session.stop()
    return 1 if summary.down and job.every_seconds is None else 0


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
        options=options,
    )


def cause_of(text: str) -> str:
    """Find the sentence of ours in what Spark says of a failed query, or return what it says first."""
    ours = re.findall(r"mrecordlog_async\.[\w.]*Error: (.+)", text)
    return ours[-1] if ours else text.partition("\n")[0]


def read_token(path: str | None) -> str | None:
    """Return the token in a file: its first line."""
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return file.readline().strip()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
