"""The options of the data source: each one once, with its name, default, reader and meaning. Pure.

Names are those that a Spark user knows from other streaming sources. `option` says what a row is made of, and
`option_values` reads the texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark.settings import option_values as read
from mrecordlog_async.spark.settings.option import Flag, Option, either, read_options
from mrecordlog_async.spark.settings.option_values import Bound, OptionError, Subscription, WhenDown

RECORDS_PER_TRIGGER = 1_000_000
TARGET_FILE_BYTES = 128 << 20
"""The size of a Parquet file that a drain begins another one after, and that `lake optimize` joins files up to."""

_LATE_COMMITS = "asyncProgressTrackingEnabled"
"""An option of Spark, with which it writes commits asynchronously."""

_TABLE_OPTION = "option."
"""Spark's prefix for the options of `CREATE TABLE … OPTIONS`, among owner, provider and other table properties."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a user may set for a read or a write. `parse` reads Spark's option names, in any case."""

    servers: tuple[Endpoint | Lookup, ...] = field(
        default=(),
        metadata=Option(
            "servers",
            read.parse_servers,
            "all",
            "`name=url,…` or one url; `dns+http://host:port` for all services behind a name",
            "none",
        ).row,
    )
    path: str | None = field(
        default=None,
        metadata=Option("path", read.path, "batch read", "a log directory on this machine, instead of servers").row,
    )
    subscription: Subscription = field(
        default=Subscription(),  # it is frozen
        metadata=either(
            Option(
                "subscribe",
                read.queue_names,
                "read",
                'names (`a,b` or `["a","b"]`) of existing queues; an endless stream waits until they exist',
                "all",
                Flag("--subscribe", "drain only these queues, separated by commas", "QUEUES"),
            ),
            Option(
                "subscribePattern",
                read.queue_pattern,
                "read",
                "a pattern for the whole name of a queue",
                "all",
                Flag("--subscribe-pattern", "drain only queues whose whole name matches", "REGEX"),
            ),
        ),
    )
    starting: Bound = field(
        default="earliest",
        metadata=either(
            Option(
                "startingOffsets",
                read.offsets("earliest", "latest"),
                "read",
                '`latest`, or JSON `{"server": {"queue": 7}}` with existing queues; -2 is the first position, -1 the '
                "end",
            ),
            Option(
                "startingTimestamp",
                read.moment,
                "read",
                "begin with the first record stored at that time or later; instead of `startingOffsets`",
                "none",
            ),
        ),
    )
    ending: Bound = field(
        default="latest",
        metadata=either(
            Option(
                "endingOffsets",
                read.offsets("latest"),
                "batch read",
                "JSON as for `startingOffsets`; these positions are not read themselves",
            ),
            Option(
                "endingTimestamp",
                read.moment,
                "batch read",
                "end before the first record stored at that time or later; instead of `endingOffsets`",
                "none",
            ),
        ),
    )
    time_zone: tzinfo = field(
        default=UTC,
        metadata=Option("timeZone", read.zone, "read", "of times without one: `+01:00`, `Europe/Berlin`", "`UTC`").row,
    )
    records_per_trigger: int = field(
        default=RECORDS_PER_TRIGGER,
        metadata=Option(
            "maxRecordsPerTrigger",
            read.count,
            "stream",
            "records of one batch at most",
            flag=Flag(
                "--max-records-per-trigger", f"records per batch at most (default: {RECORDS_PER_TRIGGER})", "COUNT"
            ),
        ).row,
    )
    records_min: int = field(
        default=1,
        metadata=Option(
            "minRecordsPerTrigger",
            read.count,
            "endless stream",
            "wait until a batch has this many records, or is full …",
            flag=Flag(
                "--min-batch-records",
                "with --every: wait until a batch has this many records, for fewer and larger files (default: no wait)",
                "COUNT",
            ),
        ).row,
    )
    delay_seconds: float = field(
        default=60.0,
        metadata=Option(
            "maxTriggerDelay",
            read.seconds,
            "endless stream",
            "… or the first of them has waited this many seconds",
            flag=Flag(
                "--max-delay", "with --min-batch-records: wait no longer than this for them (default: 1min)", "TIME"
            ),
        ).row,
    )
    bytes_per_trigger: int = field(
        default=256 << 20,
        metadata=Option(
            "maxBytesPerTrigger",
            read.size,
            "stream",
            "payload bytes of one batch at most, if that is reached first: a "
            "[size](reference/settings.md#sizes-and-times) as `256m`, `1g`",
            flag=Flag("--max-bytes-per-trigger", "bytes per batch at most (default: 256m)", "SIZE"),
        ).row,
    )
    partitions_min: int | None = field(
        default=None,
        metadata=Option(
            "minPartitions",
            read.count,
            "read",
            "tasks per batch at least, about",
            flag=Flag(
                "--min-partitions",
                "tasks per batch at least (default: one per log for a small batch, one per core of Spark for a "
                "large one)",
                "COUNT",
            ),
        ).row,
    )
    records_per_partition: int | None = field(
        default=None,
        metadata=Option(
            "maxRecordsPerPartition",
            read.count,
            "read",
            "records of one task at most, but up to 8,192 where positions have gaps",
        ).row,
    )
    parallelism: int | None = field(
        default=None,
        metadata=Option(
            "parallelism",
            read.count,
            "read",
            "number of tasks for a large batch; `drain` sets it to Spark's own number",
            "cores that the driver may use",
        ).row,
    )
    fail_on_data_loss: bool = field(
        default=True,
        metadata=Option(
            "failOnDataLoss",
            read.switch,
            "read",
            "false: continue without records that were deleted unread, with a warning",
            flag=Flag(
                "--allow-data-loss",
                "continue where records were truncated or deleted before they were stored",
                means="false",
            ),
        ).row,
    )
    when_down: WhenDown = field(
        default=WhenDown.FAIL,
        metadata=Option(
            "failOnServerDown",
            read.when_down,
            "read",
            "true: wait for the server, then fail (at once if it refuses to list its queues); `atEnd`: continue "
            "without it, and fail at the end of a run that ends (streams); false: continue without it",
            "true (`drain`: `atEnd`)",
            Flag(
                "--skip-down",
                "start without servers that are down; with --once, end without them as well",
                means="false",
            ),
        ).row,
    )
    truncate: bool = field(
        default=False,
        metadata=Option(
            "truncate",
            read.switch,
            "stream",
            "truncate the records that the checkpoint has committed",
            "false (`drain`: true)",
            Flag("--no-truncate", "do not truncate the log after storing", means="false"),
        ).row,
    )
    sync_directories: tuple[str, ...] = field(
        default=(),
        metadata=Option(
            "syncDirs",
            read.paths,
            "stream",
            'sync these file systems (`/a,/b`, or `["/a, b"]`) before each truncate or acknowledgement; stop if a '
            "sync fails",
            "none",
        ).row,
    )
    consumer: str | None = field(
        default=None,
        metadata=Option(
            "consumer",
            read.name,
            "stream",
            "acknowledge the records that the checkpoint has committed, as this consumer of every queue, instead "
            "of truncating",
            flag=Flag(
                "--consumer",
                "share the queues: acknowledge what is stored as this consumer, instead of truncating; frees the "
                "records of queues with --keep until_acknowledged once all their consumers have acknowledged them",
                "NAME",
            ),
        ).row,
    )
    consumer_owner: str | None = field(
        default=None,
        metadata=Option(
            "consumerOwner", read.uuid, "stream", "a UUID that alone may hold the consumer, the same at every start"
        ).row,
    )
    take_over: bool = field(
        default=False,
        metadata=Option(
            "takeOver",
            read.switch,
            "stream",
            "take the consumer over from another owner",
            flag=Flag(
                "--take-over",
                "take the consumer over from a query that is stopped for good, or move it back to where the "
                "checkpoint stands",
                means="true",
            ),
        ).row,
    )
    checkpoint: str | None = field(
        default=None,
        metadata=Option(
            "checkpoint",
            read.path,
            "stream",
            "for Spark 4.0 and 4.1: the `checkpointLocation` of this query, a directory on the driver's machine; "
            "limits then hold for the first batch too, and a batch is released before the next one (`drain` sets it)",
            "none",
        ).row,
    )
    stop_at_end: bool = field(
        default=False,
        metadata=Option(
            "stopAtEnd",
            read.switch,
            "stream",
            "set by `drain` for Spark 4.0 and 4.1: read what is there at the first trigger, then report the end",
        ).row,
    )
    report_to: str | None = field(
        default=None,
        metadata=Option(
            "reportTo", read.path, "stream", "set by `drain` for Spark 4.0 and 4.1: the file of its reports"
        ).row,
    )
    shared_marker: str | None = field(
        default=None,
        metadata=Option(
            "sharedMarker", str, "stream", "set by `drain`: a file that every task must see before it reads"
        ).row,
    )
    read_again: dict[str, dict[str, list[int]]] | None = field(
        default=None,
        metadata=Option(
            "readAgain", json.loads, "stream", "set by `drain`: what to read again from a log that went back"
        ).row,
    )
    accept_went_back: bool = field(
        default=False,
        metadata=Option(
            "acceptWentBack",
            read.switch,
            "stream",
            "read all of a log again that went back",
            flag=Flag(
                "--accept-went-back",
                "reread all of a log that is older than the checkpoint; records may then be in the output twice",
                means="true",
            ),
        ).row,
    )
    forget: tuple[str, ...] = field(
        default=(),
        metadata=Option(
            "forget",
            read.logs,
            "stream",
            "ids of logs that are lost (`4f31a0c2,…`): they leave the checkpoint",
            "none",
            Flag(
                "--forget",
                "remove a log that is lost from the checkpoint, by its id or at least 8 digits of it; may be repeated",
                "LOG",
                gather=",".join,
            ),
        ).row,
    )
    pushdown: bool = field(
        default=False,
        metadata=Option(
            "pushdown",
            read.switch,
            "read",
            "only false: with filters pushed down, Spark would return too few rows for the next query of the same "
            "DataFrame or view. To fetch less, use `subscribe` and `startingOffsets`",
        ).row,
    )
    payload: bool = field(
        default=True,
        metadata=Option("payload", read.switch, "read", "false: positions only; no payload leaves the service").row,
    )
    queue: str | None = field(
        default=None,
        metadata=Option("queue", read.name, "write", "the queue of all rows, if they have no column `queue`").row,
    )
    create_queues: bool = field(
        default=True,
        metadata=Option("createQueues", read.switch, "write", "false: refuse rows of a queue that does not exist").row,
    )
    token: str | None = field(
        default=None,
        repr=False,
        metadata=Option(
            "token", read.token, "all", "the bearer token of all servers; `token.NAME` is the one of the server NAME"
        ).row,
    )
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)  # of `token.NAME`
    timeout_seconds: float = field(
        default=60.0,
        metadata=Option(
            "timeout",
            read.seconds,
            "all",
            "seconds that a service may be silent; a response without records may take six times as long",
        ).row,
    )
    retries: int = field(
        default=5, metadata=Option("retries", read.count_or_zero, "all", "how often a failed call is repeated").row
    )
    server_wait_seconds: float = field(
        default=120.0,  # long enough for a restart with recovery
        metadata=either(
            Option(
                "serverWait",
                read.seconds_or_zero,
                "stream",
                "seconds to wait for a service that has responded before, where it is waited for",
            )
        ),
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read Spark's options, whose names may have any case.

        Raises:
            OptionError: an option is unknown, malformed, or excluded by another one.
        """
        found = _without_table_properties({name.lower(): str(value) for name, value in given.items()})
        values = read_options(cls, found)
        values["tokens"] = read.read_tokens(found, values.get("servers", ()))
        for bound in ("starting", "ending"):
            if bound in values:
                values[bound] = _in_zone(values[bound], values.get("time_zone", UTC))
        parsed = cls(**values)
        late = Option(_LATE_COMMITS, read.switch, "", "").value_of(found.get(_LATE_COMMITS.lower(), "false"))
        _refuse_contradictions(parsed, late_commits=late)
        return parsed

    def token_of(self, name: str) -> str | None:
        """Return the bearer token of the server *name*."""
        return self.tokens.get(name, self.token)

    def check_stream_read(self) -> None:
        """Raise OptionError for options that a streaming read does not support."""
        if self.path is not None:
            raise OptionError(
                "path is for batch reads; to stream a directory, run `mrecordlog serve` on it and set servers"
            )
        if self.ending != "latest":
            raise OptionError(
                "endingOffsets and endingTimestamp are for batch reads; remove them, a stream does not end"
            )

    def check_batch_read(self) -> None:
        """Raise OptionError for options that a batch read does not support."""
        if self.consumer is not None:
            raise OptionError("consumer is for streams; a batch read has no checkpoint that proves what is stored")
        if self.truncate:
            raise OptionError("truncate=true is for streams; a batch read has no checkpoint that proves what is stored")
        if self.when_down is WhenDown.FAIL_AT_END:
            raise OptionError("failOnServerDown=atEnd is for streams; a table has all servers or leaves some out")
        if self.starting == "latest":
            raise OptionError("startingOffsets=latest is for streams; a batch read would always be empty")

    def check_write(self) -> None:
        """Raise OptionError for options that a write does not support."""
        if self.path is not None:
            raise OptionError("path cannot be written to: start `mrecordlog serve` on the directory and set servers")
        if len(self.servers) != 1 or isinstance(self.servers[0], Lookup):
            count = "all addresses of a name" if len(self.servers) == 1 else str(len(self.servers))
            raise OptionError(
                f"a write goes to one server, not {count}: filter the rows and write once for each server"
            )


