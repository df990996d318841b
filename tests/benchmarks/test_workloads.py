"""Every workload of the project once, with very few records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrecordlog_async.bench.results import Row
from mrecordlog_async.bench.suite import Workload, run_workload
from tests.benchmarks.scale import TINY
from tests.benchmarks.suite import WORKLOADS


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
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
