"""Print the records of a queue, each followed by a newline.

With --follow it continues with new records until the queue is deleted or you press Ctrl-C. You can follow a directory
while another process writes to it.

  mrecordlog cat ./wal orders --start 100 --stop 200
  mrecordlog cat http://127.0.0.1:8080 orders --follow
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time

from mrecordlog_async.cli.exit_codes import FINE, UsageError
from mrecordlog_async.cli.output import open_log
from mrecordlog_async.cli.parser import COUNT, CommandLine, Parser
from mrecordlog_async.cli.target import add_log, connect, is_service, run_async
from mrecordlog_async.maintenance.stored_log import StoredLog
from mrecordlog_async.model import Run

FOLLOW_SECONDS = 0.2
"""Pause between two looks into a directory that is followed. A look that finds nothing is two tiny reads."""


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("cat", "Print the records of a queue", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to read")
    parser.add_argument("--start", type=COUNT, metavar="POSITION", help="first position (default: the first retained)")
    parser.add_argument("--stop", type=COUNT, metavar="POSITION", help="position after the last one (default: the end)")
    parser.add_argument("--limit", type=COUNT, metavar="N", help="at most this many records (default: all)")
    parser.add_argument("--follow", action="store_true", help="continue with new records until the queue is deleted")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="print payloads back to back, without newlines")
    form.add_argument("--json", action="store_true", help='print {"position": 7, "payload": "<base64>"} per line')
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the records."""
    if arguments.follow and (arguments.stop is not None or arguments.limit is not None):
        raise UsageError("--follow cannot be combined with --stop or --limit")
    return run_async(_read_service(arguments)) if is_service(arguments.log) else _read_directory(arguments)


def _read_directory(arguments: argparse.Namespace) -> int:
    with open_log(arguments.log) as log:
        if arguments.follow:
            _follow(log, arguments)
            return FINE
        for run in log.runs(arguments.queue, arguments.start, arguments.stop, limit=arguments.limit):
            write(run, arguments)
    return FINE


def _follow(log: StoredLog, arguments: argparse.Namespace) -> None:
    """Print what is retained and what comes, until this queue is deleted; what is truncated first is skipped."""
    queue, position = arguments.queue, arguments.start
    queue_id = log.queue_id(queue)
    while log.queue_exists(queue) and log.queue_id(queue) == queue_id:
        for run in log.runs(queue, position):
            write(run, arguments)
            position = run.next_position
        sys.stdout.buffer.flush()
        while not log.refresh():
            time.sleep(FOLLOW_SECONDS)


async def _read_service(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        if arguments.follow:
            async for position, payload in client.tail(arguments.queue, arguments.start):
                write(Run.of(position, [payload]), arguments)
                sys.stdout.buffer.flush()
            return FINE
        async for run in client.runs(arguments.queue, arguments.start, arguments.stop, limit=arguments.limit):
            write(run, arguments)
    return FINE


def write(run: Run, arguments: argparse.Namespace) -> None:
    """Print one run of records."""
    if arguments.raw:
        sys.stdout.buffer.write(run.payload)
    elif arguments.json:
        lines = (
            json.dumps({"position": position, "payload": base64.b64encode(payload).decode()}).encode()
            for position, payload in run.records()
        )
        sys.stdout.buffer.write(b"\n".join([*lines, b""]))
    else:
        sys.stdout.buffer.write(b"\n".join([*run.payloads(), b""]))
