"""Remove the records of a queue up to and including a position.

Their disk space is freed when no queue has a record left in the same segment file or an older one.

  mrecordlog truncate ./wal orders 31
"""

from __future__ import annotations

import argparse
import json

from mrecordlog_async.cli.output.text import ProgressBar, plural
from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, Parser
from mrecordlog_async.cli.shell.target import add_log, connect, is_service, run_async
from mrecordlog_async.maintenance.changing import open_to_change


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("truncate", "Remove the oldest records of a queue", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to truncate")
    parser.add_argument("position", type=COUNT, metavar="POSITION", help="last position to remove")
    parser.add_argument(
        "--past-consumers", action="store_true", help="also remove records that consumers have not acknowledged"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Truncate the queue."""
    return run_async(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    queue, position, past_consumers = arguments.queue, arguments.position, arguments.past_consumers
    if is_service(arguments.log):
        async with connect(arguments) as client:
            dropped = await client.truncate(queue, position, past_consumers=past_consumers)
    else:
        dropped = await _truncate_directory(arguments.log, queue, position, past_consumers)
    if arguments.json:
        print(json.dumps({"queue": queue, "dropped": dropped}))
    else:
        print(f"{queue}: {plural(dropped, 'record')} removed")
    return FINE


async def _truncate_directory(directory: str, queue: str, position: int, past_consumers: bool) -> int:
    with ProgressBar("reading") as progress:
        opened = await open_to_change(directory, on_progress=progress)
    async with opened.log as log:
        next_position = log.next_position(queue)
        if position >= next_position:
            # The log would skip the positions in between; from a shell it is a typing error.
            raise UsageError(
                f"queue {queue!r}: position {position} has not been assigned yet; the next position is {next_position}"
            )
        return await opened.truncate(queue, position, past_consumers=past_consumers)
