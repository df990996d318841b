"""The drain as one call: `mrecordlog drain`, and the same from Python.

    from mrecordlog_async.spark.drain_call import DrainOptions, drain

    summary = drain(DrainOptions(servers="a=http://localhost:8080", output="./lake/events"))

Without a session of Spark, it runs in this process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.consuming import ConsumerOfDrain, rule_of
from mrecordlog_async.spark.delta_output import DeltaOutput
from mrecordlog_async.spark.drain_loop import Drain
from mrecordlog_async.spark.drain_metrics import DrainLag, metrics_served, parse_address
from mrecordlog_async.spark.json_columns import with_day, with_json_columns
from mrecordlog_async.spark.log_server import LogServer
from mrecordlog_async.spark.options import BYTES, RECORDS, parse_servers
from mrecordlog_async.spark.planning import Includes, everything
from mrecordlog_async.spark.runners import (
    DATE,
    Change,
    Run,
    SparkEndedError,
    in_process,
    on_spark,
    parallelism,
    row_schema,
    schema_after,
    transformed,
)
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.surveying import DrainSettings
from mrecordlog_async.spark.table_files import TableFiles
from mrecordlog_async.support.nearest import did_you_mean, nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRAPE_SECONDS = 3.0
"""Seconds that a scrape waits for one response of a service."""

PARTITIONS = ("server", "queue", DATE)
"""Columns by which a table can be partitioned whose rows no function has changed."""


class DrainOptionError(RecordLogError, ValueError):
    """Options of a drain exclude each other, or would lose data; nothing was started."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """What to drain, and where to.

    Attributes:
        servers: `name=url,…`, or one URL; `dns+http://host:port` for all services behind a name.
        output: The Delta table: a directory, or an address in a store.
        name: Of this drain, among those that write to the table.
        every_seconds: How often to look; None ends with what the logs held at the start.
        partition_by: The columns by which a new table is partitioned; None for those of a table that exists.
        schema: Columns that are parsed from JSON payloads, as DDL of Spark; it needs Spark.
        transform: A function from the rows of a batch to the rows of the table, instead; it needs Spark.
        consumer: Acknowledge as this one, instead of truncating.
        take_over: Take the consumer over from another reader.
        subscribe: The queues to drain; None for all.
        subscribe_pattern: A pattern for their whole names, instead.
        max_records: Records of a batch at most.
        max_bytes: Their payload bytes at most.
        min_batch_records: Wait until a batch has this many records …
        max_delay_seconds: … or the first of them has waited for this long.
        storage_options: Keys, region and endpoint of the store.
        tokens: Name of a server → its token; "" is that of all others.
        shared_paths: Every machine of the cluster mounts the table at its path.
        truncate: Release what is stored.
        skip_down: Start and end without servers that are down.
        allow_data_loss: Continue where records were removed before they were stored.
        accept_went_back: Store all of a log that went back again.
        forget: Logs that are lost for good, by the first digits of their ids.
        metrics: Serve metrics at this address.
        migrate_from: The checkpoint of a drain of an earlier version.
    """

    servers: str
    output: str
    name: str = "drain"
    every_seconds: float | None = None
    partition_by: tuple[str, ...] | None = None
    schema: str | None = None
    transform: Change | None = None
    consumer: str | None = None
    take_over: bool = False
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    max_records: int = RECORDS
    max_bytes: int = BYTES
    min_batch_records: int = 1
    max_delay_seconds: float = 60.0
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    shared_paths: bool = False
    truncate: bool = True
    skip_down: bool = False
    allow_data_loss: bool = False
    accept_went_back: bool = False
    forget: tuple[str, ...] = ()
    metrics: str | None = None
    migrate_from: str | None = None

    def check(self) -> None:
        """Raise DrainOptionError, MetricsAddressError for options that exclude each other, or cannot be."""
        if self.subscribe is not None and self.subscribe_pattern is not None:
            raise DrainOptionError("set --subscribe or --subscribe-pattern, not both")
        if self.schema is not None and self.transform is not None:
            raise DrainOptionError("--schema is a short form of a --transform: set one, and let it parse the payloads")
        for name, least in (
            ("max_records", 1),
            ("max_bytes", 1),
            ("min_batch_records", 1),
            ("max_delay_seconds", 0),
            ("every_seconds", 0),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:  # NaN is not, either
                raise DrainOptionError(f"{name} is {value}: set it to {least} or more")
        if self.min_batch_records > self.max_records:
            raise DrainOptionError(
                f"--min-batch-records ({self.min_batch_records}) is above --max-records ({self.max_records}), which no "
                "batch reaches: lower the first, or raise the second"
            )
        if self.metrics is not None:
            parse_address(self.metrics)
        by = self.partition_by or ()
        is_free = self.transform is not None
        if len(set(by)) != len(by) or not (is_free or set(by) <= set(PARTITIONS)):
            raise DrainOptionError(f"cannot partition the table by {','.join(by)}: choose from {', '.join(PARTITIONS)}")
        if self.consumer is None and self.take_over:
            raise DrainOptionError("--take-over takes a consumer over: name it with --consumer")
        if self.consumer is not None and not self.truncate:
            raise DrainOptionError(
                "--consumer acknowledges what is stored, --no-truncate releases nothing: set one of them"
            )

    def includes(self) -> Includes:
        """Return which queues are drained. Raises DrainOptionError."""
        if self.subscribe is not None:
            return frozenset(self.subscribe).__contains__
        if self.subscribe_pattern is None:
            return everything
        try:
            pattern = re.compile(self.subscribe_pattern)
        except re.error as error:
            raise DrainOptionError(f"--subscribe-pattern {self.subscribe_pattern!r}: {error}") from None
        return lambda name: pattern.fullmatch(name) is not None

    def rule(self) -> str | None:
        """Return the pattern of the rule that gives exactly the drained queues a consumer; None if there is none."""
        return rule_of(self.subscribe, self.subscribe_pattern)

    def held_by(self, owner: str) -> ConsumerOfDrain:
        """Return the consumer that *owner* holds."""
        assert self.consumer is not None, "the drain is one"
        return ConsumerOfDrain(self.consumer, owner, self.rule(), self.take_over)

    def settings(self) -> DrainSettings:
        """Return what the loop does."""
        return DrainSettings(
            self.max_records,
            self.max_bytes,
            self.includes(),
            self.truncate,
            self.allow_data_loss,
            self.accept_went_back,
            self.forget,
            self.skip_down,
            self.min_batch_records,
            self.max_delay_seconds,
        )


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """What a drain has done so far, after a batch.

    Attributes:
        batches: Batches with records.
        records: Records that were read from the logs.
        rows: Rows that were stored; a function may make fewer of them.
        rate: Records per second of the last batch.
        lag: About how many records are not stored, by server; None where that is not known.
        down: Servers that are left out because they are down → the reason.
        held: Servers whose log is held back → the reason.
    """

    batches: int
    records: int
    rows: int
    rate: float
    lag: dict[str, int | None]
    down: dict[str, str]
    held: dict[str, str]

    @property
    def line(self) -> str:
        """One line for the user."""
        text = f"batch {self.batches}: {self.records:,} records{_into(self.rows, self.records)}"
        text += f", {self.rate:,.0f} records/s, lag: {_counts(self.lag)}"
        text += f"; DOWN: {', '.join(self.down)}" if self.down else ""
        return text + (f"; HELD BACK: {', '.join(self.held)}" if self.held else "")

    @property
    def facts(self) -> dict[str, Any]:
        """The same for programs, as JSON has it."""
        facts: dict[str, Any] = {"batch": self.batches, "records": self.records, "rows": self.rows}
        facts |= {"rate": round(self.rate), "lag": self.lag}
        return facts | ({"down": self.down} if self.down else {}) | ({"held": self.held} if self.held else {})


@dataclass(frozen=True, slots=True)
class DrainSummary:
    """End of a drain.

    Attributes:
        batches: Batches with records.
        records: Records that were read from the logs.
        rows: Rows that were stored; a function may make fewer of them.
        seconds: Duration of the run.
        left: About how many records of the last look are not stored, by server; None where that is not known: it did
            not respond, or its log is held back.
        down: Servers that were not drained because they were down → the reason.
        held: Servers whose log is held back → the reason.
    """

    batches: int
    records: int
    rows: int
    seconds: float
    left: dict[str, int | None]
    down: dict[str, str]
    held: dict[str, str]

    @property
    def line(self) -> str:
        """One line for the user."""
        rate = self.records / self.seconds if self.seconds else 0.0
        text = f"drained {self.records:,} records{_into(self.rows, self.records)} in {self.seconds:.1f} s"
        text += f" ({rate:,.0f} records/s)"
        text += f", durable in the output; left to drain: {_counts(self.left)}"
        text += "".join(f"; NOT drained: server {name!r} was down: {why}" for name, why in self.down.items())
        return text + "".join(f"; NOT drained: server {name!r}: {why}" for name, why in self.held.items())


def _into(rows: int, records: int) -> str:
    return f" into {rows:,} rows" if rows != records else ""


def _counts(found: Mapping[str, int | None]) -> str:
    counts = {server: "unknown" if count is None else f"{count:,}" for server, count in found.items()}
    return ", ".join(f"{server} {count}" for server, count in counts.items()) or "unknown"


def drain(
    options: DrainOptions,
    session: SparkSession | None = None,
    *,
    report: Callable[[str], None] = lambda line: None,
    progress: Callable[[DrainProgress], None] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
    pause: Callable[[float], None] = time.sleep,
) -> DrainSummary:
    """Move records into the table until everything is stored, or until *stopped*; then it ends between two batches.

    Args:
        options: what to drain, and where to.
        session: the Spark that carries out the tasks; None for this process.
        report: called with a sentence for people.
        progress: called after each batch that has records.
        stopped: returns whether to end.
        pause: waits for some seconds, or until *stopped*.

    Returns:
        What was stored, what is left to drain, and which servers were not drained.

    Raises:
        DrainOptionError: options exclude each other, or would lose data.
        RecordLogError: what the loop and the output raise (`Drain.follow`, `DeltaOutput.open`).
    """
    options.check()
    begun, given, settings = time.monotonic(), parse_servers(options.servers), options.settings()
    change = _change(options, session)
    output = _output(options, session, change, report)
    is_new, servers = not output.exists(), ServerSet(given, options.tokens)
    missing = _missing(options, servers, is_new=is_new)
    if is_new:  # refused before it is created: the next start may choose another layout
        _refuse_missing(options, missing, DrainState(), report)
        missing = {}
    output.open()
    try:
        _refuse_missing(options, missing, output.load(), report)
        if options.consumer is not None:
            servers.hold(options.held_by(output.owner))
        if change is not None and DATE in output.schema.names:
            change = with_day(change)
        run, cores = _runner(session, change)
        job = Drain(servers, output, run, settings, cores=cores, report=report)

        def stored(records: int, seconds: float) -> None:
            totals, rate = job.totals, records / seconds if seconds else 0.0
            trouble = job.trouble
            down, held = dict(trouble.down), dict(trouble.held)
            progress(DrainProgress(totals.batches, totals.records, totals.rows, rate, job.left, down, held))

        try:
            with _metrics_served(options, servers, job, report):
                job.follow(options.every_seconds, stopped, pause, stored)
        finally:
            job.close()
    finally:
        output.close()
    totals, trouble = job.totals, job.trouble
    seconds = time.monotonic() - begun
    return DrainSummary(totals.batches, totals.records, totals.rows, seconds, job.left, trouble.down, trouble.held)


@contextmanager
def _metrics_served(
    options: DrainOptions, servers: ServerSet, job: Drain, report: Callable[[str], None]
) -> Iterator[None]:
    def connect(endpoint: Endpoint) -> LogServer:
        return servers.server(endpoint, seconds=SCRAPE_SECONDS)

    lag = DrainLag(servers.endpoints, connect, lambda: job.state, options.includes())
    with metrics_served(options.metrics, job.totals, lag) as address:
        if address is not None:
            report(f"metrics: {address}")
        yield


def _missing(options: DrainOptions, servers: ServerSet, *, is_new: bool) -> dict[str, str]:
    """Return subscribed queues that no server has, each with a sentence; {} while a server does not respond.

    Raises:
        ServerDownError, ServiceRefusedError: a server does not respond, and the table *is_new*: its address may be
            wrong, and no table is created then.
    """
    if options.subscribe is None and not is_new:
        return {}
    there = set[str]()
    try:
        for each in servers():  # their threads, which have not begun, ask only what has changed since
            there |= each.server.listing().queues.keys()
    except (ServerDownError, ServiceRefusedError):
        if is_new and not options.skip_down:
            raise
        return {}
    found = {}
    for name in sorted(set(options.subscribe or ()) - there) if not servers.unfound else ():
        near = nearest(name, there)
        found[name] = f"no server has a queue {name!r}{did_you_mean(near and repr(near))}"
    return found


def _refuse_missing(
    options: DrainOptions, missing: Mapping[str, str], state: DrainState, report: Callable[[str], None]
) -> None:
    """Raise DrainOptionError for a queue that was never drained either; a drain that keeps running reports it."""
    known = {queue for log in state.logs.values() for queue in log.queues}
    for name, sentence in missing.items():
        if name in known:
            continue
        if options.every_seconds is None:
            raise DrainOptionError(sentence)
        report(f"{sentence}; it is drained once it exists")


def _change(options: DrainOptions, session: SparkSession | None) -> Change | None:
    """Return what changes rows before they are stored; None for nothing. Raises DrainOptionError, ColumnsError."""
    if options.schema is None and options.transform is None:
        return None
    if session is None:
        flag = "--schema" if options.transform is None else "--transform"
        raise DrainOptionError(f"{flag} changes rows with Spark: it needs a session of Spark, and excludes --no-spark")
    change = with_json_columns(options.schema) if options.schema is not None else options.transform
    assert change is not None, "one of them is set"
    return with_day(change) if DATE in (options.partition_by or ()) else change


def _output(
    options: DrainOptions, session: SparkSession | None, change: Change | None, report: Callable[[str], None]
) -> DeltaOutput:
    """Return the output, which is not open yet. Raises DrainOptionError."""
    files = TableFiles(options.output, options.storage_options)
    if session is not None and files.path is not None and not options.shared_paths and not _is_local(session):
        raise DrainOptionError(
            f"{options.output} must be on storage that all machines share (s3://, gs://, az://): on a local path each "
            "machine would store only its part, and the log would be truncated. If every machine mounts the same file "
            "system there, add --shared-paths"
        )
    if session is not None and change is not None:
        try:
            schema = schema_after(session, change)
        except SparkEndedError:
            raise
        except Exception as error:  # whatever the function of the user does
            flag = "--transform" if options.schema is None else "--schema"
            raise DrainOptionError(f"{flag} cannot be applied to the rows of a log: {error}") from error
    else:
        schema = row_schema(options.partition_by or ())
    return DeltaOutput(
        files,
        schema,
        name=options.name,
        partition_by=options.partition_by,
        plain=change is None,
        accepts_restore=options.allow_data_loss,
        migrate_from=None
        if options.migrate_from is None
        else TableFiles(options.migrate_from, options.storage_options),
        report=report,
    )


def _is_local(session: SparkSession) -> bool:
    """Return whether tasks run on this machine, as far as Spark says."""
    # The master of a server of Spark Connect says nothing about this machine.
    is_remote = ".connect." in type(session).__module__
    return not is_remote and str(session.conf.get("spark.master", "")).startswith("local")


def _runner(session: SparkSession | None, change: Change | None) -> tuple[Run, int]:
    if session is None:
        return in_process, 1
    run = on_spark(session) if change is None else transformed(session, change)
    return run, parallelism(session)
