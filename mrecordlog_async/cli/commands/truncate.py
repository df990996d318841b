"""`mrecordlog truncate QUEUE POSITION`: drop records up to and including a position."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE, UsageError
from mrecordlog_async.cli.target import add_target, connect, run_async
from mrecordlog_async.log import MultiRecordLog


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser("truncate", help="drop records", description=__doc__)
    parser.add_argument("queue")
    parser.add_argument("position", type=int, help="the last position to drop")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="tell the result as JSON")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Truncate the queue."""
    return run_async(_truncate(arguments))


async def _truncate(arguments: argparse.Namespace) -> int:
    queue, position = arguments.queue, arguments.position
    if arguments.dir is None:
        async with connect(arguments) as client:
            dropped = await client.truncate(queue, position)
    else:
        async with MultiRecordLog.open(arguments.dir, create=False) as log:
            following = log.next_position(queue)
            if position >= following:
                # The log would take it as "these positions are used up"; from a shell it is a typing error.
                raise UsageError(f"queue {queue!r}: position {position} was never given away, the next is {following}")
            dropped = await log.truncate(queue, position)
    if arguments.json:
        print(json.dumps({"queue": queue, "dropped": dropped}))
    else:
        print(f"{queue}: {dropped} record{'' if dropped == 1 else 's'} dropped")
    return FINE
