"""What the pipeline of a release leaves: a log, and the queries that have read a part of it. Made by real Spark.

    log               orders, payments and clicks, with records that no query has read
    orders            `mrecordlog drain` of a queue into a Delta table: table; in data kept earlier, checkpoint
    payments          the same with `--consumer lake`; of 0.2.0, one with `--format parquet`: out, checkpoint
    clicks            a plain `readStream` of a queue: checkpoint

The first entry of a table's log has absolute paths. It has `PLACE` instead of the directory.

And of a drain that parses payloads:

    log               events, of which the drain has stored the first half
    typed             a column of each type, next to the payload, partitioned by date and queue

In data kept earlier, `typed` has a column `error`, and there is a second table:

    rest              two columns instead of the payload, and _rest and error
"""

from __future__ import annotations

import json
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


TYPED = ", ".join(
    (
        "text string",
        "small tinyint",
        "short smallint",
        "number int",
        "large bigint",
        "half float",
        "real double",
        "price decimal(10,2)",
        "flag boolean",
        "day date",
        "at timestamp",
        "local timestamp_ntz",
        "raw binary",
        "list array<bigint>",
        "pair struct<a: string, b: array<int>>",
        "named map<string, double>",
    )
)
EVENTS = 20
"""So many events are in the log; each drain has stored the first half of them."""


def event(number: int) -> bytes:
    """Return the payload of an event; one in ten is no JSON object, and one in ten has another type in a column."""
    if number % 10 == 3:
        return b"not JSON \xff" + str(number).encode()
    value: dict[str, object] = {
        "text": f"event {number}",
        "small": number,
        "short": number * 1_000,
        "number": number * 100_000,
        "large": number << 40,
        "half": number / 2,
        "real": number / 7,
        "price": f"{number}.25",
        "flag": number % 2 == 0,
        "day": f"2026-01-{number + 1:02}",
        "at": f"2026-01-01T00:00:{number:02}.123456Z",
        "local": f"2026-01-01T00:00:{number:02}",
        "raw": "AAEC",
        "list": list(range(number % 4)),
        "pair": {"a": "x", "b": [1, 2]},
        "named": {"one": 1.5},
        "other": {"kept": number},
    }
    if number % 10 == 7:
        value["number"] = "not a number"
    if number % 10 == 9:
        value = {"text": "the rest is missing"}
    return json.dumps(value).encode()


def make_tables(place: Path) -> None:
    """Write the log of events and what a drain that parses them leaves."""
    events = [event(number) for number in range(EVENTS)]
    with Process(place / "log", ["--segment-bytes", "131072"]) as service:
        with BlockingRecordLogClient(service.address) as client:
            client.append_records("events", 0, events[: EVENTS // 2], create=True)
        _drain(service.address, "typed", place, *TYPED_OPTIONS, queue="events")
        with BlockingRecordLogClient(service.address) as client:
            client.append_records("events", EVENTS // 2, events[EVENTS // 2 :])
        service.stop()
    rename_place(place, str(place), PLACE)


TYPED_OPTIONS = ("--schema", TYPED, "--partition-by", "date,queue")


def rename_place(place: Path, old: str, new: str) -> None:
    """Replace the directory *old* by *new* in all files below *place* that have absolute paths."""
    for path in place.glob("*/table/_delta_log/*.json"):
        path.write_text(path.read_text().replace(old, new))


def _append(address: str, start: int, stop: int) -> None:
    with BlockingRecordLogClient(address) as client:
        for queue in QUEUES:
            client.append_records(queue, start, payloads(queue, start, stop), create=True)


def _drain(address: str, name: str, place: Path, *more: str, queue: str | None = None) -> None:
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"shop={address}"]
    command += ["--subscribe", queue or name, "--max-records", str(BATCH)]
    command += ["--output", str(place / name / "table")]
    subprocess.run([*command, *more], check=True)
