"""Appending (`tests.benchmarks.appends`), checked against the project's targets."""

from __future__ import annotations

from mrecordlog_async.bench.drive import duration
from tests.benchmarks import appends
from tests.benchmarks.appends import SIZE_CALLERS
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.targets import Check, at_least, at_most, judged

ONE_CALLER_OVER_RAW = 1.6
LARGE_OF_RAW = 0.45
LARGE_P99_SECONDS = 0.020


async def one_caller(bench: Bench) -> list[Row]:
    """A single `await append_record` next to a raw write and sync."""
    (row,) = await appends.one_caller(bench)
    assert row.latency is not None and row.raw_latency is not None and row.latency_ratio is not None
    slower = row.latency_ratio
    check = at_most(
        f"one caller, 100 B: p50 of `await append_record` ≤ {ONE_CALLER_OVER_RAW} × raw write + fdatasync",
        slower,
        ONE_CALLER_OVER_RAW,
        f"{slower:.2f} × ({duration(row.latency.p50)} over {duration(row.raw_latency.p50)})",
    )
    return [judged(row, check)]


async def many_callers(bench: Bench) -> list[Row]:
    """One caller to 10,000 under every policy; the targets of the policy `always` compare with other stores."""
    rows = await appends.many_callers(bench)
    always = {row.point.callers: row for row in rows if row.point is not None and row.point.policy == "always"}
    return [judged(row, *_checks_of_callers(row, always)) for row in rows]


async def sizes(bench: Bench) -> list[Row]:
    """Large payloads next to the raw disk."""
    *smaller, largest = await appends.sizes(bench)
    assert largest.ratio is not None and largest.latency is not None
    share, p99 = largest.ratio, largest.latency.p99
    what = f"1 MiB payloads, {SIZE_CALLERS} callers"
    checks = (
        at_least(f"{what}: ≥ {LARGE_OF_RAW:.0%} of raw", share, LARGE_OF_RAW, f"{share:.0%}"),
        at_most(f"{what}: p99 ≤ {duration(LARGE_P99_SECONDS)}", p99, LARGE_P99_SECONDS, duration(p99)),
    )
    return [*smaller, judged(largest, *checks)]


def _checks_of_callers(row: Row, always: dict[int, Row]) -> tuple[Check, ...]:
    if row is always.get(10_000) and 1_000 in always:
        share = row.value / always[1_000].value
        return (at_least("10,000 callers, 100 B: ≥ 80 % of the rate at 1,000", share, 0.8, f"{share:.0%}"),)
    return ()
