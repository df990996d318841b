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
import math
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.output.standard_output import write_output
from mrecordlog_async.cli.shell.exit_codes import FAILED, FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, TIME, Parser
from mrecordlog_async.cli.shell.services import RespondingServers, open_fleet
from mrecordlog_async.cli.shell.target import add_log, is_several, open_target, run_async
from mrecordlog_async.errors import QueueNotFoundError, RecordLogError
from mrecordlog_async.model import Batch

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient
    from mrecordlog_async.client.fleet.reader import FleetBatch

BATCH_RECORDS = 1_000
LOOK_SECONDS = 1.0
"""Seconds between looks of --once whether the records that it waits for still exist: an age limit removes them."""

AWAY_SECONDS = 30.0
"""Seconds that --once waits for a server that stopped responding: a restart takes less."""

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
    return run_async(_consume_fleet(arguments) if is_several(arguments.log) else _consume(arguments))


async def _consume_fleet(arguments: argparse.Namespace) -> int:
    """Consume the queue of every server, as batches arrive."""
    queue = arguments.queue
    async with open_fleet(arguments) as fleet, fleet.consumer(queue, arguments.consumer) as consumer:
        servers = RespondingServers(fleet)
        ends = await _ends(servers, queue, arguments.consumer) if arguments.once else None

        def is_done(last: FleetBatch | None) -> bool:
            if ends is None:
                return False
            if last is not None and last.next_position >= ends.get(last.log_id, last.next_position + 1):
                del ends[last.log_id]
            return not ends

        away_since = dict[str, float]()

        async def is_removed() -> bool:
            assert ends is not None, "only --once asks"
            for log_id, end in list(ends.items()):
                try:
                    is_over = await _first_position(fleet.client(log_id), queue) >= end
                    away_since.pop(log_id, None)
                except RecordLogError as error:
                    now = time.monotonic()
                    is_over = now - away_since.setdefault(log_id, now) >= AWAY_SECONDS
                    if is_over:
                        servers.fail(servers.of(log_id), error)
                if is_over:
                    del ends[log_id]
            return not ends

        def is_extra(batch: FleetBatch) -> bool:
            return ends is not None and batch.log_id not in ends

        code = await _hand_out(consumer, arguments, is_done, is_removed, is_extra)
        return code if ends is None or code != FINE else servers.code()


async def _ends(servers: RespondingServers, queue: str, consumer: str) -> dict[str, int]:
    """Return the next position of the queue on each server that has something to hand out, by log."""

    async def end_of(client: RecordLogClient) -> int | None:
        summary, found = await client.queue_summary(queue), await client.consumers(queue)
        return (
            summary.next_position
            if max(found[consumer].position, summary.first_position) < summary.next_position
            else None
        )

    return {one.log_id: end async for one, end in servers.each(end_of) if end is not None}


async def _consume(arguments: argparse.Namespace) -> int:
    take = _take_of(arguments)
    async with open_target(arguments) as log, log.consumer(arguments.queue, arguments.consumer) as consumer:
        if arguments.once:
            batches = consumer.available(max_records=arguments.batch)
        else:
            batches = consumer.batches(max_records=arguments.batch, max_wait=arguments.wait)
        async for batch in batches:
            if (code := await take(batch)) != 0:
                return _not_acknowledged(code)
            await consumer.acknowledge(batch)
    return FINE


async def _hand_out(
    consumer: Any,
    arguments: argparse.Namespace,
    is_done: Callable[[FleetBatch | None], bool],
    is_removed: Callable[[], Awaitable[bool]],
    is_extra: Callable[[FleetBatch], bool],
) -> int:
    """Hand out and acknowledge batches of a consumer of a fleet.

    Args:
        consumer: The consumer.
        arguments: The command line: what takes the batches, and how large they are.
        is_done: Called with the last batch, None before the first one; returns whether that was enough.
        is_removed: Called with --once while no batch comes, or only extra ones; returns whether those that were to come
            were removed.
        is_extra: Called with each batch; returns whether --once does not wait for batches of its server.

    Returns:
        The exit code of this command.
    """
    take = _take_of(arguments)
    batch: FleetBatch | None = None
    looked = time.monotonic()
    while not is_done(batch):
        batch = await _next(consumer, arguments, is_removed)
        if batch is None:
            return FINE
        code = await take(batch)
        if code != 0:
            return _not_acknowledged(code)
        await consumer.acknowledge(batch)
        if is_extra(batch) and time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            if await is_removed():
                return FINE
    return FINE


async def _next(consumer: Any, arguments: argparse.Namespace, is_removed: Callable[[], Awaitable[bool]]) -> Any:
    """Return the next batch; None if none can come, or with --once if the records were removed meanwhile."""
    batch = asyncio.ensure_future(consumer.batch(max_records=arguments.batch, max_wait=arguments.wait))
    try:
        while arguments.once and not batch.done():
            # Not cancelled to look: a large batch may take longer, and would begin again each time.
            await asyncio.wait((batch,), timeout=LOOK_SECONDS)
            with suppress(RecordLogError):  # the batch gets the same error, if it does not pass
                if not batch.done() and await is_removed() and not batch.done():
                    return None
        return await batch
    finally:
        batch.cancel()


async def _first_position(client: RecordLogClient, queue: str) -> float:
    """Return the first retained position; none is as high as that of a queue that was deleted."""
    try:
        return await client.first_position(queue)
    except QueueNotFoundError:
        return math.inf


def _take_of(arguments: argparse.Namespace) -> Take:
    return _to_command(arguments.command) if arguments.command else _to_output


def _not_acknowledged(code: int) -> int:
    print(f"the command exited with {code}; its batch is not acknowledged", file=sys.stderr)
    return FAILED


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
