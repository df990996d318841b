"""Append standard input to a queue, as one record or one record per line.

With --lines, lines are sent as they arrive, so the command can read a pipe that never ends. At the end it prints the
number of lines stored. In a directory all of these are durable, in a service as its `serve --persist` says. A service
stores each line exactly once, even if it restarts meanwhile.

  echo '{"order": 7}' | mrecordlog append ./wal orders --create
  tail -f access.log | mrecordlog append http://127.0.0.1:8080 access --lines
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mrecordlog_async.cli.output.standard_input import read_input, read_lines
from mrecordlog_async.cli.output.text import plural
from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, Parser
from mrecordlog_async.cli.shell.target import (
    WRITE_RETRY_SECONDS,
    add_log,
    connect,
    is_service,
    open_target,
    run_async,
)
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.names import check_name
from mrecordlog_async.storage.directory import LogDirectory


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("append", "Append standard input to a queue", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to append to")
    parser.add_argument(
        "--lines", action="store_true", help="store each line as a record (default: all input is one record)"
    )
    parser.add_argument(
        "--position",
        type=COUNT,
        metavar="POSITION",
        help="position of the record; resending it at the same position stores it once (default: the next position)",
    )
    parser.add_argument("--create", action="store_true", help="create the queue if it does not exist")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.takes_no_more = "the record is read from standard input: `echo RECORD | mrecordlog append LOG QUEUE`"
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Append standard input."""
    check_name(arguments.queue)  # before the input, which somebody may be typing, is read
    if arguments.lines and arguments.position is not None:
        raise UsageError("--position is for one record and cannot be combined with --lines")
    if not is_service(arguments.log) and not arguments.create:
        LogDirectory.at(arguments.log).list_log()  # the log is opened, and so held, only when the input was read
    return run_async(_append_lines(arguments) if arguments.lines else _append_one(arguments))


async def _append_one(arguments: argparse.Namespace) -> int:
    if is_service(arguments.log):
        await _refuse_missing(arguments)
    payload = b"".join([piece async for piece in read_input()])
    async with open_target(arguments, create=arguments.create) as target:
        if arguments.create:
            await target.create_queue(arguments.queue, exist_ok=True)
        position = await target.append_record(arguments.queue, arguments.position, payload)
    duplicate = position is None
    _report(arguments, 1, arguments.position if duplicate else position, duplicate)
    return FINE


async def _refuse_missing(arguments: argparse.Namespace) -> None:
    """Raise the errors of a service that does not respond, or has no such queue, before the input is read."""
    async with connect(arguments, WRITE_RETRY_SECONDS) as client:
        if not await client.queue_exists(arguments.queue) and not arguments.create:
            raise QueueNotFoundError(arguments.queue)


async def _append_lines(arguments: argparse.Namespace) -> int:
    records, last = 0, None
    try:
        async with _appender(arguments) as append:
            async for lines in read_lines():
                last = await append(lines)
                records += len(lines)
    except BaseException:
        if records:
            print(f"mrecordlog: {plural(records, 'line')} stored, up to position {last}", file=sys.stderr)
        raise
    _report(arguments, records, last, False)
    return FINE


@asynccontextmanager
async def _appender(arguments: argparse.Namespace) -> AsyncIterator[Any]:
    """Yield a function that stores lines: a log's own, or a producer's, which survives a restart of the service."""
    if is_service(arguments.log):
        async with (
            connect(arguments, WRITE_RETRY_SECONDS) as client,
            client.producer(arguments.queue, create=arguments.create) as producer,
        ):
            yield producer.append_records
        return
    async with open_target(arguments, create=arguments.create) as log:
        if arguments.create:
            await log.create_queue(arguments.queue, exist_ok=True)

        async def append(lines: list[bytes]) -> int | None:
            position: int | None = await log.append_records(arguments.queue, None, lines)
            return position

        yield append


def _report(arguments: argparse.Namespace, records: int, position: int | None, duplicate: bool) -> None:
    if arguments.json:
        print(json.dumps({"queue": arguments.queue, "records": records, "position": position, "duplicate": duplicate}))
    elif duplicate:
        print(f"{arguments.queue}: position {position} already holds this record")
    else:
        end = "" if position is None else f", up to position {position}"
        print(f"{arguments.queue}: {plural(records, 'record')} stored{end}")
