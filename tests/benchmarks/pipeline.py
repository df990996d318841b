"""The pipeline: `mrecordlog drain` into a Delta table, next to Spark's own Parquet sink, which proves nothing.

Each round is one process with everything that a user waits for: the start of Java is in it. CPU is that of Java, Python
and the service.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mrecordlog_async import MultiRecordLog, PersistPolicy
from tests.benchmarks.turns import LOG, Case, Figures, Round, cpu_seconds, serving

RECORDS = 4_000_000
IDLE_SECONDS = 30.0
SINK = "Spark's Parquet sink"
SINK_PROGRAM = """
import sys
from mrecordlog_async.spark.session import spark_session
server, place = sys.argv[1:]
options = {"servers": server, "maxRecordsPerTrigger": "1000000", "maxBytesPerTrigger": "256m"}
rows = spark_session().readStream.format("mrecordlog").options(**options).load()
writer = rows.writeStream.format("parquet").option("checkpointLocation", place + "/checkpoint")
writer.trigger(availableNow=True).start(place + "/table").awaitTermination()
"""


async def fill(directory: Path, records: int, queues: int) -> None:
    """Store *records* of 200 bytes, of which a quarter is random, spread over the queues."""
    names = [f"queue-{number}" for number in range(queues)]
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), queues=names) as log:
        batch = min(5_000, records // queues)
        for begin in range(0, records, batch):
            noise = os.urandom(50 * batch)
            payloads = [noise[at : at + 50] + bytes(150) for at in range(0, len(noise), 50)]
            await log.append_records(names[begin // batch % queues], None, payloads)


async def run(command: Sequence[str], pid: int) -> tuple[float, float]:
    """Run *command*; return its seconds, and the CPU seconds of it and of the service."""
    cpu, begun = cpu_seconds(pid) + cpu_seconds(os.getpid()), time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait():
        raise RuntimeError(f"{command[-1]} failed")
    return time.perf_counter() - begun, cpu_seconds(pid) + cpu_seconds(os.getpid()) - cpu


def drain(port: int, place: Path) -> list[str]:
    """Return the command that drains the service into a table below *place*."""
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"log=http://127.0.0.1:{port}"]
    return [*command, "--output", str(place / "table")]


def moving(records: int, queues: int) -> dict[str, Case]:
    """Return the contenders of a case: everything that is there becomes rows."""

    def prepared(name: str) -> Case:
        @asynccontextmanager
        async def prepare(directory: Path) -> AsyncIterator[Round]:
            await fill(directory / "log", records, queues)
            async with serving(directory / "log") as (port, pid):

                async def measure(seconds: float) -> Figures:
                    place = directory / f"round-{time.monotonic_ns()}"
                    command = [*drain(port, place), "--no-truncate"]
                    if name == SINK:
                        command = [sys.executable, "-c", SINK_PROGRAM, f"log=http://127.0.0.1:{port}", str(place)]
                    took, cpu = await run(command, pid)
                    return {"records/s": records / took, "s": took, "s CPU": cpu}

                yield measure

        return prepare

    return {LOG: prepared(LOG), SINK: prepared(SINK)}


def waiting(queues: int) -> dict[str, Case]:
    """Return a case of a drain that looks once a second, and finds nothing."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        await fill(directory / "log", queues, queues)
        async with serving(directory / "log") as (port, pid):
            await run(drain(port, directory), pid)
            process = await asyncio.create_subprocess_exec(*drain(port, directory), "--every", "1s")
            await asyncio.sleep(IDLE_SECONDS)  # Java has started, and compiled what it calls most

            async def measure(seconds: float) -> Figures:
                cpu = cpu_seconds(process.pid) + cpu_seconds(pid)
                await asyncio.sleep(IDLE_SECONDS)
                share = (cpu_seconds(process.pid) + cpu_seconds(pid) - cpu) / IDLE_SECONDS
                return {"cores left": 1 - share, "% of a core": share * 100}

            yield measure
            process.terminate()
            await process.wait()

    return {LOG: prepare}


CASES: dict[str, dict[str, Case]] = {
    f"{RECORDS:,} records, 8 queues": moving(RECORDS, 8),
    f"{RECORDS // 10:,} records, 2,000 queues": moving(RECORDS // 10, 2_000),
    "an idle drain, 1 queue": waiting(1),
    "an idle drain, 2,000 queues": waiting(2_000),
}
