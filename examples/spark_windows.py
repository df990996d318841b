"""Page views per second: a stream that counts by the time when the log stored each record.

    pip install 'mrecordlog_async[server,spark,java]'
    python examples/spark_windows.py

The log stores a time with each record, so producers send none, and a replay counts the same. The watermark says how
much later than the newest record another one may still arrive; here not at all, because there is one queue. A window is
written once, when the watermark has passed its end. The newest one is still open, and not in the result.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import window

from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.spark.session import spark_session

VIEWS = ["/home", "/prices", "/home", "/home"]


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


async def send(url: str, pages: list[str]) -> None:
    """Append what was viewed."""
    async with RecordLogClient(url) as log:
        await log.create_queue("views", exist_ok=True)
        await log.append_records("views", None, [page.encode() for page in pages])


def per_second(session: SparkSession, url: str) -> DataFrame:
    """Describe the query."""
    views = session.readStream.format("mrecordlog").option("servers", url).load()
    pages = views.selectExpr("timestamp", "string(payload) as page").withWatermark("timestamp", "0 seconds")
    counts = pages.groupBy(window("timestamp", "1 second"), "page").count()
    return counts.selectExpr("window.end as until", "page", "count as views")


def run(session: SparkSession, place: Path, seconds: int = 5) -> list[Row]:
    """Send views once per second while the query runs, and once more; return the windows that are closed."""
    with served(place / "wal") as url:
        asyncio.run(send(url, VIEWS))
        query = (
            per_second(session, url)
            .writeStream.outputMode("append")
            .format("memory")
            .queryName("views")
            .option("checkpointLocation", str(place / "checkpoint"))
            .start()
        )
        for _ in range(seconds):
            time.sleep(1)
            asyncio.run(send(url, VIEWS))
        query.processAllAvailable()
        query.stop()
        return session.table("views").orderBy("until", "page").collect()


if __name__ == "__main__":
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session("views", settings=settings)
    with tempfile.TemporaryDirectory() as directory:
        for row in run(spark, Path(directory)):
            print(f"{row.page}: {row.views} views in the second that ended at {row.until:%H:%M:%S}")
    spark.stop()
