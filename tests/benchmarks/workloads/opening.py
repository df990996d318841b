"""Opening a log after a crash, with a cold and with a warm page cache; and creating 10,000 queues."""

from __future__ import annotations

from statistics import median

from mrecordlog_async.bench.drive import duration
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.targets import at_least, at_most, judged, rounds_at_most
from tests.benchmarks.workloads.in_turn import measured, row_of

OPEN_TARGETS = (("open-warm", 1_000_000, 1.2), ("open-cold", 1_000_000, 1.2), ("open-queues", 1_500_000, None))
"""Row, records, and how long opening them may take next to a bare read and checksum of the same bytes."""
SINGLES_SECONDS = 0.5
"""The time for the records of many queues."""
QUEUES_RATE = 200_000


async def run(bench: Bench) -> list[Row]:
    """Open logs that were not closed."""
    rows: list[Row] = []
    for name, records, most in OPEN_TARGETS:
        (ours,) = await measured(bench, name)
        found = ours.rounds[0].records
        taken = median(one.seconds for one in ours.rounds)
        raw = median(one.raw_seconds for one in ours.rounds)
        note = f"{found:,} records in {duration(taken)}; raw: the files read with pread and checked, {duration(raw)}"
        row = row_of("open", ours, ours, note)
        if most is None:
            target = f"{row.what}: ≤ {duration(SINGLES_SECONDS)}"
            check = at_most(target, taken, SINGLES_SECONDS, duration(taken), of_times=True)
        else:
            ratios = [one.seconds / one.raw_seconds for one in ours.rounds]
            check = rounds_at_most(
                f"{row.what}: ≤ {most} × a bare read and CRC-32C", ratios, most, f"; {duration(taken)}"
            )
        rows.append(judged(row, check) if found == records else row)  # fewer records prove nothing
    return rows


async def create_queues(bench: Bench) -> list[Row]:
    """Create queues in a new log: a call for each, all at once, and one call for all."""
    (each,) = await measured(bench, "create")
    (ours,) = await measured(bench, "create-together")
    row = row_of("create", ours, ours)
    rate = f"{row.value:,.0f} queues/s"
    target = f"{row.what}: ≥ {QUEUES_RATE:,} queues/s"
    return [row_of("create", each, each), judged(row, at_least(target, row.value, QUEUES_RATE, rate, of_times=True))]
