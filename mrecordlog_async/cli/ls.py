"""`mrecordlog ls`: the queues, what they hold and where they stand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from mrecordlog_async.cli.exits import FINE
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.readonly import ReadOnlyLog

HEADER = ("queue", "first", "next", "records", "bytes")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("ls", help="list queues", description=__doc__)
    parser.add_argument("directory", help="the log's directory; it is only read, also beside a running service")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """List the queues."""
    with ReadOnlyLog.open(arguments.directory) as log:
        summaries = list(log.summary().values())
    if arguments.json:
        sys.stdout.writelines(json.dumps(asdict(summary)) + "\n" for summary in summaries)
    else:
        sys.stdout.writelines(table(summaries))
    return FINE


def table(summaries: Iterable[QueueSummary]) -> Iterable[str]:
    """Yield lines with aligned columns; names are quoted where they would not print."""
    rows = [HEADER, *map(_row, summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *cells]) + "\n"


def _row(summary: QueueSummary) -> tuple[str, ...]:
    name = summary.queue if summary.queue.isprintable() else repr(summary.queue)
    numbers = (summary.first_position, summary.next_position, summary.records, summary.bytes)
    return (name, *map(str, numbers))
