"""The command lines of the jobs, separate from the jobs: `mrecordlog --help` must not import what only a job needs."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError

from mrecordlog_async.quantities import parse_seconds, parse_size
from mrecordlog_async.spark.settings.options import RECORDS_PER_TRIGGER, TARGET_FILE_BYTES


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `drain` to argparse."""
    _add_places(parser)
    _add_times(parser)
    _add_layout(parser)
    _add_queues(parser)
    _add_batches(parser)
    _add_consumer(parser)
    _add_metrics(parser)
    _add_exceptions(parser)
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="file with the bearer token of the services; with NAME=, of the server of that name; may be repeated",
    )
    _add_job(parser)


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `load` to argparse."""
    parser.add_argument("url", metavar="URL", help="service to load into: http://host:port")
    parser.add_argument(
        "source",
        metavar="TABLE",
        help="Delta table on this machine, with the columns queue, position and payload",
    )
    parser.add_argument("--from-server", metavar="NAME", help="load only rows of this server")
    parser.add_argument(
        "--skip-truncated", action="store_true", help="skip rows below the first position of their queue in the log"
    )
    parser.add_argument("--token-file", metavar="FILE", help="file with the bearer token of the service")
    _add_job(parser)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        action="append",
        required=True,
        metavar="NAME=URL",
        help="service to drain, or dns+http://host:port for all services behind a name; may be repeated",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="PATH",
        help="the Delta table: a directory, or s3://…, gs://…, az://…",
    )
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="directory of the checkpoint of this output")


def _add_times(parser: argparse.ArgumentParser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--once", action="store_true", help="stop once everything that the logs held at the start is stored (default)"
    )
    when.add_argument(
        "--every", type=seconds_of, metavar="TIME", help="keep running, with at most one batch per TIME (10s, 1min)"
    )


def _add_layout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partition-by",
        default="",
        metavar="COLUMNS",
        help="columns by which the table is partitioned: server, queue, or date, the day on which records were stored: "
        "date,queue",
    )
    parser.add_argument(
        "--target-file-bytes",
        type=size_of,
        default=TARGET_FILE_BYTES,
        metavar="SIZE",
        help="size at which a file of the table is closed (default: 128m)",
    )
    parser.add_argument(
        "--schema",
        metavar="DDL",
        help="add columns parsed from JSON payloads: 'customer string, amount bigint'; rows that fail to parse have "
        "the reason in the column error",
    )
    parser.add_argument(
        "--no-payload",
        action="store_true",
        help="do not store payloads parsed by --schema; fields without a column are kept in _rest",
    )
    parser.add_argument(
        "--storage-option",
        type=pair_of,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the object store of a Delta table (AWS_ENDPOINT_URL=…); may be repeated; keys and secrets are "
        "better set as environment variables, which Spark's processes inherit",
    )


def _add_queues(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscribe", metavar="QUEUES", help="drain only these queues, separated by commas")
    parser.add_argument("--subscribe-pattern", metavar="REGEX", help="drain only queues whose whole name matches")


def _add_batches(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-records-per-trigger",
        type=count_of,
        default=RECORDS_PER_TRIGGER,
        metavar="COUNT",
        help=f"records per batch at most (default: {RECORDS_PER_TRIGGER})",
    )
    parser.add_argument(
        "--max-bytes-per-trigger", type=size_of, metavar="SIZE", help="bytes per batch at most (default: 256m)"
    )
    parser.add_argument(
        "--min-batch-records",
        type=count_of,
        metavar="COUNT",
        help="with --every: wait until a batch has this many records, for fewer and larger files (default: no wait)",
    )
    parser.add_argument(
        "--max-delay",
        type=seconds_of,
        metavar="TIME",
        help="with --min-batch-records: wait no longer than this for them (default: 1min)",
    )
    parser.add_argument(
        "--min-partitions",
        type=count_of,
        metavar="COUNT",
        help="tasks per batch at least (default: one per log for a small batch, one per core of Spark for a large one)",
    )


def _add_consumer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--consumer",
        metavar="NAME",
        help="share the queues: acknowledge what is stored as this consumer, instead of truncating; frees the records "
        "of queues with --keep until_acknowledged once all their consumers have acknowledged them",
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="take the consumer over from a query that is stopped for good, or move it back to where the checkpoint "
        "stands",
    )


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve metrics of the drain for Prometheus at http://HOST:PORT/metrics; PORT alone: on this machine only",
    )


def _add_exceptions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-truncate", action="store_true", help="do not truncate the log after storing")
    parser.add_argument(
        "--skip-down",
        action="store_true",
        help="start without servers that are down; with --once, also end without them",
    )
    parser.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="continue where records were truncated or deleted before they were stored",
    )
    parser.add_argument(
        "--accept-went-back",
        action="store_true",
        help="reread all of a log that is older than the checkpoint; records may then be in the output twice",
    )
    parser.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="LOG",
        help="remove a log that is lost from the checkpoint, by its id or at least 8 digits of it; may be repeated",
    )
    parser.add_argument(
        "--shared-paths",
        action="store_true",
        help="allow local paths on a cluster: every machine mounts the same file system there",
    )


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: what spark-submit sets, else this machine)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON object, and progress as JSON lines"
    )


def seconds_of(text: str) -> float:
    """Read a time such as 10s, 500ms or 2m, at least a millisecond. Raises ArgumentTypeError for anything else."""
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if not 0.001 <= seconds < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a time such as 10s, 500ms or 2m")
    return seconds


def pair_of(text: str) -> tuple[str, str]:
    """Read KEY=VALUE. Raises ArgumentTypeError for anything else."""
    key, found, value = text.partition("=")
    if not key or not found:
        raise ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value


def size_of(text: str) -> int:
    """Read a size in bytes such as 1000000, 64k or 256MiB, at least 1. Raises ArgumentTypeError for anything else."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if size < 1:
        raise ArgumentTypeError(f"{text!r} is not a size of at least 1 byte")
    return size


def count_of(text: str) -> int:
    """Read a number of at least 1. Raises ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
