"""The command line of a drain, apart from the drain: `mrecordlog --help` must not import what only a drain needs.

What is typed has the names of `DrainOptions`, and what is not typed is left out: its defaults are the only ones.
"""

from __future__ import annotations

import argparse
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable
from typing import Any, TypeVar

from mrecordlog_async.spark import options as read
from mrecordlog_async.support.paths import absolute

T = TypeVar("T")


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `drain` to argparse."""
    _add_places(parser)
    _add_selection(parser)
    _add_rows(parser)
    _add_limits(parser)
    _add_losses(parser)
    _add_command(parser)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        dest="servers",
        action="append",
        required=True,
        metavar="NAME=URL",
        help="service to drain, or dns+http://host:port for all services behind a name; may be repeated",
    )
    _add(
        parser, "--output", directory, "PATH", "the Delta table: a directory, or s3://…, gs://…, az://…", required=True
    )
    parser.add_argument(
        "--storage-option",
        dest="storage_options",
        type=argument(pair),
        action="append",
        default=SUPPRESS,
        metavar="KEY=VALUE",
        help="option of the table's object store (AWS_ENDPOINT_URL=…); may be repeated; keys and secrets are better "
        "set as environment variables, which Spark's processes inherit",
    )
    _switch(parser, "--shared-paths", "allow local paths on a cluster: every machine mounts the same file system there")
    _add(parser, "--name", str, "NAME", "name of this drain, if several write to the table (default: drain)")
    _add(
        parser,
        "--migrate-from",
        directory,
        "DIR",
        "take the positions of a drain of an earlier version from its checkpoint into the table, once",
    )
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="file with the bearer token of the services; with NAME=, of the server of that name; may be repeated",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    _add(parser, "--subscribe", names, "QUEUES", "drain only these queues, separated by commas")
    _add(parser, "--subscribe-pattern", pattern, "REGEX", "drain only queues whose whole name matches")
    _add(
        parser,
        "--consumer",
        read.name,
        "NAME",
        "share the queues: acknowledge what is stored as this consumer, instead of truncating; frees the records of "
        "queues with --keep until_acknowledged once all their consumers have acknowledged them",
    )
    _switch(
        parser,
        "--take-over",
        "take the consumer over from a drain that is stopped for good, or move it back to where the table stands",
    )
    _switch(parser, "--no-truncate", "do not truncate the log after storing", dest="truncate", means=False)


def _add_rows(parser: argparse.ArgumentParser) -> None:
    _add(
        parser,
        "--partition-by",
        columns,
        "COLUMNS",
        "columns by which a new table is partitioned: server, queue, or date, the day on which records were stored: "
        "date,queue",
    )
    _add(
        parser,
        "--schema",
        str,
        "DDL",
        "add columns parsed from JSON payloads: 'customer string, amount bigint'; those of a payload that does not "
        "parse are null",
    )
    _add(
        parser,
        "--transform",
        str,
        "MODULE:FUNCTION",
        "store what a function makes of the rows: it takes a DataFrame, and returns one",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--once",
        action="store_true",
        default=SUPPRESS,
        help="stop once everything that the logs held at the start is stored (default)",
    )
    _add(
        when,
        "--every",
        read.interval,
        "TIME",
        "keep running, with at most one batch per TIME (10s, 1min)",
        dest="every_seconds",
    )
    _add(parser, "--max-records", read.count, "COUNT", "records per batch at most (default: 1000000)")
    _add(parser, "--max-bytes", read.size, "SIZE", "bytes per batch at most (default: 256m)")
    _add(
        parser,
        "--min-batch-records",
        read.count,
        "COUNT",
        "with --every: wait until a batch has this many records, for fewer and larger files (default: no wait)",
    )
    _add(
        parser,
        "--max-delay",
        read.seconds,
        "TIME",
        "with --min-batch-records: wait no longer than this for them (default: 1min)",
        dest="max_delay_seconds",
    )


def _add_losses(parser: argparse.ArgumentParser) -> None:
    _switch(parser, "--skip-down", "start without servers that are down; with --once, end without them as well")
    _switch(
        parser,
        "--allow-data-loss",
        "continue where records were truncated or deleted before they were stored",
    )
    _switch(
        parser,
        "--accept-went-back",
        "reread all of a log that is older than the table's positions; records may then be in the table twice",
    )
    parser.add_argument(
        "--forget",
        type=argument(read.logs),
        action="append",
        default=SUPPRESS,
        metavar="LOG",
        help="drop the positions of a log that is lost, by its id or at least 8 digits of it; may be repeated",
    )


def _add_command(parser: argparse.ArgumentParser) -> None:
    _add(
        parser,
        "--metrics",
        str,
        "HOST:PORT",
        "serve metrics of the drain for Prometheus at http://HOST:PORT/metrics; PORT alone: on this machine only",
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="fetch and write in this process, one task at a time, without Java"
    )
    parser.add_argument(
        "--master",
        metavar="URL",
        help="where Spark runs; sc://… is a server of Spark Connect (default: what spark-submit sets, else this "
        "machine)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the summary as one JSON object, and progress as JSON lines in a terminal too",
    )


def _add(
    parser: argparse._ActionsContainer,
    flag: str,
    read_value: Callable[[str], Any],
    metavar: str,
    meaning: str,
    *,
    dest: str = "",
    required: bool = False,
) -> None:
    name = dest or flag.removeprefix("--").replace("-", "_")
    parser.add_argument(
        flag,
        dest=name,
        type=argument(read_value),
        metavar=metavar,
        help=meaning,
        required=required,
        default=SUPPRESS,
    )


def _switch(parser: argparse._ActionsContainer, flag: str, meaning: str, *, dest: str = "", means: bool = True) -> None:
    name = dest or flag.removeprefix("--").replace("-", "_")
    parser.add_argument(flag, dest=name, action="store_const", const=means, default=SUPPRESS, help=meaning)


def argument(read_value: Callable[[str], T]) -> Callable[[str], T]:
    """Return *read_value* as argparse takes it: a ValueError of its own loses its sentence there."""

    def read_argument(text: str) -> T:
        try:
            return read_value(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read_argument


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


pair_of = argument(pair)
