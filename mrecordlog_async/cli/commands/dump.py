"""Print queues and records as lines of JSON, for load, jq or your own eyes.

Each queue is one line, followed by one line for each of its records:

  {"queue": "orders", "first_position": 0, "next_position": 2}
  {"queue": "orders", "position": 0, "payload": "aGVsbG8="}
  {"queue": "orders", "position": 1, "text": "héllo"}

A payload is base64. With --text it is text if it is valid UTF-8. Both load back to the same bytes. The dump of a
directory shows the log as it was when the dump began, even while a service uses it; records that the service truncates
meanwhile may be missing. Through a service, each queue is dumped as it is when the dump reaches it.

  mrecordlog dump ./wal > wal.ndjson
  mrecordlog dump ./wal --queue orders --text | jq -r .text
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.output import open_log
from mrecordlog_async.cli.parser import CommandLine, Parser
from mrecordlog_async.cli.target import add_log, connect, is_service, run_async
from mrecordlog_async.model import Record


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("dump", "Print queues and records as lines of JSON", __doc__)
    add_log(parser)
    parser.add_argument("--queue", action="append", metavar="QUEUE", help="dump only this queue; may be repeated")
    parser.add_argument("--text", action="store_true", help='print payloads that are UTF-8 as "text", not base64')
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Dump."""
    if is_service(arguments.log):
        return run_async(_dump_service(arguments))
    with open_log(arguments.log) as log:
        for name, first_position, next_position, runs in log.contents(arguments.queue):
            sys.stdout.write(queue_line(name, first_position, next_position))
            for each in runs:
                sys.stdout.writelines(record_lines(name, each.records(), text=arguments.text))
    return FINE


async def _dump_service(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        for queue in arguments.queue or await client.list_queues():
            summary = await client.queue_summary(queue)
            sys.stdout.write(queue_line(queue, summary.first_position, summary.next_position))
            async for run in client.runs(queue, summary.first_position, summary.next_position):
                sys.stdout.writelines(record_lines(queue, run.records(), text=arguments.text))
    return FINE


def queue_line(queue: str, first_position: int, next_position: int) -> str:
    """Return the line of a queue: its name and positions."""
    positions = {"first_position": first_position, "next_position": next_position}
    return json.dumps({"queue": queue, **positions}, ensure_ascii=False) + "\n"


def record_lines(queue: str, records: Iterator[Record], *, text: bool) -> Iterator[str]:
    """Yield a line for each record."""
    head = json.dumps({"queue": queue}, ensure_ascii=False)[:-1]
    for position, payload in records:
        yield f'{head}, "position": {position}, {_payload(payload, text)}}}\n'


def _payload(payload: bytes, text: bool) -> str:
    if text:
        try:
            return f'"text": {json.dumps(payload.decode(), ensure_ascii=False)}'
        except UnicodeDecodeError:
            pass
    return f'"payload": "{base64.b64encode(payload).decode()}"'
