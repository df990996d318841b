"""List the queues of a log: their positions, records and bytes.

The column first is the first retained position, and the column next is the next position to be assigned. The column
keeps from is the oldest segment that the queue keeps on the disk: a log deletes only segments that are older than the
lowest number there, so truncate or delete the queue that has it to free space. The column age says how long ago the
oldest record was stored. For a directory, a last column shows options, seal and consumers, if any queue has them.

With --drained, list only the queues that hold records, and exit with 1 if there are any: such a log must not be removed
yet. Stop its producers first.

  mrecordlog ls ./wal
  mrecordlog ls http://127.0.0.1:8080 --json | jq .records
  until mrecordlog ls http://wal-2:8080 --drained; do sleep 5; done
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import chain, repeat

from mrecordlog_async.cli.output.settings_text import settings_text
from mrecordlog_async.cli.output.text import columns, open_log, printable
from mrecordlog_async.cli.shell.exit_codes import FAILED, FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import add_log, connect, is_service, run_async
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.quantities import age

HEADER = ("queue", "first", "next", "records", "bytes", "keeps from", "age")


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("ls", "List queues with their positions and sizes", __doc__)
    add_log(parser)
    parser.add_argument(
        "--drained", action="store_true", help="list only queues that hold records, and exit with 1 if there are any"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """List the queues."""
    if is_service(arguments.log):
        return run_async(_list_service(arguments))
    with open_log(arguments.log) as log:
        summaries = _asked_for(log.summary().values(), arguments)
        show(summaries, arguments.json, [QueueSettings.of(log.state_of(summary.queue)) for summary in summaries])
    return _code(summaries, arguments)


async def _list_service(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        summaries = _asked_for((await client.summary()).values(), arguments)
    show(summaries, arguments.json)
    return _code(summaries, arguments)


def _asked_for(summaries: Iterable[QueueSummary], arguments: argparse.Namespace) -> list[QueueSummary]:
    return [summary for summary in summaries if summary.records or not arguments.drained]


def _code(listed: Sequence[object], arguments: argparse.Namespace) -> int:
    return FAILED if arguments.drained and listed else FINE


def show(summaries: list[QueueSummary], as_json: bool, settings: Sequence[QueueSettings] = ()) -> None:
    """Print one line per queue, with its settings where they are given."""
    if as_json:
        each = chain(({"settings": asdict(found)} for found in settings), repeat({}))
        facts = ({**asdict(summary), **more} for summary, more in zip(summaries, each, strict=False))
        sys.stdout.writelines(json.dumps(fact, default=_plain) + "\n" for fact in facts)
        return
    texts = [settings_text(found) for found in settings]
    lines = columns([HEADER, *map(_row, summaries)])
    sys.stdout.writelines(map(_with_settings, lines, ("settings", *texts)) if any(texts) else lines)


def _plain(value: object) -> str:
    """Return a time as JSON has it: with its zone, to 0.1 s."""
    assert isinstance(value, datetime), "a summary holds numbers, texts and times"
    return value.isoformat(timespec="milliseconds")


def _with_settings(line: str, text: str) -> str:
    return f"{line.rstrip()}  {text}".rstrip() + "\n"


def _row(summary: QueueSummary) -> tuple[str, ...]:
    numbers = (summary.first_position, summary.next_position, summary.records, summary.bytes)
    keeps_from = "-" if summary.first_segment is None else str(summary.first_segment)
    return (printable(summary.queue), *map(str, numbers), keeps_from, age(summary.age_seconds))
