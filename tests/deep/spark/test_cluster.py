"""A drain into a Delta table on a cluster: executors are separate processes, and one dies in the middle of a task."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from mrecordlog_async.model import Run
from mrecordlog_async.protocol import calls
from mrecordlog_async.spark import __main__ as job
from mrecordlog_async.spark.java import NoJavaError, ensure_java
from mrecordlog_async.spark.worker_python import ensure_python
from tests.spark import small_java
from tests.spark.cluster import DEADLINE_SECONDS, SPARK_HOME, Cluster, Gate, cluster, end
from tests.spark.processes import served
from tests.spark.producers import client_of
from tests.spark.services import numbered

RECORDS = 300


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start a master and two workers."""
    try:
        java = ensure_java()
    except NoJavaError as error:
        pytest.skip(str(error))
    with cluster(tmp_path, {**os.environ, "JAVA_HOME": java, "PYSPARK_PYTHON": ensure_python(local=True)}) as running:
        yield running


@pytest.mark.timeout(1_200)  # eight processes start, five of them Java
def test_every_record_is_stored_once_though_an_executor_is_killed(spark_cluster: Cluster, tmp_path: Path) -> None:
    """Two executors drain two services; one is killed in the middle of a response, and each record is stored once."""
    with served(tmp_path / "wal-a") as a, served(tmp_path / "wal-b") as b:
        for url in (a, b):
            fill(url)
        gate = Gate(b, stop_at=2)
        command = submit_drain(spark_cluster, tmp_path, a, gate.url)
        messages = tmp_path / "driver.txt"
        with open(messages, "wb") as file:
            driver = subprocess.Popen(command, stdout=file, stderr=file, env=spark_cluster.environment, cwd=tmp_path)
        try:
            assert gate.held.wait(DEADLINE_SECONDS), messages.read_text()
            os.kill(spark_cluster.executor_of(gate.port), signal.SIGKILL)
            gate.open()
            assert driver.wait(DEADLINE_SECONDS) == 0, messages.read_text()
        finally:
            end(driver)
            gate.close()
        assert "Lost executor" in messages.read_text()
        assert {url: left(url) for url in (a, b)} == {url: [("q", 0, RECORDS), ("r", 0, RECORDS)] for url in (a, b)}
    rows = DeltaTable(str(tmp_path / "out")).to_pyarrow_table(columns=["server", "queue", "position", "payload"])
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == [
        (server, queue, position, payload)
        for server in "ab"
        for queue in "qr"
        for position, payload in enumerate(numbered(queue, 0, RECORDS))
    ]


def submit_drain(cluster: Cluster, place: Path, a: str, b: str) -> list[str]:
    """Return the command that drains *a* and *b* into *place* on the cluster."""
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=512m"]
    command += ["--conf", f"spark.executor.extraJavaOptions={small_java.OPTIONS}"]
    command += ["--driver-java-options", small_java.OPTIONS]
    command += [
        str(job.__file__),
        "drain",
        "--shared-paths",
        "--server",
        f"a={a}",
        "--server",
        f"b={b}",
    ]
    command += ["--output", str(place / "out")]
    return [*command, "--max-records", str(2 * RECORDS)]


def fill(url: str) -> None:
    """Append to two queues."""
    client = client_of("a", url)
    for queue in ("q", "r"):
        client.send(calls.append_runs(queue, 0, [Run.of(0, numbered(queue, 0, RECORDS))], create=True))
    client.close()


def left(url: str) -> list[tuple[str, int, int]]:
    """Return what the log still holds: queue, number of records, next position."""
    client = client_of("a", url)
    found = [(queue.queue, queue.records, queue.next_position) for queue in client.listing().queues.values()]
    client.close()
    return found
