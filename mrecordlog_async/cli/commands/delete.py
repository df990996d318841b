"""Delete a queue with all its records.

A queue created later under the same name is a new one and begins at position 0.

  mrecordlog delete http://127.0.0.1:8080 orders
"""

from __future__ import annotations

import argparse
import json

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.output import Progress
from mrecordlog_async.cli.parser import CommandLine, Parser
from mrecordlog_async.cli.target import WRITE_RETRY_SECONDS, add_log, connect, is_service, run_async
from mrecordlog_async.maintenance.placed_log import open_placed_log


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("delete", "Delete a queue with all its records", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to delete")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Delete the queue."""
    return run_async(_delete(arguments))


async def _delete(arguments: argparse.Namespace) -> int:
    if is_service(arguments.log):
        async with connect(arguments, WRITE_RETRY_SECONDS) as client:
            await client.delete_queue(arguments.queue)
    else:
        with Progress("reading") as progress:
            log = await open_placed_log(arguments.log, on_progress=progress)
        async with log:
            await log.delete_queue(arguments.queue)
    print(json.dumps({"queue": arguments.queue, "deleted": True}) if arguments.json else f"{arguments.queue}: deleted")
    return FINE
