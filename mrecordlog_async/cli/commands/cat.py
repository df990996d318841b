"""Print the records of a queue, each followed by a newline.

With --follow it continues with new records until the queue is deleted, or sealed and read, or you press Ctrl-C. You can
follow a directory while another process writes to it.

  mrecordlog cat ./wal orders --start 100 --stop 200
  mrecordlog cat ./wal orders --since 10min --json
  mrecordlog cat http://127.0.0.1:8080 orders --follow
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime

from mrecordlog_async.cli.output.text import open_log
from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, MOMENT, Parser
from mrecordlog_async.cli.shell.target import add_log, connect, is_service, run_async
from mrecordlog_async.memory.reads import times_between
from mrecordlog_async.model import Run, Times, text_of_tick, tick_of_time
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.recovery.segment_files import LogReplacedError

FOLLOW_SECONDS = 0.2
"""Pause between two looks into a directory that is followed. A look that finds nothing is two tiny reads."""


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("cat", "Print the records of a queue", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to read")
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--start", type=COUNT, metavar="POSITION", help="first position (default: the first retained)")
    first.add_argument(
        "--since",
        type=MOMENT,
        metavar="TIME",
        help="begin with records stored at a time, 2026-11-22T09:30, or 10min ago",
    )
    parser.add_argument("--stop", type=COUNT, metavar="POSITION", help="position after the last one (default: the end)")
    parser.add_argument("--limit", type=COUNT, metavar="N", help="at most this many records (default: all)")
    parser.add_argument("--follow", action="store_true", help="continue with new records until the queue ends")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="print payloads back to back, without newlines")
    form.add_argument(
        "--json", action="store_true", help='print {"position": 7, "time": …, "payload": "<base64>"} per line'
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the records."""
    if arguments.since is not None:
        _check_time(arguments.since)
    if arguments.follow and (arguments.stop is not None or arguments.limit is not None):
        raise UsageError("--follow cannot be combined with --stop or --limit")
    return run_async(_read_service(arguments)) if is_service(arguments.log) else _read_directory(arguments)


def _check_time(since: datetime) -> None:
    try:
        tick_of_time(since)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None


def _read_directory(arguments: argparse.Namespace) -> int:
    queue = arguments.queue
    with open_log(arguments.log) as log:
        start = arguments.start if arguments.since is None else log.position_at(queue, arguments.since)
        if arguments.follow:
            _follow(log, arguments, start)
            return FINE
        times = times_between(log.state_of(queue), start, arguments.stop) if arguments.json else Times.none()
        for run in log.read_runs(queue, start, arguments.stop, limit=arguments.limit):
            write(run, times, arguments)
    return FINE


def _follow(log: ReadOnlyLog, arguments: argparse.Namespace, position: int | None) -> None:
    """Print what is retained and what comes, until this queue ends; what is truncated first is skipped."""
    queue = arguments.queue
    queue_id = log.state_of(queue).id
    while log.queue_exists(queue) and log.state_of(queue).id == queue_id:
        times = times_between(log.state_of(queue), position, None) if arguments.json else Times.none()
        for run in log.read_runs(queue, position):
            write(run, times, arguments)
            position = run.next_position
        sys.stdout.buffer.flush()
        if log.state_of(queue).is_sealed():
            return
        while not log.refresh():
            time.sleep(FOLLOW_SECONDS)
        if log.went_back:
            raise LogReplacedError(arguments.log)


async def _read_service(arguments: argparse.Namespace) -> int:
    start = arguments.start if arguments.since is None else arguments.since
    bounds = {"limit": arguments.limit, "follow": arguments.follow}
    async with connect(arguments) as client:
        async for runs, times in client.timed_runs(arguments.queue, start, arguments.stop, **bounds):
            for run in runs:
                write(run, times, arguments)
            if arguments.follow:
                sys.stdout.buffer.flush()
    return FINE


def write(run: Run, times: Times, arguments: argparse.Namespace) -> None:
    """Print one run of records."""
    if arguments.raw:
        sys.stdout.buffer.write(run.payload)
    elif arguments.json:
        sys.stdout.buffer.write(b"".join(_lines(run, times)))
    else:
        sys.stdout.buffer.write(b"\n".join([*run.payloads(), b""]))


def _lines(run: Run, times: Times) -> Iterator[bytes]:
    for start, stop, tick in times.spans(run.first_position, run.next_position):
        stored = text_of_tick(tick)
        for position, payload in run.cut(start, stop).records():
            line = {"position": position, "time": stored, "payload": base64.b64encode(payload).decode()}
            yield json.dumps(line).encode() + b"\n"
