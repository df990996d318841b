"""Measure your disk, and how many appends per second this log stores on it.

The first figure is the disk alone: 4 KiB written and synced by one thread. The table shows the log with 1 to 1,000
coroutines that each append 100 bytes and wait until they are durable, measured in the same minute. Run it on the file
system that will hold the log, with nothing else running.
--quick measures for only a few seconds, which is enough for a first impression but too short to quote.

  mrecordlog bench /var/lib/app
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from mrecordlog_async.cli.shell.exit_codes import FINE, UsageError
from mrecordlog_async.cli.shell.parser import COUNT, Parser
from mrecordlog_async.cli.shell.target import add_signpost, directory_argument
from mrecordlog_async.support.event_loop import loop_factory, loop_name
from mrecordlog_async.support.gc_tuning import calm_collector

if TYPE_CHECKING:
    from mrecordlog_async.bench.callers import Measured, Speed

SECONDS, ROUNDS = 0.5, 10
QUICK_SECONDS, QUICK_ROUNDS = 0.1, 3


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("bench", "Measure the log on your disk", __doc__)
    parser.add_argument(
        "directory",
        nargs="?",
        default=".",
        metavar="DIR",
        type=directory_argument,
        help="directory to write in; cleaned up afterwards (default: here)",
    )
    parser.add_argument("--quick", action="store_true", help="measure for a few seconds only, for a first look")
    parser.add_argument(
        "--gc-threshold",
        type=COUNT,
        metavar="COUNT",
        help="freeze the objects that exist at the start and look for reference cycles after every COUNT new ones, "
        "as servers tuned for latency do (default: leave Python's collector as it is)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object; times in seconds")
    add_signpost(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    from mrecordlog_async.bench.disk import machine

    if arguments.gc_threshold == 0:
        raise UsageError("--gc-threshold must be at least 1")
    found, where = _measure(arguments), f"{machine(arguments.directory)}; {loop_name()}"
    if arguments.json:
        print(json.dumps({"machine": where, **asdict(found)}, ensure_ascii=False))
    else:
        sys.stdout.writelines(f"{line}\n" for line in (where, *_lines(found)))
    return FINE


def _measure(arguments: argparse.Namespace) -> Measured:
    from mrecordlog_async.bench.callers import measure

    seconds, rounds = (QUICK_SECONDS, QUICK_ROUNDS) if arguments.quick else (SECONDS, ROUNDS)
    os.stat(arguments.directory)  # if it is missing, the error names it, not what would be created in it
    place = tempfile.mkdtemp(prefix="mrecordlog-bench-", dir=arguments.directory)
    if arguments.gc_threshold is not None:
        calm_collector(arguments.gc_threshold)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(measure(place, seconds, rounds, _say))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _lines(found: Measured) -> Iterator[str]:
    from mrecordlog_async.bench.drive import duration

    yield (
        f"the disk alone, 4 KiB and a sync: p50 {duration(found.sync_p50_seconds)}, "
        f"p99 {duration(found.sync_p99_seconds)}"
    )
    yield ""
    yield f"{'callers':>7}  {'appends/s':>9}  {'p50':>8}  {'p99':>8}  {'p50 in syncs':>12}"
    yield from map(_line, found.speeds)


def _line(speed: Speed) -> str:
    from mrecordlog_async.bench.drive import duration

    return (
        f"{speed.callers:>7,}  {speed.appends_per_second:>9,.0f}  {duration(speed.p50_seconds):>8}  "
        f"{duration(speed.p99_seconds):>8}  {speed.syncs:>12.2f}"
    )


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
