"""One streaming query over two logs: how many readings each sensor sent, and their mean, whichever log has them.

    pip install 'mrecordlog_async[server,spark,java]'
    python examples/spark_two_logs.py

Both logs have a queue of the same name; the column `server` keeps their rows apart, and grouping by queue joins them.
The query only reads. It keeps its sums in the checkpoint, so that it continues after a restart.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import avg, count

from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.spark.session import spark_session


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve a log in a separate process; yield its address."""
    command = [sys.executable, "-m", "mrecordlog_async", "serve", str(directory), "--port", "0"]
    # Without the settings of another service, such as its token, which this one would take for its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MRECORDLOG_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            found = (re.search(r"listening on (http://\S+)", line) for line in process.stderr)
            address = next((each[1] for each in found if each), None)
            assert address is not None, "the service did not start"
            yield address
        finally:
            process.terminate()
            process.communicate()


async def send(url: str, sensor: str, readings: list[float]) -> None:
    """Append readings as text."""
    async with RecordLogClient(url) as log:
        await log.create_queue(sensor, exist_ok=True)
        await log.append_records(sensor, None, [str(reading).encode() for reading in readings])


def averages(session: SparkSession, servers: str) -> DataFrame:
    """Describe the query."""
    rows = session.readStream.format("mrecordlog").option("servers", servers).load()
    readings = rows.selectExpr("queue as sensor", "double(string(payload)) as reading")
    return readings.groupBy("sensor").agg(count("*").alias("readings"), avg("reading").alias("mean"))


def run(session: SparkSession, place: Path) -> list[Row]:
    """Send readings to both logs, twice, and let the query catch up each time."""
    with served(place / "wal-a") as a, served(place / "wal-b") as b:
        found: list[Row] = []

        def show(frame: DataFrame, batch: int) -> None:
            found[:] = frame.orderBy("sensor").collect()

        for start in (0.0, 10.0):
            asyncio.run(send(a, "kitchen", [start + n for n in range(5)]))
            asyncio.run(send(b, "kitchen", [start + n for n in range(5, 10)]))
            asyncio.run(send(b, "cellar", [start]))
            query = (
                averages(session, f"a={a},b={b}")
                .writeStream.outputMode("complete")
                .foreachBatch(show)
                .option("checkpointLocation", str(place / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        return found


if __name__ == "__main__":
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session("sensors", settings=settings)
    with tempfile.TemporaryDirectory() as directory:
        for row in run(spark, Path(directory)):
            print(f"{row.sensor}: {row.readings} readings, mean {row.mean}")
    spark.stop()
