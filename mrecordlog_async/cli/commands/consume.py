"""Hand the records of a queue to a program or to standard output, and acknowledge what was taken.

The position is kept in the log under the consumer's name: the next call continues where this one stopped. With --exec a
shell runs the command for each batch, with the records on its standard input, each followed by a newline; a batch is
acknowledged if the command exits with 0. Without it, records are acknowledged once they are flushed to standard output.
A batch that was not acknowledged is handed out again.

  mrecordlog consume http://wal:8080 orders --consumer billing --exec ./bill
  mrecordlog consume ./wal orders --consumer archive --once > orders.txt
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from mrecordlog_async.batches import Given
from mrecordlog_async.cli.output.standard_output import write_output
from mrecordlog_async.cli.shell.exit_codes import FAILED, FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, TIME, Parser
from mrecordlog_async.cli.shell.target import add_log, open_target, run_async
from mrecordlog_async.model import Batch

BATCH_RECORDS = 1_000
Take = Callable[[Batch], Awaitable[int]]
"""Takes a batch, and returns 0 if it may be acknowledged."""


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("consume", "Hand records to a program, and acknowledge them", __doc__)
    add_log(parser)
    parser.add_argument("queue", metavar="QUEUE", help="queue to read")
    parser.add_argument("--consumer", required=True, metavar="CONSUMER", help="name under which the position is kept")
    parser.add_argument("--exec", dest="command", metavar="CMD", help="shell command that takes each batch")
    parser.add_argument(
        "--batch", type=COUNT, default=BATCH_RECORDS, metavar="N", help="records in a batch (default: 1000)"
    )
    parser.add_argument("--wait", type=TIME, default=0.2, metavar="TIME", help="time to fill a batch (default: 200ms)")
    parser.add_argument("--once", action="store_true", help="stop after the records that exist now")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Consume until the queue ends, with --once until its present end."""
    if arguments.batch < 1:
        raise UsageError("--batch must be at least 1")
    return run_async(_consume(arguments))


async def _consume(arguments: argparse.Namespace) -> int:
    async with open_target(arguments) as log, log.consumer(arguments.queue, arguments.consumer) as consumer:
        if arguments.once:
            batches = consumer.available(max_records=arguments.batch)
        else:
            batches = consumer.batches(max_records=arguments.batch, max_wait=arguments.wait)
        return await _hand_out(arguments, batches, consumer.acknowledge)


async def _hand_out(
    arguments: argparse.Namespace, batches: AsyncIterator[Given], acknowledge: Callable[[Given], Awaitable[object]]
) -> int:
    """Hand out and acknowledge *batches*; return the exit code of this command."""
    take = _to_command(arguments.command) if arguments.command else _to_output
    async for batch in batches:
        if (code := await take(batch)) != 0:
            print(f"the command exited with {code}; its batch is not acknowledged", file=sys.stderr)
            return FAILED
        await acknowledge(batch)
    return FINE


async def _to_output(batch: Batch) -> int:
    """Write a batch to standard output."""
    await write_output(_lines(batch))
    return 0


def _to_command(command: str) -> Take:
    async def take(batch: Batch) -> int:
        process = await asyncio.create_subprocess_shell(command, stdin=asyncio.subprocess.PIPE)
        await process.communicate(_lines(batch))
        return process.returncode or 0

    return take


def _lines(batch: Batch) -> bytes:
    return b"\n".join([*(payload for _, payload in batch), b""])