def _without_table_properties(found: dict[str, str]) -> dict[str, str]:
    """Return *found*, without the properties of a table if Spark passed them along with its options."""
    if "provider" not in found or "owner" not in found:
        return found
    given = {name.removeprefix(_TABLE_OPTION): text for name, text in found.items() if name.startswith(_TABLE_OPTION)}
    return given | ({"path": found["path"]} if "path" in found else {})


def _in_zone(bound: Any, time_zone: tzinfo) -> Any:
    """Return *bound*; a time that has no zone is in *time_zone*."""
    return bound.replace(tzinfo=time_zone) if isinstance(bound, datetime) and bound.tzinfo is None else bound


def _refuse_contradictions(options: Options, *, late_commits: bool) -> None:
    """Raise OptionError for options that exclude each other. late_commits: Spark writes commits asynchronously."""
    if bool(options.servers) == bool(options.path):
        raise OptionError(
            'set exactly one of the options servers ("name=http://host:port,…") and path (a log directory)'
        )
    if options.pushdown:
        # Spark plans a Python reader once per DataFrame or view. A filter that is pushed down narrows that plan, and a
        # later query without this filter would use it: nothing in Python is called then, so no reader can prevent it.
        raise OptionError(
            "pushdown=true is not supported: Spark would use what one query filtered for the next query of the same "
            "DataFrame or view, which then misses rows. Remove the option; to fetch less, set subscribe, "
            "startingOffsets or endingOffsets; filters on the DataFrame work without it"
        )
    _refuse_release(options, late_commits=late_commits)
    if options.records_min > options.records_per_trigger:
        raise OptionError(
            f"minRecordsPerTrigger ({options.records_min}) is above maxRecordsPerTrigger "
            f"({options.records_per_trigger}), which no batch reaches: lower the first, or raise the second"
        )
    if (
        isinstance(options.starting, datetime)
        and isinstance(options.ending, datetime)
        and options.starting > options.ending
    ):
        raise OptionError("startingTimestamp is after endingTimestamp: nothing would be read; swap them")
    _refuse_unknown_servers(options)


