"""Watch the queues of a log: records in and out, sizes, retained segments.

On a terminal it redraws a table until you press Ctrl-C, with the busiest queue first (needs rich). If the output is not
a terminal, or with --json, it prints a sample every interval. For a directory it shows queues and positions, even while
another process writes to it; for a service it also shows memory, disk and commit times.

  mrecordlog top http://127.0.0.1:8080
  mrecordlog top ./wal --interval 5
  mrecordlog top ./wal --once --json | jq .queues
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.parser import TIME, CommandLine, Parser
from mrecordlog_async.cli.target import add_log, connect, is_service, run_async
from mrecordlog_async.cli.top_view import History, Sample, Service, plain, render
from mrecordlog_async.maintenance.stored_log import StoredLog

RETRY_SECONDS = 10.0
"""Long enough to outlast a restart of the service."""


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("top", "Watch queues: rates, sizes, retained segments", __doc__)
    add_log(parser)
    parser.add_argument("--interval", type=TIME, default=1.0, metavar="TIME", help="time between samples (default: 1s)")
    parser.add_argument("--once", action="store_true", help="print one sample, after one interval, and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object per sample")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Watch until Ctrl-C."""
    return run_async(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        take = await _source(arguments, stack)
        history = History()
        history.add(await take())
        live = _live(arguments, stack)
        while True:
            await asyncio.sleep(arguments.interval)
            history.add(await take())
            if live is not None:
                live.update(render(history), refresh=True)
            elif arguments.json:
                print(json.dumps(history.facts()), flush=True)
            else:
                sys.stdout.writelines(plain(history))
                sys.stdout.flush()
            if arguments.once:
                return FINE


def _live(arguments: argparse.Namespace, stack: AsyncExitStack) -> Any:
    """Return rich's full-screen display, None where lines are to be printed."""
    if arguments.json or arguments.once or not sys.stdout.isatty():
        return None
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        return None
    return stack.enter_context(Live(screen=True, auto_refresh=False))


async def _source(arguments: argparse.Namespace, stack: AsyncExitStack) -> Callable[[], Awaitable[Sample]]:
    """Return the function that takes a sample."""
    if not is_service(arguments.log):

        async def read() -> Sample:
            return await asyncio.to_thread(_read, arguments.log)

        return read
    client = await stack.enter_async_context(connect(arguments, RETRY_SECONDS))

    async def ask() -> Sample:
        stats = await client.stats()
        usage, commits = stats.usage, stats.last_minute.commit_seconds
        service = Service(
            state=stats.state,
            memory=(usage.memory_bytes, usage.memory_limit_bytes),
            disk=(usage.disk_bytes, usage.disk_limit_bytes),
            pending=(usage.pending_bytes, usage.pending_limit_bytes),
            segments=usage.segments,
            commit_p50=commits.p50,
            commit_p99=commits.p99,
        )
        return Sample(client.url, time.monotonic(), list((await client.summary()).values()), service)

    return ask


def _read(directory: str) -> Sample:
    with StoredLog.open(directory) as log:
        return Sample(directory, time.monotonic(), list(log.summary().values()), None)
