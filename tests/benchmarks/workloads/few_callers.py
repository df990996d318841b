"""Few callers, next to the version of this log that the targets for them were set against."""

from __future__ import annotations

import asyncio

from tests.benchmarks.compare.command import make_peers
from tests.benchmarks.compare.contenders import THIS_LOG
from tests.benchmarks.compare.place import UnknownVersionError, make_place
from tests.benchmarks.compare.suite import chosen
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.targets import at_least, judged
from tests.benchmarks.workloads.in_turn import lead, measured_versions, row_of

WORKLOAD = "few-callers"
BASE = "0ca8f9a7"
"""The last version before format 2."""
LEADS = (("10-callers", 1.4), ("100-callers", 1.25))


async def run(bench: Bench) -> list[Row]:
    """Measure 10 and 100 callers of this tree and of `BASE` in turn."""
    try:
        base = await asyncio.to_thread(make_place, BASE, bench.path("base"))
    except UnknownVersionError as unknown:
        return [Row(WORKLOAD, f"next to revision {BASE}", skipped=str(unknown))]
    (this,) = await asyncio.to_thread(make_peers, [THIS_LOG], bench.path("this"))
    rows: list[Row] = []
    for name, wanted in LEADS:
        ours, older = await measured_versions(bench, name, [this, base])
        found = lead(ours, older)
        target = f"{chosen([name])[0].what}: ≥ {wanted:g} × the rate of revision {BASE}"
        check = at_least(target, found, wanted, f"{found:.2f} ×")
        rows += [judged(row_of(WORKLOAD, ours, ours), check), row_of(WORKLOAD, older, ours)]
    return rows
