"""What the pipeline of a release leaves: a log, and the queries that have read a part of it. Made by real Spark.

    log               orders, payments and clicks, with records that no query has read
    orders            `mrecordlog drain` of a queue into a Delta table: table, checkpoint
    payments          the same with `--consumer lake`; of 0.2.0, one with `--format parquet`: out, checkpoint
    clicks            a plain `readStream` of a queue: checkpoint

The first entry of a table's log has absolute paths. It has `PLACE` instead of the directory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mrecordlog_async.client import BlockingRecordLogClient
from tests.serving import Process

PLACE = "/the/directory"
QUEUES = ("orders", "payments", "clicks")
READ, BATCH = 40, 20
"""How many records of each queue its query has stored, and in batches of how many; as many records are left."""

STREAM = """
import sys
from mrecordlog_async.spark.session import spark_session
server, place = sys.argv[1:]
options = {"servers": server, "subscribe": "clicks", "maxRecordsPerTrigger": "20"}
rows = spark_session().readStream.format("mrecordlog").options(**options).load()
query = rows.writeStream.format("noop").option("checkpointLocation", place).trigger(availableNow=True).start()
query.awaitTermination()
"""


def payloads(queue: str, start: int, stop: int) -> list[bytes]:
    """Return what is stored in *queue* from position *start* to before *stop*."""
    return [f"{queue}:{position}".encode() for position in range(start, stop)]


def make_pipeline(place: Path) -> None:
    """Write all of it below *place*, with a service, two drains and a stream as separate processes."""
    with Process(place / "log", ["--segment-bytes", "131072"]) as service:
        _append(service.address, 0, READ)
        _drain(service.address, "orders", place)
        _drain(service.address, "payments", place, "--consumer", "lake")
        server = f"shop={service.address}"
        subprocess.run([sys.executable, "-c", STREAM, server, str(place / "clicks" / "checkpoint")], check=True)
        _append(service.address, READ, 2 * READ)
        service.stop()
    rename_place(place, str(place), PLACE)


def rename_place(place: Path, old: str, new: str) -> None:
    """Replace the directory *old* by *new* in all files below *place* that have absolute paths."""
    for path in place.glob("*/table/_delta_log/*.json"):
        path.write_text(path.read_text().replace(old, new))


def _append(address: str, start: int, stop: int) -> None:
    with BlockingRecordLogClient(address) as client:
        for queue in QUEUES:
            client.append_records(queue, start, payloads(queue, start, stop), create=True)


def _drain(address: str, queue: str, place: Path, *more: str) -> None:
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"shop={address}"]
    command += ["--subscribe", queue, "--max-records-per-trigger", str(BATCH)]
    command += ["--output", str(place / queue / "table"), "--checkpoint", str(place / queue / "checkpoint")]
    subprocess.run([*command, *more], check=True)
