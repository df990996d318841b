"""List the queues of a log: their positions, records and bytes.

The column first is the first retained position; the column next is the next position to be assigned.

  mrecordlog ls ./wal
  mrecordlog ls http://127.0.0.1:8080 --json | jq .records
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.output import columns, open_log, printable
from mrecordlog_async.cli.parser import CommandLine, Parser
from mrecordlog_async.cli.target import add_log, connect, is_service, run_async
from mrecordlog_async.model import QueueSummary

HEADER = ("queue", "first", "next", "records", "bytes")


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("ls", "List queues with their positions and sizes", __doc__)
    add_log(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """List the queues."""
    if is_service(arguments.log):
        return run_async(_list_service(arguments))
    with open_log(arguments.log) as log:
        show(list(log.summary().values()), arguments.json)
    return FINE


async def _list_service(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        show(list((await client.summary()).values()), arguments.json)
    return FINE


def show(summaries: list[QueueSummary], as_json: bool) -> None:
    """Print one line per queue."""
    if as_json:
        sys.stdout.writelines(json.dumps(asdict(summary)) + "\n" for summary in summaries)
    else:
        sys.stdout.writelines(columns([HEADER, *map(_row, summaries)]))


def _row(summary: QueueSummary) -> tuple[str, ...]:
    numbers = (summary.first_position, summary.next_position, summary.records, summary.bytes)
    return (printable(summary.queue), *map(str, numbers))
