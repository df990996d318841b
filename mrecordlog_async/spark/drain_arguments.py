"""The options of a drain as a table, apart from the drain: its help must not import what only a drain needs.

What is typed has the names of `DrainOptions`, and what is not typed is left out: its defaults are the only ones. Two
programs read the table: `mrecordlog drain`, and the script for spark-submit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mrecordlog_async.spark import options as read
from mrecordlog_async.support.paths import absolute


class DrainArgument(NamedTuple):
    """One option. Without *read* it is a switch, which sets *means*. name: "" for that of the flag."""

    flag: str
    help: str
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    name: str = ""
    means: bool = True
    repeats: bool = False
    is_required: bool = False

    @property
    def field(self) -> str:
        """Return the name of its value."""
        return self.name or self.flag.removeprefix("--").replace("-", "_")


def directory(text: str) -> str:
    """Read a path or an address; a slash at its end means nothing, and `~/` at its beginning the home directory."""
    return absolute(text) if text.startswith("~") or not text else text.rstrip("/")


def columns(text: str) -> tuple[str, ...]:
    """Read names of columns, separated by commas."""
    return tuple(filter(None, text.split(",")))


def names(text: str) -> tuple[str, ...]:
    """Read names of queues."""
    found = read.queue_names(text).names
    assert found is not None, "names were read"
    return tuple(sorted(found))


def pattern(text: str) -> str:
    """Read a regular expression for the whole names of queues."""
    read.queue_pattern(text)
    return text


def pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, found, value = text.partition("=")
    if not key or not found:
        raise ValueError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


ARGUMENTS = (
    DrainArgument(
        "--server",
        "Service to drain, or dns+http://host:port for all services behind a name; may be repeated.",
        "NAME=URL",
        str,
        name="servers",
        repeats=True,
        is_required=True,
    ),
    DrainArgument(
        "--output",
        "The Delta table: a directory, or s3://…, gs://…, az://….",
        "PATH",
        directory,
        is_required=True,
    ),
    DrainArgument(
        "--storage-option",
        "Option of the table's object store (AWS_ENDPOINT_URL=…); may be repeated; keys and secrets are better set "
        "as environment variables, which Spark's processes inherit.",
        "KEY=VALUE",
        pair,
        name="storage_options",
        repeats=True,
    ),
    DrainArgument(
        "--shared-paths",
        "Allow local paths on a cluster: every machine mounts the same file system there.",
    ),
    DrainArgument(
        "--name",
        "Name of this drain, if several write to the table (default: drain).",
        "NAME",
        str,
    ),
    DrainArgument(
        "--migrate-from",
        "Take the positions of a drain of an earlier version from its checkpoint into the table, once.",
        "DIR",
        directory,
    ),
    DrainArgument(
        "--token-file",
        "File with the bearer token of the services; with NAME=, of the server of that name; may be repeated.",
        "[NAME=]FILE",
        str,
        repeats=True,
    ),
    DrainArgument(
        "--subscribe",
        "Drain only these queues, separated by commas.",
        "QUEUES",
        names,
    ),
    DrainArgument(
        "--subscribe-pattern",
        "Drain only queues whose whole name matches.",
        "REGEX",
        pattern,
    ),
    DrainArgument(
        "--consumer",
        "Share the queues: acknowledge what is stored as this consumer, instead of truncating; frees the records "
        "of queues with --keep until_acknowledged once all their consumers have acknowledged them.",
        "NAME",
        read.name,
    ),
    DrainArgument(
        "--take-over",
        "Take the consumer over from a drain that is stopped for good, or move it back to where the table stands.",
    ),
    DrainArgument(
        "--no-truncate",
        "Do not truncate the log after storing.",
        name="truncate",
        means=False,
    ),
    DrainArgument(
        "--partition-by",
        "Columns by which a new table is partitioned: server, queue, or date, the day on which records were "
        "stored: date,queue.",
        "COLUMNS",
        columns,
    ),
    DrainArgument(
        "--schema",
        "Add columns parsed from JSON payloads: 'customer string, amount bigint'; those of a payload that does not "
        "parse are null.",
        "DDL",
        str,
    ),
    DrainArgument(
        "--transform",
        "Store what a function makes of the rows: it takes a DataFrame, and returns one.",
        "MODULE:FUNCTION",
        str,
    ),
    DrainArgument(
        "--once",
        "Stop once everything that the logs held at the start is stored (default).",
    ),
    DrainArgument(
        "--every",
        "Keep running, with at most one batch per TIME (10s, 1min).",
        "TIME",
        read.interval,
        name="every_seconds",
    ),
    DrainArgument(
        "--max-records",
        "Records per batch at most (default: 1000000).",
        "COUNT",
        read.count,
    ),
    DrainArgument(
        "--max-bytes",
        "Bytes per batch at most (default: 256m).",
        "SIZE",
        read.size,
    ),
    DrainArgument(
        "--min-batch-records",
        "With --every: wait until a batch has this many records, for fewer and larger files (default: no wait).",
        "COUNT",
        read.count,
    ),
    DrainArgument(
        "--max-delay",
        "With --min-batch-records: wait no longer than this for them (default: 1min).",
        "TIME",
        read.seconds,
        name="max_delay_seconds",
    ),
    DrainArgument(
        "--skip-down",
        "Start without servers that are down; with --once, end without them as well.",
    ),
    DrainArgument(
        "--allow-data-loss",
        "Continue where records were truncated or deleted before they were stored.",
    ),
    DrainArgument(
        "--accept-went-back",
        "Reread all of a log that is older than the table's positions; records may then be in the table twice.",
    ),
    DrainArgument(
        "--forget",
        "Drop the positions of a log that is lost, by its id or at least 8 digits of it; may be repeated.",
        "LOG",
        read.logs,
        repeats=True,
    ),
    DrainArgument(
        "--metrics",
        "Serve metrics of the drain for Prometheus at http://HOST:PORT/metrics; PORT alone: on this machine only.",
        "HOST:PORT",
        str,
    ),
    DrainArgument(
        "--no-spark",
        "Fetch and write in this process, one task at a time, without Java.",
    ),
    DrainArgument(
        "--master",
        "Where Spark runs; sc://… is a server of Spark Connect (default: what spark-submit sets, else this machine).",
        "URL",
        str,
    ),
    DrainArgument(
        "--json",
        "Print the summary as one JSON object, and progress as JSON lines in a terminal too.",
    ),
)
"""Every option, in the order of the help."""
