"""Measure this log on your disk, next to the disk alone.

Each row compares the log with the raw disk, measured in the same rounds: one thread that calls pwrite and fdatasync
with the same bytes in the same batches. Run it on the file system that will hold the log, with nothing else running.
--quick measures for only a few seconds, which is enough for a first impression but too short to quote.

  mrecordlog bench /var/lib/app --svg callers.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mrecordlog_async.cli.exit_codes import FAILED, FINE, UsageError
from mrecordlog_async.cli.parser import COUNT, CommandLine, Parser
from mrecordlog_async.cli.target import add_signpost, directory_argument
from mrecordlog_async.event_loop import loop_name

if TYPE_CHECKING:
    from mrecordlog_async.bench.report import Report
    from mrecordlog_async.bench.suite import Workload


def add_parser(command_line: CommandLine) -> Parser:
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
    parser.add_argument(
        "--only", nargs="+", known=_known_workloads, metavar="NAME", help="run these workloads only (see --list)"
    )
    parser.add_argument("--quick", action="store_true", help="measure for a few seconds only, for a first look")
    parser.add_argument(
        "--gc-threshold",
        type=COUNT,
        metavar="COUNT",
        help="freeze the objects that exist at the start and look for reference cycles after every COUNT new ones, "
        "as servers tuned for latency do (default: leave Python's collector as it is)",
    )
    parser.add_argument("--list", action="store_true", help="print the workloads and stop")
    parser.add_argument(
        "--svg", metavar="FILE", help="draw callers against appends per second; needs the workload callers"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the report as Markdown")
    add_signpost(parser)
    return parser


def _known_workloads() -> list[str]:
    from mrecordlog_async.bench.suite import WORKLOADS

    return [workload.name for workload in WORKLOADS]


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the report."""
    if arguments.list:
        return _list_workloads()
    found = _measure(arguments, _workloads(arguments))
    if arguments.svg is not None:
        _draw(found, arguments.svg)
    _print(found, arguments)
    return FAILED if any(row.failed for row in found.rows) else FINE


def _list_workloads() -> int:
    from mrecordlog_async.bench.suite import WORKLOADS

    sys.stdout.writelines(f"{workload.name:<14}{workload.what}\n" for workload in WORKLOADS)
    return FINE


def _workloads(arguments: argparse.Namespace) -> Sequence[Workload]:
    """Return what to run. Raises UsageError where the options do not fit together, before anything is measured."""
    from mrecordlog_async.bench.suite import chosen

    try:
        workloads = chosen(arguments.only)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.svg is not None and not any(workload.name == "callers" for workload in workloads):
        raise UsageError("--svg draws the workload callers: add it to --only")
    if arguments.gc_threshold == 0:
        raise UsageError("--gc-threshold must be at least 1")
    return workloads


def _measure(arguments: argparse.Namespace, workloads: Sequence[Workload]) -> Report:
    from mrecordlog_async.bench import suite
    from mrecordlog_async.bench.probe import machine
    from mrecordlog_async.bench.report import Report
    from mrecordlog_async.bench.scale import FULL, QUICK

    scale = replace(QUICK if arguments.quick else FULL, gc_threshold=arguments.gc_threshold)
    rows = [row for rows in suite.run_all(workloads, scale, arguments.directory, _progress) for row in rows]
    loop = loop_name()
    return Report(machine(arguments.directory), _command(arguments), loop, tuple(rows))


def _print(found: Report, arguments: argparse.Namespace) -> None:
    from mrecordlog_async.bench import report

    if arguments.json:
        print(report.to_json(found))
        return
    lines = report.markdown(found) if arguments.markdown else report.text(found)
    sys.stdout.writelines(line + "\n" for line in lines)


def _draw(found: Report, path: str) -> None:
    from mrecordlog_async.bench.chart import svg

    points = [row.point for row in found.rows if row.point is not None]
    if not points:  # it failed, and the report says why
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(svg(points, found.machine))


def _command(arguments: argparse.Namespace) -> str:
    words = ["mrecordlog bench"]
    words += ["--quick"] if arguments.quick else []
    words += [] if arguments.gc_threshold is None else [f"--gc-threshold {arguments.gc_threshold}"]
    words += ["--only", *arguments.only] if arguments.only else []
    return " ".join(words)


def _progress(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
