"""The workloads that everybody can run (`mrecordlog bench`), checked against the project's targets."""

from __future__ import annotations

from mrecordlog_async.bench import appends
from mrecordlog_async.bench.appends import BATCH_CALLERS, BATCH_RECORDS, SIZE_CALLERS
from mrecordlog_async.bench.latency import duration
from mrecordlog_async.bench.results import Row
from mrecordlog_async.bench.scale import Bench, Scale
from tests.benchmarks.targets import Check, at_least, at_most, judged


async def one_caller(bench: Bench[Scale]) -> list[Row]:
    """A single `await append_record` next to a raw write and sync."""
    (row,) = await appends.one_caller(bench)
    assert row.latency is not None and row.raw_latency is not None and row.latency_ratio is not None
    slower = row.latency_ratio
    check = at_most(
        "one caller, 100 B: p50 of `await append_record` ≤ 1.4 × raw write + fdatasync",
        slower,
        1.4,
        f"{slower:.2f} × ({duration(row.latency.p50)} over {duration(row.raw_latency.p50)})",
    )
    return [judged(row, check)]


async def many_callers(bench: Bench[Scale]) -> list[Row]:
    """Rates and CPU of a thousand callers and more, under the policy `always`."""
    rows = await appends.many_callers(bench)
    always = {row.point.callers: row for row in rows if row.point is not None and row.point.policy == "always"}
    return [judged(row, *_checks_of_callers(row, always)) for row in rows]


async def sizes(bench: Bench[Scale]) -> list[Row]:
    """Large payloads next to the raw disk."""
    target = f"1 MiB payloads, {SIZE_CALLERS} callers: ≥ 60 % of raw"
    *smaller, largest = await appends.sizes(bench)
    return [*smaller, judged(largest, _share_of_raw(target, largest, 0.6))]


async def batches(bench: Bench[Scale]) -> list[Row]:
    """Batches of 1 KiB records next to the raw disk."""
    target = f"`append_records` of {BATCH_RECORDS:,} × 1 KiB, {BATCH_CALLERS} callers: ≥ 70 % of raw MB/s"
    *smaller, largest = await appends.batches(bench)
    return [*smaller, judged(largest, _share_of_raw(target, largest, 0.7))]


def _checks_of_callers(row: Row, always: dict[int, Row]) -> tuple[Check, ...]:
    if row is always.get(1_000):
        rate, cpu = row.value, row.cpu_microseconds
        assert cpu is not None
        return (
            at_least("1,000 callers, 100 B: ≥ 400,000 records/s", rate, 400_000, f"{rate:,.0f} records/s"),
            at_most("1,000 callers, 100 B: ≤ 2.0 µs of process CPU per record", cpu, 2.0, f"{cpu:.2f} µs"),
        )
    if row is always.get(10_000) and 1_000 in always:
        share = row.value / always[1_000].value
        return (at_least("10,000 callers, 100 B: ≥ 80 % of the rate at 1,000", share, 0.8, f"{share:.0%}"),)
    return ()


def _share_of_raw(target: str, row: Row, wanted: float) -> Check:
    assert row.ratio is not None
    return at_least(target, row.ratio, wanted, f"{row.ratio:.0%}")