def _refuse_release(options: Options, *, late_commits: bool) -> None:
    """Raise OptionError for what must not be combined with releasing records from the log."""
    if options.consumer is not None and options.truncate:
        raise OptionError("set consumer or truncate=true, not both: a consumer acknowledges instead of truncating")
    if options.consumer is None and (options.consumer_owner is not None or options.take_over):
        raise OptionError("consumerOwner and takeOver are for a stream that is a consumer: set consumer")
    if not options.truncate and options.consumer is None:
        return
    how, what = ("truncate=true", "truncate") if options.truncate else ("consumer", "acknowledgement")
    if options.starting != "earliest":
        raise OptionError(
            f"{how} requires startingOffsets=earliest: the first {what} would release the records before the "
            "start, which were never read"
        )
    if late_commits:
        raise OptionError(f"{how} excludes asyncProgressTrackingEnabled, which writes commits late: set one, not both")


def _refuse_unknown_servers(options: Options) -> None:
    if any(isinstance(server, Lookup) for server in options.servers):
        return  # which services there are is not known yet
    known = {server.name for server in options.servers} or {""}
    for name, positions in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        unknown = [] if isinstance(positions, str | datetime) else sorted(set(positions) - known)
        if unknown:
            raise OptionError(f"{name} names {unknown[0]!r}, but the option servers has no server {unknown[0]!r}")
