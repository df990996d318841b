"""Every workload of the project once, with very few records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrecordlog_async.options import MIB
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Scale
from tests.benchmarks.suite import WORKLOADS, Workload, run_workload

TINY = Scale(
    seconds=0.01,
    rounds=1,
    callers=(1, 20),
    compared_callers=20,
    raw_bytes=1 * MIB,
    records=3_000,
    recovery_bytes=1 * MIB,
    memory_records=3_000,
    short_queue=1_000,
    long_queue=3_000,
    queues=(1, 20),
    roll_segment_bytes=1 * MIB,
    mission_rate=2_000_000,
    mission_seconds=0.1,
    mission_retained_seconds=0.1,
    peer_rows=("10-callers",),
    at_most=300,
)


IN_PYTHON = [workload for workload in WORKLOADS if not workload.name.startswith("spark-")]
"""Without those that start Java: each takes half a minute. `suite --quick --only spark-drain …` runs them."""


@pytest.mark.parametrize("workload", IN_PYTHON, ids=lambda workload: workload.name)
def test_workload_ends_with_complete_rows(workload: Workload, tmp_path: Path) -> None:
    """Each row has its figure or the reason for having none, and the directory is empty afterwards."""
    rows = run_workload(workload, TINY, str(tmp_path))
    assert rows
    assert all(_is_complete(row) for row in rows)
    assert os.listdir(tmp_path) == []


def _is_complete(row: Row) -> bool:
    if row.skipped:
        return not row.failed and not row.value
    return bool(row.what and row.unit) and (row.value > 0 or row.workload == "memory")
