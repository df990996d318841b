"""What queues cost Spark: a drain while nothing happens, and one trigger when all queues have new records.

Both are measured with one queue and with many.

* `idle`: `mrecordlog drain --every 1s` after it has caught up, with a log whose records do not change: CPU time of its
  processes, as a part of one core.
* `triggers`: a stream into `noop`. Before each trigger, the same number of records is stored: in the one queue, in a
  few of many queues, or in all of these. A row is how much longer Spark says that the trigger takes with many queues,
  which is the part of this package.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import Run
from mrecordlog_async.protocol.wire import CONTENT_TYPE, QueueRuns, encode
from mrecordlog_async.spark.session import spark_session
from tests.benchmarks.process_cpu import Cpu, cpu_of
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench
from tests.benchmarks.serving import serve_command, serving
from tests.benchmarks.targets import at_most, judged

PAYLOAD = b"x" * 200
RECORDS = 10_000
"""New records in each trigger, over all queues."""

IDLE_SHARES = {"one": 0.02, "many": 0.06}
TRIGGER_SECONDS = 0.060
FEW = 100
"""This many queues of many have new records."""

SETTLE_SECONDS = 10.0
CAUGHT_UP_SECONDS = 300.0
WARM_UP = 3
AT_ONCE = 64
"""Requests at once, when records are stored."""


async def _fill(directory: str, queues: int, records: int) -> None:
    """Store *records* records in each of *queues* queues of a new log."""
    log = await MultiRecordLog.open(directory)
    async with log:
        for at in range(0, queues, AT_ONCE):
            names = [_name(queue) for queue in range(at, min(at + AT_ONCE, queues))]
            await asyncio.gather(*map(log.create_queue, names))
            await asyncio.gather(*(log.append_records(name, None, [PAYLOAD] * records) for name in names))


def _name(queue: int) -> str:
    return f"queue-{queue}"


# Idle.


async def idle(bench: Bench) -> list[Row]:
    """Watch a drain that has nothing to do."""
    rows = list[Row]()
    for name, queues in (("one", 1), ("many", bench.scale.spark_queues)):
        place = Path(bench.path(f"idle-{queues}"))
        await _fill(str(place / "wal"), queues, 1)
        bench.say(f"a drain without work, {queues:,} queues")
        shares = await asyncio.to_thread(_watch, place, bench.scale.spark_idle_seconds)
        share, wanted = sum(shares.values()), IDLE_SHARES[name]
        note = ", ".join(f"{kind} {part:.1%}" for kind, part in sorted(shares.items()))
        what = f"idle drain, --every 1s, {queues:,} {'queue' if queues == 1 else 'queues'}"
        row = Row("spark-idle", what, share * 100, "% of a core", note=note)
        rows.append(judged(row, at_most(f"{what}: ≤ {wanted:.0%} of a core", share, wanted, f"{share:.1%}")))
    return rows


def _watch(place: Path, seconds: float) -> Cpu:
    """Return the CPU seconds per second of a drain that has caught up, by kind of process."""
    with serving(serve_command(str(place / "wal"))) as url, _draining(url, place) as process:
        before, begun = cpu_of(process.pid), time.monotonic()
        time.sleep(seconds)
        after, taken = cpu_of(process.pid), time.monotonic() - begun
    return {kind: (after[kind] - before.get(kind, 0.0)) / taken for kind in after}


@contextmanager
def _draining(url: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Drain *url* every second; yield the process when it has stored everything and settled.

    What it prints goes into a file: nobody would read a pipe while the drain is watched.
    """
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"log={url}", "--every", "1s"]
    command += ["--output", str(place / "lake"), "--checkpoint", str(place / "checkpoint")]
    said = place / "said"
    with open(said, "wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            _wait(lambda: "batch 1:" in said.read_text(), process, said)
            time.sleep(SETTLE_SECONDS)
            yield process
        finally:
            process.terminate()
            process.wait()


def _wait(done: Callable[[], bool], process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + CAUGHT_UP_SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the drain did not finish its first batch: {said.read_text()[-2_000:]}")
        time.sleep(0.2)


# Triggers.


async def triggers(bench: Bench) -> list[Row]:
    """Compare a trigger over many queues with one over a single queue, with as many records."""
    many = bench.scale.spark_queues
    session = spark_session("triggers", master="local[2]", settings={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("ERROR")
    parts = []
    try:
        for queues, busy in ((1, 1), (many, FEW), (many, many)):
            place = Path(bench.path(f"run-{queues}-{busy}"))
            await _fill(str(place / "wal"), queues, RECORDS // queues)
            parts.append(await asyncio.to_thread(_run_triggers, bench, session, place, queues, busy))
    finally:
        session.stop()
    one, *others = parts
    return [_row(one, other, busy, many) for other, busy in zip(others, (FEW, many), strict=True)]


def _row(one: dict[str, float], other: dict[str, float], busy: int, queues: int) -> Row:
    """Return how much longer a trigger takes than with one queue."""
    more = (other["triggerExecution"] - one["triggerExecution"]) / 1e3
    where = f"{queues:,} queues" if busy == queues else f"{busy} of {queues:,} queues"
    what = f"one trigger with {RECORDS:,} new records in {where}"
    note = f"next to one queue: {one['triggerExecution']:.0f} → {other['triggerExecution']:.0f} ms: " + ", ".join(
        f"{name} {one.get(name, 0):.0f} → {other[name]:.0f}" for name in other if name != "triggerExecution"
    )
    row = Row("spark-triggers", what, more * 1e3, "ms more", note=note)
    target = f"{what}: ≤ {TRIGGER_SECONDS * 1e3:.0f} ms beyond Spark's own"
    return judged(row, at_most(target, more, TRIGGER_SECONDS, f"{more * 1e3:.0f} ms", of_times=True))


def _run_triggers(bench: Bench, session: SparkSession, place: Path, queues: int, busy: int) -> dict[str, float]:
    """Return the milliseconds of the parts of a trigger, the median of the rounds."""
    rounds, taken = bench.scale.spark_triggers, list[dict[str, float]]()
    with serving(serve_command(str(place / "wal"))) as url:
        query = _stream(session, url, place)
        for number in range(WARM_UP + rounds):
            bench.say(f"{busy:,} of {queues:,} queues, trigger {number + 1} of {WARM_UP + rounds}")
            taken.append(_next_batch(query, number))
            asyncio.run(_append(url, range(0, queues, queues // busy)))
        query.stop()
    return {name: median(each.get(name, 0) for each in taken[WARM_UP:]) for name in taken[-1]}


def _stream(session: SparkSession, url: str, place: Path) -> StreamingQuery:
    """Start a stream whose every batch waits until all new records are there."""
    options = {"servers": f"log={url}", "minRecordsPerTrigger": str(RECORDS), "maxTriggerDelay": "1h"}
    writer = session.readStream.format("mrecordlog").options(**options).load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start()


def _next_batch(query: StreamingQuery, batches: int) -> dict[str, float]:
    """Wait until one batch more than *batches* has read records; return how long its parts took."""
    deadline = time.monotonic() + CAUGHT_UP_SECONDS
    while time.monotonic() < deadline:
        latest: Any = query.lastProgress
        # Batch 0 records where the queues begin; every other one has all records of a round.
        if latest is not None and latest["batchId"] == batches + 1 and latest["numInputRows"]:
            assert latest["numInputRows"] == RECORDS, f"the batch has {latest['numInputRows']} records"
            return dict(latest["durationMs"])
        time.sleep(0.1)
    raise RuntimeError(f"batch {batches + 1} was not read: {query.status}, {query.exception()}")


async def _append(url: str, queues: range) -> None:
    """Store `RECORDS` records, as many in each of *queues*."""
    body = b"".join(encode([QueueRuns("", 0, [Run.of(0, [PAYLOAD] * (RECORDS // len(queues)))])]))
    headers, names = {"Content-Type": CONTENT_TYPE}, iter(queues)

    async def post(session: aiohttp.ClientSession) -> None:
        for queue in names:
            async with session.post(f"/v1/queues/{_name(queue)}/records", data=body, headers=headers) as response:
                response.raise_for_status()

    async with aiohttp.ClientSession(url) as session:
        await asyncio.gather(*(post(session) for _ in range(AT_ONCE)))
