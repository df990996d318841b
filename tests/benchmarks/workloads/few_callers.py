"""The compiled build next to the pure one: few callers, for whom the compiled part matters most."""

from __future__ import annotations

import asyncio

from mrecordlog_async.compiled import BUILD, WHY_PURE
from tests.benchmarks.compare.contenders import THIS_LOG
from tests.benchmarks.compare.place import PURE, TREE, make_place
from tests.benchmarks.compare.suite import chosen
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.targets import judged, rounds_at_least
from tests.benchmarks.workloads.in_turn import leads, measured_versions, row_of

WORKLOAD = "builds"
LEADS = (("10-callers", 1.2), ("100-callers", 1.05))


async def run(bench: Bench) -> list[Row]:
    """Measure 10 and 100 callers of both builds of this tree in turn."""
    if BUILD == "pure":
        return [Row(WORKLOAD, "the compiled build next to the pure one", skipped=f"not measured: {WHY_PURE}")]
    this = await asyncio.to_thread(make_place, TREE, bench.path("compiled"))
    pure = await asyncio.to_thread(make_place, TREE + PURE, bench.path("pure"))
    this, pure = this._replace(label=THIS_LOG), pure._replace(label="its pure build")
    rows: list[Row] = []
    for name, wanted in LEADS:
        ours, other = await measured_versions(bench, name, [this, pure])
        target = f"{chosen([name])[0].what}: ≥ {wanted:g} × the rate of the pure build"
        check = rounds_at_least(target, leads(ours, other), wanted)
        rows += [judged(row_of(WORKLOAD, ours, ours), check), row_of(WORKLOAD, other, ours)]
    return rows
