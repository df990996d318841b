"""Spark at work: how fast a drain moves a log into a Delta table, next to Spark's own Parquet sink.

A service in its own process holds records of 200 bytes in 8 queues, a quarter of each payload random. Spark, with two
cores of the same machine, moves all of them in one trigger: with a plain stream into Spark's Parquet sink, which syncs
and proves nothing, and with a drain into a Delta table. They take turns; the time begins before the query starts and
ends when the last batch is committed. The CPU time is that of all processes: the service, Java, and Python.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.session import spark_session
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.benchmarks.process_cpu import cpu_of
from tests.benchmarks.results import Row, median_ratio
from tests.benchmarks.scale import Bench
from tests.benchmarks.serving import serve_command, serving
from tests.benchmarks.targets import at_least, judged, rounds_at_least

QUEUES = 8
PAYLOAD_BYTES = 200
RANDOM_BYTES = 50
APPEND_RECORDS = 5_000

SINK, DELTA = "Spark's Parquet sink, no drain", "Delta, drained"
RATE = 500_000
SHARE_OF_SINK = 0.9


@dataclass(slots=True)
class Taken:
    """What the rounds of one way took."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


async def run(bench: Bench) -> list[Row]:
    """Move the same log with a stream and with a drain, in turn."""
    records = await fill(bench.path("log"), bench.scale.spark_records)
    taken = await asyncio.to_thread(_taken, bench, records)
    rates = {name: [records / each for each in one.seconds] for name, one in taken.items()}
    share = median_ratio(rates[DELTA], rates[SINK])
    cpu = median_ratio(taken[DELTA].cpu_seconds, taken[SINK].cpu_seconds)
    rows = {name: _row(name, rates[name], one.cpu_seconds, records) for name, one in taken.items()}
    note = f"raw: {SINK}, in the same rounds; {cpu:.2f} × its CPU time"
    delta = replace(rows[DELTA], raw=rows[SINK].value, ratio=share, note=note)
    rate = f"log → Delta, {PAYLOAD_BYTES} B"
    rows_per_second = f"{delta.value:,.0f} rows/s"
    fast = at_least(f"{rate}: ≥ {RATE:,} rows/s on 2 cores", delta.value, RATE, rows_per_second, of_times=True)
    shares = [mine / sink for mine, sink in zip(rates[DELTA], rates[SINK], strict=True)]
    near = rounds_at_least(f"{rate}: ≥ {SHARE_OF_SINK} × Spark's Parquet sink", shares, SHARE_OF_SINK)
    return [rows[SINK], judged(delta, fast, near)]


def _row(name: str, rates: list[float], cpu_seconds: list[float], records: int) -> Row:
    cpu = median(cpu_seconds) * 1e6 / records
    return Row("spark-drain", f"log → {name}", median(rates), "rows/s", cpu_microseconds=cpu)


async def fill(directory: str, records: int) -> int:
    """Store about *records* records in a new log, spread evenly over the queues; return how many."""
    rest, stored = bytes(PAYLOAD_BYTES - RANDOM_BYTES), 0
    log = await MultiRecordLog.open(directory)
    async with log:
        for queue in range(QUEUES):
            await log.create_queue(f"queue-{queue}")
        while stored < records:
            noise = os.urandom(RANDOM_BYTES * APPEND_RECORDS)
            payloads = [noise[at : at + RANDOM_BYTES] + rest for at in range(0, len(noise), RANDOM_BYTES)]
            await log.append_records(f"queue-{stored // APPEND_RECORDS % QUEUES}", None, payloads)
            stored += APPEND_RECORDS
    return stored


def _taken(bench: Bench, records: int) -> dict[str, Taken]:
    with serving(serve_command(bench.path("log"))) as url:
        session = spark_session("drain", master="local[2]", settings={"spark.ui.enabled": "false"})
        session.sparkContext.setLogLevel("ERROR")
        try:
            return measure(ways(session, url, records), Path(bench.path("rounds")), bench.scale.rounds, bench.say)
        finally:
            session.stop()


def ways(session: SparkSession, url: str, records: int) -> dict[str, Callable[[Path], object]]:
    """Return the ways to move a log, each a function of a directory that it fills."""
    options = {"maxRecordsPerTrigger": str(records), "maxBytesPerTrigger": str(1 << 40)}

    def drain(target: Path) -> None:
        job = DrainJob(f"log={url}", str(target / "out"), str(target / "checkpoint"), options=options)
        moved = run_drain(session, replace(job, truncate=False)).records
        assert moved == records, f"{moved} of {records} records were moved"

    def sink(target: Path) -> None:
        stream = session.readStream.format("mrecordlog").option("servers", f"log={url}").options(**options).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(target / "checkpoint"))
        writer.trigger(availableNow=True).start(str(target / "out")).awaitTermination()

    return {SINK: sink, DELTA: drain}


def measure(
    found: Mapping[str, Callable[[Path], object]], place: Path, rounds: int, say: Callable[[str], object]
) -> dict[str, Taken]:
    """Run every way in turn, *rounds* times after one that warms Java up; return what each took."""
    taken = {name: Taken() for name in found}
    for number in range(rounds + 1):
        say(f"round {number} of {rounds}" if number else "warming up")
        for name, way in found.items():
            target = place / f"{number}"
            seconds, cpu_seconds = _timed(partial(way, target))
            shutil.rmtree(target)
            if number:
                taken[name].seconds.append(seconds)
                taken[name].cpu_seconds.append(cpu_seconds)
    return taken


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that *work* takes, and the CPU seconds of this process and all that it has started."""
    cpu, begun = sum(cpu_of(os.getpid()).values()), time.perf_counter()
    work()
    return time.perf_counter() - begun, sum(cpu_of(os.getpid()).values()) - cpu
