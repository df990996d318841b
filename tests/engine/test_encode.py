"""A batch as bytes: how payloads become runs."""

from __future__ import annotations

from mrecordlog_async.engine.commit import PlannedRun
from mrecordlog_async.engine.encode import build_records, split_into_runs
from mrecordlog_async.format.runs import Append
from mrecordlog_async.model import RUN_BYTES


async def test_runs_are_about_a_block() -> None:
    """Records of a batch share runs of at most a block; a larger one has its own."""
    payloads = [b"x" * 100] * 1000 + [b"y" * 100_000] + [b"z"] * 3
    runs = split_into_runs(5, payloads)
    assert [record for run in runs for record in run.records()] == list(
        zip(range(5, 5 + len(payloads)), payloads, strict=True)
    )
    assert all(len(run.payload) + len(run.offsets) <= RUN_BYTES + 4 for run in runs if run.record_count > 1)
    assert [run.record_count for run in runs if len(run.payload) >= 100_000] == [1]
    assert build_records([PlannedRun(1, 5, payloads)]) == [Append(1, run) for run in runs]
