"""`mrecordlog cat QUEUE`: write records to standard output, each with a newline behind it.

With --follow it goes on with what comes, until the queue is deleted: from a service, which tells it, or from a
directory beside the process that writes it, looking FOLLOW_SECONDS after the last look.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE, UsageError
from mrecordlog_async.cli.target import add_target, connect, run_async
from mrecordlog_async.model import Run
from mrecordlog_async.readonly import ReadOnlyLog

FOLLOW_SECONDS = 0.2
"""How long nobody looks into a directory that is followed. An idle look is two failed or tiny reads."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("cat", help="write out records", description=__doc__)
    parser.add_argument("queue")
    add_target(parser)
    parser.add_argument("--start", type=int, help="first position (default: the first retained)")
    parser.add_argument("--stop", type=int, help="position behind the last one")
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until the queue is deleted")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="no newlines: the payloads back to back")
    form.add_argument("--json", action="store_true", help='a line a record: {"position": 7, "payload": "<base64>"}')
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the records out."""
    if arguments.follow and arguments.stop is not None:
        raise UsageError("--follow has no end: leave --stop away")
    if not arguments.dir:
        return run_async(_run(arguments))
    with ReadOnlyLog.open(arguments.dir) as log:
        if arguments.follow:
            _follow(log, arguments)
            return FINE
        for run in log.runs(arguments.queue, arguments.start, arguments.stop):
            write(run, arguments)
    return FINE


def _follow(log: ReadOnlyLog, arguments: argparse.Namespace) -> None:
    """Write out what is there and what comes, until this queue is deleted; what is truncated first is passed over."""
    queue, position = arguments.queue, arguments.start
    queue_id = log.queue_summary(queue).id
    while log.queue_exists(queue) and log.queue_summary(queue).id == queue_id:
        for run in log.runs(queue, position):
            write(run, arguments)
            position = run.next_position
        sys.stdout.buffer.flush()
        while not log.refresh():
            time.sleep(FOLLOW_SECONDS)


async def _run(arguments: argparse.Namespace) -> int:
    async with connect(arguments) as client:
        if arguments.follow:
            async for position, payload in client.tail(arguments.queue, arguments.start):
                write(Run.of(position, [payload]), arguments)
                sys.stdout.buffer.flush()
            return FINE
        async for run in client.runs(arguments.queue, arguments.start, arguments.stop):
            write(run, arguments)
    return FINE


def write(run: Run, arguments: argparse.Namespace) -> None:
    """Write one run."""
    if arguments.raw:
        sys.stdout.buffer.write(run.payload)
    elif arguments.json:
        lines = (
            json.dumps({"position": position, "payload": base64.b64encode(payload).decode()}).encode()
            for position, payload in run.each()
        )
        sys.stdout.buffer.write(b"\n".join([*lines, b""]))
    else:
        sys.stdout.buffer.write(b"\n".join([*run.payloads(), b""]))
