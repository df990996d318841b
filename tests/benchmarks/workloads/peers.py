"""This log next to other stores: the same callers, the same bytes, every call durable, all in the same rounds."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.compare.contenders import BARE_FILE, FAIR_PEERS, PEERS
from tests.benchmarks.compare.process import Contestant
from tests.benchmarks.compare.suite import chosen
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.targets import Check, judged, rounds_at_least
from tests.benchmarks.workloads.in_turn import lead, leads, measured, row_of

WORKLOAD = "peers"
SINGLES_LEAD = 1.1
BATCHES_LEAD = 1.1
QUEUES_LEAD = 1.3
LARGE_LEADS = (("16-kib", 1.1), ("large", 0.9))
"""Rows of large payloads, and the lead over LMDB."""


async def singles(bench: Bench) -> list[Row]:
    """One caller and thousands, 100 B: the embedded stores with a group commit, the servers, and the bare file."""
    rows = await _against(bench, "one-caller", ["PostgreSQL"], [], 0)
    for name in bench.scale.peer_rows:
        rows += await _against(bench, name, PEERS, FAIR_PEERS, SINGLES_LEAD)
    return rows


async def batches(bench: Bench) -> list[Row]:
    """Batches of 1,000 × 1 KiB, which the embedded stores take as one transaction; single payloads of 16 KiB, 1 MiB."""
    rows = await _against(bench, "batches", [*FAIR_PEERS, BARE_FILE], ["LMDB"], BATCHES_LEAD)
    for name, wanted in LARGE_LEADS:
        rows += await _against(bench, name, ["LMDB", BARE_FILE], ["LMDB"], wanted)
    return rows


async def queues(bench: Bench) -> list[Row]:
    """Single records to 10,000 queues in turn, where a queue is a prefix of the key."""
    return await _against(bench, "queues", ["LMDB", "RocksDB"], ["LMDB", "RocksDB"], QUEUES_LEAD)


async def _against(bench: Bench, name: str, others: Sequence[str], rivals: Sequence[str], wanted: float) -> list[Row]:
    """Measure the row *name*; this log is checked against the best of *rivals*."""
    ours, *found = await measured(bench, name, others)
    rows = [row_of(WORKLOAD, each, ours) for each in (ours, *found)]
    installed = {each.version.label for each in found}
    rows += [
        Row(WORKLOAD, f"{other}, {chosen([name])[0].what}", skipped="not measured: not installed")
        for other in others
        if other not in installed
    ]
    check = check_of(ours, [each for each in found if each.version.label in rivals], wanted)
    return [judged(rows[0], *check), *rows[1:]]


def check_of(ours: Contestant, rivals: Sequence[Contestant], wanted: float) -> tuple[Check, ...]:
    """Check *ours* against the best of *rivals*; without rivals there is nothing to check."""
    if not rivals:
        return ()
    best = min(rivals, key=lambda rival: lead(ours, rival))
    names = ", ".join(rival.version.label for rival in rivals)
    target = f"{chosen([ours.row])[0].what}: ≥ {wanted:g} × the best of {names} behind a group commit"
    return (rounds_at_least(target, leads(ours, best), wanted, f" {best.version.label}"),)
