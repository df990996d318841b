"""`mrecordlog ls`: the queues, what they hold and where they stand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.target import add_target, connect, run_async
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.readonly import ReadOnlyLog

HEADER = ("queue", "first", "next", "records", "bytes")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("ls", help="list queues", description=__doc__)
    parser.add_argument("directory", nargs="?", help="the same as --dir")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """List the queues."""
    arguments.dir = arguments.dir or arguments.directory
    return show(read_directory(arguments.dir), arguments.json) if arguments.dir else run_async(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        return show(list((await client.summary()).values()), arguments.json)


def read_directory(directory: str) -> list[QueueSummary]:
    """Return what the files of a log hold."""
    with ReadOnlyLog.open(directory) as log:
        return list(log.summary().values())


def show(summaries: list[QueueSummary], as_json: bool) -> int:
    """Write them to standard output."""
    if as_json:
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
