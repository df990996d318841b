"""Truncating: a long queue must not cost more than a short one."""

from __future__ import annotations

import time
from statistics import median

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import PersistPolicy
from tests.benchmarks.latency import Latencies
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.subject import LIMITS
from tests.benchmarks.targets import Check, JudgedRow, at_most
from tests.benchmarks.workloads.reads import fill

STEPS = 90


async def run(bench: Bench) -> list[Row]:
    """Truncate the same number of records from a short and a long queue in turn, under `always` and under `never`."""
    rows = []
    for name, policy in (("always", PersistPolicy.always()), ("never", PersistPolicy.never())):
        rows += await _truncate(bench, name, policy)
    return rows


async def _truncate(bench: Bench, name: str, policy: PersistPolicy) -> list[Row]:
    scale = bench.scale
    lengths = {"short": scale.short_queue, "long": scale.long_queue}
    step = scale.short_queue // (STEPS + 10)
    took: dict[str, list[float]] = {"short": [], "long": []}
    async with MultiRecordLog.open(bench.path(f"log-{name}"), persist_policy=policy, limits=LIMITS) as log:
        bench.say(f"filling queues of {scale.short_queue:,} and {scale.long_queue:,} records")
        for queue, records in lengths.items():
            await fill(log, queue, records)
        bench.say(f"truncating {step:,} records {STEPS} times from each, policy {name}")
        for number in range(1, STEPS + 1):
            for queue in lengths:
                begun = time.perf_counter()
                dropped = await log.truncate(queue, number * step - 1)
                took[queue].append(time.perf_counter() - begun)
                assert dropped == step and log.first_position(queue) == number * step
    ratio = median(took["long"]) / median(took["short"])
    target = (
        f"truncate costs the same in a queue of {scale.long_queue:,} and of {scale.short_queue:,} records: "
        f"within 1.5 × (policy {name})"
    )
    check = at_most(target, ratio, 1.5, f"{ratio:.2f} ×")
    return [
        _row(f"{step:,} records off {lengths['short']:,}, {name}", took["short"], ()),
        _row(f"{step:,} records off {lengths['long']:,}, {name}", took["long"], (check,)),
    ]


def _row(what: str, took: list[float], checks: tuple[Check, ...]) -> Row:
    return JudgedRow("truncate", what, 1 / median(took), "calls/s", latency=Latencies.of(took), checks=checks)
