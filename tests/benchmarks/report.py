"""The report: histograms, the table of all rows, and the targets; as text, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from mrecordlog_async.bench.drive import duration
from tests.benchmarks.latency import Latencies, draw
from tests.benchmarks.results import Row
from tests.benchmarks.targets import Check, checks_of, spread

HEADER = ("workload", "what", "rate", "raw disk", "of raw", "p50", "p90", "p99", "p99.9", "µs CPU")
NUMBERS = len(HEADER) - 2
TARGETS = ("target", "measured", "met")


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run found. machine: what it ran on; command: what to type to repeat it."""

    machine: str
    command: str
    loop: str
    rows: tuple[Row, ...]

    @property
    def skipped(self) -> list[Row]:
        """What was not measured, and why."""
        return [row for row in self.rows if row.skipped]


def text(report: Report) -> Iterator[str]:
    """Yield the report for a terminal, line by line."""
    yield f"{report.machine}; {report.loop}"
    yield report.command
    for row in report.rows:
        if row.histogram and row.latency is not None:
            yield ""
            yield f"{row.workload}: {row.what}"
            yield from (f"  {line}" for line in draw(row.latency))
            if row.raw_latency is not None:
                yield f"  raw disk: {_quantiles(row.raw_latency)}"
            if row.latency_ratio is not None:
                yield f"  p50 is {row.latency_ratio:.2f} × the raw disk's (median of the rounds)"
    yield ""
    yield from aligned([HEADER, *map(_cells, _measured(report))], left=2)
    notes = [row for row in _measured(report) if row.note]
    if notes:
        yield ""
        yield from (f"{row.workload}, {row.what}: {row.note}" for row in notes)
    if report.skipped:
        yield ""
        yield from (f"skipped: {row.workload}, {row.what}: {row.skipped}" for row in report.skipped)
    if checks := checks_of(report.rows):
        yield ""
        yield from aligned([TARGETS, *map(verdict, checks)], left=3)


def markdown(report: Report) -> Iterator[str]:
    """Yield the report as Markdown, line by line."""
    yield f"`{report.command}` on {report.machine}; {report.loop}."
    yield ""
    cells = ((*_cells(row), row.note) for row in _measured(report))
    yield from markdown_table((*HEADER, "note"), cells, numbers=NUMBERS)
    if report.skipped:
        yield ""
        yield from (f"* skipped: {row.workload}, {row.what}: {row.skipped}" for row in report.skipped)
    if checks := checks_of(report.rows):
        yield ""
        yield from markdown_table(TARGETS, map(verdict, checks), numbers=0)


def to_json(report: Report) -> str:
    """Return the report as one JSON object; durations are seconds."""
    facts = {"machine": report.machine, "command": report.command, "loop": report.loop}
    return json.dumps({**facts, "rows": [asdict(row) for row in report.rows]}, ensure_ascii=False)


def verdict(check: Check) -> tuple[str, str, str]:
    """Return the cells of a target, by `TARGETS`."""
    return (check.target, check.measured, "not decided" if check.met is None else "yes" if check.met else "NO")


def amount(value: float, unit: str) -> str:
    """Return a figure with its unit: 412,000 records/s, 1,240 MB/s, 5.3 B over payload."""
    if value >= 10_000:
        digits = len(f"{value:.0f}") - 3
        return f"{round(value, -digits):,.0f} {unit}"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def _measured(report: Report) -> list[Row]:
    return [row for row in report.rows if not row.skipped]


def _cells(row: Row) -> tuple[str, ...]:
    latency = row.latency
    times = (
        ("",) * 4 if latency is None else tuple(map(duration, (latency.p50, latency.p90, latency.p99, latency.p999)))
    )
    return (
        row.workload,
        row.what,
        amount(row.value, row.unit),
        "" if row.raw is None else amount(row.raw, row.unit),
        _share(row),
        *times,
        "" if row.cpu_microseconds is None else f"{row.cpu_microseconds:.2f}",
    )


def _share(row: Row) -> str:
    """Return how much of the raw disk's rate a row reached, with the range of its rounds."""
    if row.ratio is None:
        return ""
    return spread(row.ratios, lambda ratio: f"{ratio:.0%}") if len(row.ratios) > 1 else f"{row.ratio:.0%}"


def _quantiles(latency: Latencies) -> str:
    values = (latency.p50, latency.p90, latency.p99, latency.p999)
    names = ("p50", "p90", "p99", "p99.9")
    return ", ".join(f"{name} {duration(value)}" for name, value in zip(names, values, strict=True))


def aligned(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Yield *rows* with aligned columns: the first *left* columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> Iterator[str]:
    """Yield a Markdown table; columns 2 to 2 + *numbers* are aligned to the right."""
    yield _markdown_row(header)
    yield _markdown_row(["---:" if 2 <= index < 2 + numbers else "---" for index in range(len(header))])
    yield from map(_markdown_row, rows)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
