"""Delete a queue with everything in it. A queue made later under its name is a new one and begins at position 0.

mrecordlog delete orders --url http://127.0.0.1:8080
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.target import add_target, open_target, run_async


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "delete",
        help="delete a queue and all it holds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("queue")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="tell the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Delete the queue."""
    return run_async(_delete(arguments))


async def _delete(arguments: argparse.Namespace) -> int:
    async with open_target(arguments) as target:
        await target.delete_queue(arguments.queue)
    print(json.dumps({"queue": arguments.queue, "deleted": True}) if arguments.json else f"{arguments.queue}: deleted")
    return FINE
