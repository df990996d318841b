"""The report of `mrecordlog bench` with the table of targets: as text or Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.bench import report
from mrecordlog_async.bench.report import Report, aligned, markdown_table
from tests.benchmarks.targets import Check, checks_of

HEADER = ("target", "measured", "met")


def text(found: Report) -> Iterator[str]:
    """Yield the report for a terminal, line by line: all rows, then the targets."""
    yield from report.text(found)
    if checks := checks_of(found.rows):
        yield ""
        yield from aligned([HEADER, *map(verdict, checks)], left=3)


def markdown(found: Report) -> Iterator[str]:
    """Yield the report as Markdown, line by line: all rows, then the targets."""
    yield from report.markdown(found)
    if checks := checks_of(found.rows):
        yield ""
        yield from markdown_table(HEADER, map(verdict, checks), numbers=0)


def verdict(check: Check) -> tuple[str, str, str]:
    """Return the cells of a target, by `HEADER`."""
    return (check.target, check.measured, "yes" if check.met else "NO")
