"""Measure how fast Spark reads a log; `suite --only spark-drain` measures how fast it drains one.

A service in its own process holds records of 200 bytes in 8 queues. Spark, with two cores of the same machine,
reads them into `noop` as this package does (Arrow RecordBatches made from runs) and as most Python sources do (tuples),
and reads the same rows from Parquet. Each is the best of several runs in a warm session; the service, Spark's JVM and
its Python workers share the machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from mrecordlog_async.model import Run
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServiceConnection
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.spark.source.reader import LogReader
from mrecordlog_async.spark.source.source import RecordLogDataSource
from tests.benchmarks.serving import serve_command, serving

QUEUES = 8
APPEND_RECORDS = 5_000


class TupleReader(DataSourceReader):
    """Reads the same partitions, and yields a Python tuple per record."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the other reader."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield every record as a tuple."""
        value = partition.value
        client = self._reader.fleet.client(value.server)
        for block in client.fetch(value):
            time = block.times.time_at(block.first_position)  # one append of the benchmark has one time
            for position, payload in block.run().records():
                yield value.server, block.queue, block.queue_id, position, time, payload
        client.close()


class TupleSource(RecordLogDataSource):
    """The data source without Arrow, to compare with."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "mrecordlog_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader that yields tuples."""
        return TupleReader(LogReader(self.parsed))


def fill(url: str, records: int, payload_bytes: int, random_bytes: int) -> None:
    """Append *records* to the queues, spread evenly."""
    client = ServiceClient(ServiceConnection(Endpoint(url, name="log"), token=None, timeout_seconds=60, retries=5))
    rest = bytes(payload_bytes - random_bytes)
    for index in range(records // APPEND_RECORDS):
        noise = os.urandom(random_bytes * APPEND_RECORDS)
        payloads = [noise[at : at + random_bytes] + rest for at in range(0, len(noise), random_bytes)]
        client.append(f"queue-{index % QUEUES}", [Run.of(0, payloads)], position=None, create=True)
    client.close()


def best(runs: int, work: Callable[[], None]) -> float:
    """Return the seconds of the fastest of *runs*."""
    taken = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def measure(session: SparkSession, url: str, place: Path, arguments: argparse.Namespace) -> list[tuple[str, float]]:
    """Run everything; return (what, seconds of the best run), our own read first."""

    def read(name: str) -> None:
        session.read.format(name).option("servers", url).load().write.format("noop").mode("overwrite").save()

    def read_parquet() -> None:
        session.read.parquet(str(place / "copy")).write.format("noop").mode("overwrite").save()

    session.dataSource.register(TupleSource)
    session.read.format("mrecordlog").option("servers", url).load().write.parquet(str(place / "copy"))
    return [
        ("log to noop, RecordBatches", best(arguments.runs, lambda: read("mrecordlog"))),
        ("log to noop, tuples", best(2, lambda: read("mrecordlog_tuples"))),
        ("the same rows, Parquet to noop", best(arguments.runs, read_parquet)),
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--payload-bytes", type=int, default=200)
    parser.add_argument("--random-bytes", type=int, default=50, help="of each payload; the rest compresses well")
    parser.add_argument("--runs", type=int, default=10)


def run(arguments: argparse.Namespace) -> int:
    """Start a service, fill it, measure, print a table."""
    place = Path(tempfile.mkdtemp(prefix="mrecordlog-spark-"))
    try:
        with serving(serve_command(str(place / "wal"))) as url:
            fill(url, arguments.records, arguments.payload_bytes, arguments.random_bytes)
            session = spark_session("throughput", master="local[2]", settings={"spark.ui.enabled": "false"})
            session.sparkContext.setLogLevel("ERROR")
            results = measure(session, url, place, arguments)
            session.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print_table(results, arguments)
    return 0


def print_table(results: list[tuple[str, float]], arguments: argparse.Namespace) -> None:
    """Print records/s, MB/s, and the time of each as a multiple of the first."""
    records, size = arguments.records, arguments.payload_bytes
    print(
        f"\n{records:,} records of {size} bytes, {arguments.random_bytes} of them random; {QUEUES} queues; local[2]\n"
    )
    print("| | seconds | records/s | MB/s | time against the first |\n|---|---|---|---|---|")
    for name, seconds in results:
        rate = records / seconds
        print(f"| {name} | {seconds:.2f} | {rate:,.0f} | {rate * size / 1e6:,.0f} | {seconds / results[0][1]:.2f} |")
