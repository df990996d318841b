"""Delete a queue with all its records.

A queue created later under the same name is a new one and begins at position 0.

  mrecordlog delete http://127.0.0.1:8080 orders
"""

from __future__ import annotations

import argparse
from typing import Any

from mrecordlog_async.cli.shell.change import Done, change
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import add_log, run_async


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("delete", "Delete a queue with all its records", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to delete")
    parser.add_argument(
        "--past-consumers", action="store_true", help="also remove records that consumers have not acknowledged"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Delete the queue."""
    queue = arguments.queue

    async def delete(log: Any) -> Done:
        await log.delete_queue(queue, past_consumers=arguments.past_consumers)
        return {"queue": queue, "deleted": True}, f"{queue}: deleted"

    return run_async(change(arguments, delete))
