"""Delete a queue with all its records.

A queue created later under the same name is a new one and begins at position 0.

  mrecordlog delete http://127.0.0.1:8080 orders
"""

from __future__ import annotations

import argparse
import json

from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.services import RespondingServers, open_fleet
from mrecordlog_async.cli.shell.target import add_log, is_several, open_placed_target, run_async


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
    return run_async(_delete_everywhere(arguments) if is_several(arguments.log) else _delete(arguments))


async def _delete(arguments: argparse.Namespace) -> int:
    async with open_placed_target(arguments) as log:
        await log.delete_queue(arguments.queue, past_consumers=arguments.past_consumers)
    print(json.dumps({"queue": arguments.queue, "deleted": True}) if arguments.json else f"{arguments.queue}: deleted")
    return FINE


async def _delete_everywhere(arguments: argparse.Namespace) -> int:
    queue, forced = arguments.queue, arguments.past_consumers
    async with open_fleet(arguments) as fleet:
        servers = RespondingServers(fleet)
        async for one, _ in servers.each(lambda client: client.delete_queue(queue, past_consumers=forced)):
            fact = {"server": one.server, "queue": queue, "deleted": True}
            print(json.dumps(fact) if arguments.json else f"{one.server}: {queue}: deleted", flush=True)
        return servers.code()
