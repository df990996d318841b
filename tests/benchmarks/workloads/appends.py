"""Appending (`tests.benchmarks.appends`), checked against the project's targets."""

from __future__ import annotations

from mrecordlog_async.bench.drive import duration
from tests.benchmarks import appends
from tests.benchmarks.appends import SIZE_CALLERS
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.targets import Check, judged, rounds_at_least, rounds_at_most

ONE_CALLER_OVER_RAW = 1.33
LARGE_OF_FRESH = 0.75
NO_CRATE = "not measured: it needs a Rust toolchain"


async def one_caller(bench: Bench) -> list[Row]:
    """A single `await append_record` next to a raw write and sync."""
    (row,) = await appends.one_caller(bench)
    assert row.latency is not None and row.raw_latency is not None
    check = rounds_at_most(
        f"one caller, 100 B: p50 of `await append_record` ≤ {ONE_CALLER_OVER_RAW} × raw write + fdatasync",
        row.latency_ratios,
        ONE_CALLER_OVER_RAW,
        f"; {duration(row.latency.p50)} over {duration(row.raw_latency.p50)}",
    )
    return [judged(row, check), Row("one-caller", "the Rust crate, 1 caller, 100 B", skipped=NO_CRATE)]


async def many_callers(bench: Bench) -> list[Row]:
    """One caller to 10,000 under every policy; the targets of the policy `always` compare with other stores."""
    rows = await appends.many_callers(bench)
    always = {row.point.callers: row for row in rows if row.point is not None and row.point.policy == "always"}
    return [judged(row, *_checks_of_callers(row, always)) for row in rows]


async def sizes(bench: Bench) -> list[Row]:
    """Large payloads next to the raw disk."""
    *smaller, largest = await appends.sizes(bench)
    assert largest.latency is not None and largest.raw_latency is not None
    what = f"1 MiB payloads, {SIZE_CALLERS} callers"
    check = rounds_at_least(
        f"{what}: ≥ {LARGE_OF_FRESH} × the rate of raw on new blocks", largest.fresh_ratios, LARGE_OF_FRESH
    )
    return [*smaller, judged(largest, check)]


def _checks_of_callers(row: Row, always: dict[int, Row]) -> tuple[Check, ...]:
    if row is always.get(10_000) and 1_000 in always:
        shares = [rate / base for rate, base in zip(row.rates, always[1_000].rates, strict=True)]
        return (rounds_at_least("10,000 callers, 100 B: ≥ 0.8 × the rate at 1,000", shares, 0.8),)
    return ()
