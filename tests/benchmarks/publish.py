"""Measure everything and write it into the documentation: all rows, the chart, the targets, and those that were missed.

docs/benchmarks/full_run.md and the chart are replaced. In docs/performance.md and docs/benchmarks/missed_targets.md
only what stands between `<!-- measured: begin -->` and `<!-- measured: end -->` is replaced. The rest of them is
written by hand: read it again after a run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mrecordlog_async.bench.disk import machine
from mrecordlog_async.support.event_loop import loop_name
from tests.benchmarks import chart, report, user_tables
from tests.benchmarks.report import Report, markdown_table
from tests.benchmarks.scale import FULL, QUICK
from tests.benchmarks.suite import WORKLOADS, chosen, run_all
from tests.benchmarks.targets import Check, checks_of

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
FULL_RUN, MISSED, PERFORMANCE = "benchmarks/full_run.md", "benchmarks/missed_targets.md", "performance.md"
CHART = "benchmarks/callers.svg"

GC_THRESHOLD = 20_000
"""What `serve` sets."""

SHORT_RUN = ("one-caller", "callers", "sizes", "batches", "few-callers", "peers", "peer-batches", "recovery", "memory")
"""The workloads of a short run: what the tables for users show, and what this log is compared with."""

FULL_RUN_HEAD = f"""# One full run

Every row stands next to the raw disk in the same round: one thread, write and sync of the same bytes on blocks that
exist. `--gc-threshold {GC_THRESHOLD}` has Python look for reference cycles less often, as `serve` does. Other stores
run in separate processes, in turn with this log. Targets that were missed are explained in
[Missed targets](missed_targets.md).
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--docs", default="docs", help="directory of the documentation (default: docs)")
    parser.add_argument("--dir", default=".", help="directory to write in; cleaned up afterwards (default: here)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these workloads only (see suite --list)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a few minutes: to see that it works, not to publish")
    length.add_argument("--short", action="store_true", help="at most 10 minutes: the tables for users, and the peers")


def run(arguments: argparse.Namespace) -> int:
    """Measure and write the pages. A workload that failed is named on the page; then the result is 1.

    Raises:
        ValueError: A page has no place for what was measured, or no workload has this name. Nothing was measured.
    """
    workloads = chosen(SHORT_RUN if arguments.short and not arguments.only else arguments.only, WORKLOADS)
    for name in (PERFORMANCE, MISSED):
        with_measured(_read(arguments.docs, name), ())
    scale = replace(QUICK if arguments.quick else FULL, gc_threshold=GC_THRESHOLD)
    rows = [row for rows in run_all(workloads, scale, arguments.dir, _say) for row in rows]
    words = "--quick " if arguments.quick else ""
    only = " --only " + " ".join(workload.name for workload in workloads) if len(workloads) < len(WORKLOADS) else ""
    command = f"python -m tests.benchmarks suite {words}--gc-threshold {GC_THRESHOLD}{only}"
    publish(Report(machine(arguments.dir), command, loop_name(), tuple(rows)), arguments.docs)
    return int(any(row.failed for row in rows))


def publish(found: Report, docs: str) -> None:
    """Write *found* into the pages of *docs*."""
    _write(docs, FULL_RUN, FULL_RUN_HEAD + "\n" + _joined(report.markdown(found)))
    for name, lines in ((PERFORMANCE, _performance(found)), (MISSED, _missed(found))):
        _write(docs, name, with_measured(_read(docs, name), lines))
    points = [row.point for row in found.rows if row.point is not None]
    if points:
        _write(docs, CHART, chart.svg(points, found.machine))


def with_measured(page: str, lines: Iterable[str]) -> str:
    """Return *page* with *lines* in the place of what was measured before; ValueError if it has no such place."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(END) < page.index(BEGIN):
        raise ValueError(f"the page must have one place for figures, between {BEGIN.strip()} and {END.strip()}")
    head, tail = page[: page.index(BEGIN)], page[page.index(END) :]
    return f"{head}{BEGIN}\n{_joined(lines)}\n{tail}"


def _performance(found: Report) -> Iterator[str]:
    for table in (user_tables.appends(found.rows), user_tables.costs(found.rows)):
        yield from table
        yield ""
    checks = checks_of(found.rows)
    met, missed = sum(check.met is True for check in checks), sum(check.met is False for check in checks)
    yield f"Measured by `{found.command}` on {found.machine}; {found.loop}."
    yield "[One full run](benchmarks/full_run.md) has all rows, next to the raw disk and to other stores, and the"
    yield f"{len(checks)} targets of developers. This run met {met}, [missed {missed}](benchmarks/missed_targets.md)"
    yield f"and did not decide {len(checks) - met - missed}."


def _missed(found: Report) -> Iterator[str]:
    checks = checks_of(found.rows)
    for met, otherwise in ((False, "That run missed no target."), (None, "It decided every target.")):
        found_so = [_without_verdict(check) for check in checks if check.met is met]
        if not found_so:
            yield otherwise
        elif met is False:
            yield from markdown_table(("target", "measured"), found_so, numbers=0)
        else:
            yield "Not decided, because the range of the rounds includes the target, or other programs ran:"
            yield ""
            yield from markdown_table(("target", "measured"), found_so, numbers=0)
        yield ""


def _without_verdict(check: Check) -> Sequence[str]:
    return (check.target, check.measured)


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _read(docs: str, name: str) -> str:
    with open(os.path.join(docs, name), encoding="utf-8") as file:
        return file.read()


def _write(docs: str, name: str, text: str) -> None:
    with open(os.path.join(docs, name), "w", encoding="utf-8") as file:
        file.write(text)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
