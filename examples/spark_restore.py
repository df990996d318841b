"""A log is lost and restored from the lake: every record at its old position, so that readers can continue.

    pip install 'mrecordlog_async[server,spark,java]'
    python examples/spark_restore.py

The copy to a Delta table does not change the log. Loading it is exactly once: a second run, for example after a
failure, stores nothing twice.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import write_deltalake
from pyspark.sql import SparkSession

from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.spark.restore.load import run_load
from mrecordlog_async.spark.session import spark_session

Contents = dict[str, list[tuple[int, bytes]]]


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


async def write(directory: Path) -> None:
    """Create a log whose queue does not begin at 0, because its first records were truncated."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("events")
        await log.append_records("events", None, [f"event {n}".encode() for n in range(1_000)])
        await log.truncate("events", 249)


def contents(directory: Path) -> Contents:
    """Read a log's directory."""
    with ReadOnlyLog.open(directory) as log:
        return {queue: [(position, payload) for position, payload in log.range(queue)] for queue in log.list_queues()}


def run(session: SparkSession, place: Path) -> tuple[Contents, Contents]:
    """Copy a log to a table, lose it, restore it; return its contents before and after."""
    asyncio.run(write(place / "wal"))
    before = contents(place / "wal")
    rows = session.read.format("mrecordlog").load(str(place / "wal"))
    write_deltalake(str(place / "copy"), rows.toArrow())
    shutil.rmtree(place / "wal")
    with served(place / "wal") as url:
        for _ in range(2):
            print(run_load(session, str(place / "copy"), url), file=sys.stderr)
    return before, contents(place / "wal")


if __name__ == "__main__":
    spark = spark_session("restore", settings={"spark.ui.enabled": "false"})
    with tempfile.TemporaryDirectory() as directory:
        before, after = run(spark, Path(directory))
    records = after["events"]
    print(f"{len(records)} records from position {records[0][0]} on; the same as before: {before == after}")
    spark.stop()
