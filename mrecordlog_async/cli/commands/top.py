"""Watch the queues of a log: what comes in, what goes out, what it holds, which segments it keeps.

On a terminal it is a table that redraws itself (with rich installed; Ctrl-C ends it), the busiest queue first. Anywhere
else, and with --json, it prints a sample every interval. A service tells everything; of a directory (--dir) one sees
queues and positions, read anew each time without disturbing who writes there.

  mrecordlog top
  mrecordlog top ./wal --interval 5
  mrecordlog top --once --json | jq .queues
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
from mrecordlog_async.cli.target import add_target, connect, run_async
from mrecordlog_async.cli.top_view import History, Sample, Service, plain, render
from mrecordlog_async.readonly import ReadOnlyLog

RETRY_SECONDS = 10.0
"""Long enough to outlast a restart of the service."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "top",
        help="watch the queues of a log",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", nargs="?", help="the same as --dir")
    add_target(parser)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between samples (default: %(default)g)")
    parser.add_argument("--once", action="store_true", help="one sample (after one interval, for the rates) and end")
    parser.add_argument("--json", action="store_true", help="one JSON object a sample")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Watch until Ctrl-C."""
    arguments.dir = arguments.dir or arguments.directory
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
    """Return rich's full-screen display, None where lines are wanted."""
    if arguments.json or arguments.once or not sys.stdout.isatty():
        return None
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        return None
    return stack.enter_context(Live(screen=True, auto_refresh=False))


async def _source(arguments: argparse.Namespace, stack: AsyncExitStack) -> Callable[[], Awaitable[Sample]]:
    """Return what takes a sample."""
    if arguments.dir is not None:

        async def read() -> Sample:
            return await asyncio.to_thread(_read, arguments.dir)

        return read
    client = await stack.enter_async_context(connect(arguments, RETRY_SECONDS))

    async def ask() -> Sample:
        stats = await client.stats()
        usage, commits = stats.usage, stats.commit_seconds
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
    with ReadOnlyLog.open(directory) as log:
        return Sample(directory, time.monotonic(), list(log.summary().values()), None)
