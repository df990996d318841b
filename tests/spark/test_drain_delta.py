"""The drain into a Delta table inside Spark: what other readers find, what it refuses, how it continues."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from deltalake import DeltaTable

from mrecordlog_async.spark.drain import run_drain
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.preflight import DrainJob
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[str, int, bytes]


def read_with_delta_rs(path: Path) -> list[Row]:
    """Return (queue, position, payload) of each row."""
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=["queue", "position", "payload"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def read_with_pandas(path: Path) -> list[Row]:
    frame: Any = DeltaTable(str(path)).to_pandas()
    return sorted(zip(frame.queue, frame.position, frame.payload, strict=True))


def read_with_duckdb(path: Path) -> list[Row]:
    rows = DeltaTable(str(path)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        return sorted(connection.sql("SELECT queue, position, payload FROM rows").fetchall())


def test_every_reader_finds_the_same_rows(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """No jar: delta-rs, pandas and DuckDB read what was drained, queues 007 and 7 apart, and the log is empty."""
    names = ["007", "7", "__HIVE_DEFAULT_PARTITION__", "ä/" * 80, "a"]
    for name in names:
        service.append(name, numbered(name, 0, 50))
    job = DrainJob(f"a={service.url}", str(tmp_path / "t, 1"), str(tmp_path / "c, 1"), partition_by=("queue",))
    summary = run_drain(spark, job)
    assert (summary.records, summary.left) == (250, {"a": 0})
    service.append("7", numbered("7", 50, 60))
    assert run_drain(spark, job).records == 10
    assert run_drain(spark, job).records == 0
    expected = sorted((name, at, each) for name in names for at, each in enumerate(numbered(name, 0, 50)))
    expected = sorted([*expected, *(("7", 50 + at, each) for at, each in enumerate(numbered("7", 50, 60)))])
    for read in (read_with_delta_rs, read_with_pandas, read_with_duckdb):
        assert read(tmp_path / "t, 1") == expected
    assert not any(service.records().values())
    with pytest.raises(RefusedError, match="is partitioned by queue"):
        run_drain(spark, replace(job, partition_by=()))


def test_a_lost_or_foreign_checkpoint_is_refused(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """Without its checkpoint, or with its table replaced, the drain does not start, and the log keeps new records."""
    service.append("q", numbered("q", 0, 10))
    job = DrainJob(service.url, str(tmp_path / "t"), str(tmp_path / "c"))
    run_drain(spark, job)
    service.append("q", numbered("q", 10, 20))
    with pytest.raises(RefusedError, match=r"written with another checkpoint.*lake resume"):
        run_drain(spark, replace(job, checkpoint=str(tmp_path / "new")))
    shutil.move(tmp_path / "t", tmp_path / "away")
    with pytest.raises(RefusedError, match="there is no table at"):
        run_drain(spark, job)
    assert service.positions("q") == (10, 20)
