"""Spark Connect: the client has no Java and nothing of this package; the server has both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.draining import expected, table_rows
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("grpc", reason="Spark Connect needs pip install 'pyspark[connect]'")

CLIENT = """
import sys
sys.modules["mrecordlog_async"] = None
from pyspark.sql import SparkSession
remote, servers, output, checkpoint = sys.argv[1:]
session = SparkSession.builder.remote(remote).getOrCreate()
print(session.read.format("mrecordlog").option("servers", servers).load().count())
rows = session.createDataFrame([("b", bytearray(b"one"))], "queue string, payload binary")
rows.write.format("mrecordlog").option("servers", servers).mode("append").save()
stream = session.readStream.format("mrecordlog").options(servers=servers, truncate="true").load()
written = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint)
written.trigger(availableNow=True).start(output).awaitTermination()
print(session.read.parquet(output).count())
session.stop()
"""


@pytest.fixture
def remote(spark: SparkSession) -> Iterator[str]:
    """Serve the session of the tests to Spark Connect; yield the address for clients."""
    java: Any = spark.sparkContext._jvm  # py4j has no types
    server = getattr(getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    server.start(spark.sparkContext._jsc.sc())
    yield f"sc://127.0.0.1:{server.localPort()}"
    server.stop(java.scala.Option.empty(), java.scala.Option.empty())


def test_a_client_reads_writes_and_streams(service: ThreadedService, remote: str, tmp_path: Path) -> None:
    """A client of Spark Connect uses the data source by its name: only the server has this package."""
    service.append("a", numbered("a", 0, 10))
    arguments = [remote, service.url, str(tmp_path / "output"), str(tmp_path / "checkpoint")]
    done = subprocess.run([sys.executable, "-c", CLIENT, *arguments], capture_output=True, text=True, timeout=290)
    assert done.stdout.split() == ["10", "11"], done.stderr
    assert service.records() == {"a": [], "b": []}


def test_a_drain_gives_its_tasks_to_a_server(service: ThreadedService, remote: str, tmp_path: Path) -> None:
    """With `--master sc://…`: the client has no Java, paths must be shared, and a server that is gone is a sentence."""
    service.append("a", numbered("a", 0, 100))
    drain = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", service.url, "--master", remote]
    drain += ["--output", str(tmp_path / "table")]
    refused = subprocess.run(drain, capture_output=True, text=True, timeout=290)
    assert refused.returncode == 2 and "add --shared-paths" in refused.stderr
    done = subprocess.run([*drain, "--shared-paths"], capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stderr
    assert table_rows(tmp_path / "table") == expected(a=100)
    gone = [word if word != remote else "sc://127.0.0.1:9" for word in drain]
    ended = subprocess.run([*gone, "--shared-paths"], capture_output=True, text=True, timeout=290)
    assert ended.returncode == 1 and "Spark does not respond any more" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
