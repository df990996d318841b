"""What a user wants to know first: how fast appends are, what a record costs in memory, how long opening takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mrecordlog_async.bench.drive import duration
from tests.benchmarks.report import markdown_table
from tests.benchmarks.results import Row

APPENDS = ("callers, each with one record of 100 B", "appends per second", "p50", "p99")
COSTS = ("what", "measured")


def appends(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the table of durable appends, by the number of callers."""
    cells = [
        (f"{row.point.callers:,}", _rounded(row.point.rate), duration(row.latency.p50), duration(row.latency.p99))
        for row in rows
        if row.point is not None and row.point.policy == "always" and row.latency is not None
    ]
    yield from markdown_table(APPENDS, cells or [("not measured", "", "", "")], numbers=0)


def costs(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the table of what is not a rate of appends."""
    measured = [row for row in rows if not row.skipped]
    cells = [
        *(
            (f"memory per record of {row.what}, over its bytes", f"{row.value:.1f} B")
            for row in _of(measured, "memory")
        ),
        *(
            (f"opening 1 GB of records, {row.what}", f"{1_000 / row.value:.2f} s")
            for row in _of(measured, "recovery")
            if row.unit == "MB/s" and row.value
        ),
        *((f"large records: {row.what}", f"{row.value:,.0f} MB/s") for row in _of(measured, "sizes")[-1:]),
    ]
    yield from markdown_table(COSTS, cells or [("not measured", "")], numbers=0)


def _of(rows: list[Row], workload: str) -> list[Row]:
    return [row for row in rows if row.workload == workload]


def _rounded(rate: float) -> str:
    return f"{float(f'{rate:.3g}'):,.0f}"
