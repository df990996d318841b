"""Measure what a drain costs while nothing happens, and what many queues add to one trigger of Spark.

Two measurements, each with one queue and with many:

* `mrecordlog drain --every 1s` after it has caught up: CPU time of its processes, as a part of one core.
* A stream into `noop`, with the same number of new records in each trigger: how long Spark says that the trigger took,
  and the parts that grow with the number of queues. The difference is what the queues add to Spark's own time.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import sysconf
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from mrecordlog_async.model import Run
from mrecordlog_async.spark.client import ServiceClient
from mrecordlog_async.spark.option_values import Server
from mrecordlog_async.spark.session import spark_session
from tests.benchmarks.serving import serve_command, serving

TICKS_PER_SECOND = sysconf("SC_CLK_TCK")
SETTLE_SECONDS = 20.0
WARM_UP = 5

Cpu = dict[str, float]
"""Kind of process → CPU seconds."""


def append(url: str, queues: int, records: int) -> None:
    """Append *records* to *queues* queues, spread evenly."""
    client = ServiceClient(Server("log", url), token=None, timeout_seconds=60, retries=5)
    run = Run.of(0, [b"x" * 200] * (records // queues))
    for queue in range(queues):
        client.append(f"queue-{queue}", [run], position=None, create=True)
    client.close()


# Idle.


def idle(place: Path, queues: int, seconds: float) -> Cpu:
    """Return the CPU seconds per second of a drain that has nothing to do, by kind of process."""
    with serving(serve_command(str(place / "wal"))) as url:
        append(url, queues, queues)
        with draining(url, place) as process:
            before, begun = cpu_of(process.pid), time.monotonic()
            time.sleep(seconds)
            after, taken = cpu_of(process.pid), time.monotonic() - begun
    return {kind: (after[kind] - before.get(kind, 0.0)) / taken for kind in after}


@contextmanager
def draining(url: str, place: Path) -> Iterator[subprocess.Popen[str]]:
    """Drain *url* every second; yield the process when it has caught up and settled."""
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"log={url}", "--every", "1s"]
    command += ["--output", str(place / "lake"), "--checkpoint", str(place / "checkpoint")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                if line.startswith("batch 1:"):
                    break
            else:
                raise RuntimeError(f"the drain ended before its first batch: {''.join(said)}")
            time.sleep(SETTLE_SECONDS)
            yield process
        finally:
            process.terminate()
            process.communicate()


def cpu_of(pid: int) -> Cpu:
    """Return the CPU seconds of a process and its descendants, including children that have ended, by kind."""
    found: Cpu = {}
    for each in tree(pid):
        try:
            stat = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
            command = Path(f"/proc/{each}/cmdline").read_text()
        except OSError:  # it has ended
            continue
        kind = "driver" if each == pid else "Java" if "java" in command.partition("\0")[0] else "Python of Spark"
        found[kind] = found.get(kind, 0.0) + sum(map(int, stat[11:15])) / TICKS_PER_SECOND
    return found


def tree(pid: int) -> list[int]:
    """Return *pid* and its descendants."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


# Triggers.


def triggers(session: SparkSession, place: Path, queues: int, records: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of the parts of a trigger, the median of *rounds*."""
    with serving(serve_command(str(place / "wal"))) as url:
        append(url, queues, records)
        stream = session.readStream.format("mrecordlog").option("servers", f"log={url}").load()
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        taken: list[dict[str, float]] = []
        seen: set[int] = set()
        for _ in range(WARM_UP + rounds):
            query.processAllAvailable()
            new = [each for each in query.recentProgress if each["numInputRows"] and each["batchId"] not in seen]
            seen |= {each["batchId"] for each in new}
            taken += [each["durationMs"] for each in new if each["numInputRows"] == records]
            append(url, queues, records)
        query.stop()
    parts = taken[WARM_UP:]
    return {name: median(each.get(name, 0) for each in parts) for name in sorted(parts[-1])}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("--queues", type=int, default=5_000)
    parser.add_argument("--records", type=int, default=10_000, help="new records in each trigger, over all queues")
    parser.add_argument("--rounds", type=int, default=15, help="triggers that are measured")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long the idle drain is watched")


def run(arguments: argparse.Namespace) -> int:
    """Measure with one queue and with many; print two tables."""
    counts = (1, arguments.queues)
    with tempfile.TemporaryDirectory(prefix="mrecordlog-idle-") as directory:
        shares = [idle(Path(directory, f"idle-{queues}"), queues, arguments.seconds) for queues in counts]
        session = spark_session("triggers", master="local[2]", settings={"spark.ui.enabled": "false"})
        session.sparkContext.setLogLevel("ERROR")
        parts = [
            triggers(session, Path(directory, f"run-{queues}"), queues, arguments.records, arguments.rounds)
            for queues in counts
        ]
        session.stop()
        shutil.rmtree(directory, ignore_errors=True)
        Path(directory).mkdir()
    print(f"\nIdle drain, --every 1s, CPU as a part of one core, over {arguments.seconds:.0f} s\n")
    print_table(counts, [{"all": sum(each.values()), **each} for each in shares], "{:.1%}")
    print(f"\nOne trigger with {arguments.records:,} new records, milliseconds, median of {arguments.rounds}\n")
    print_table(counts, parts, "{:.0f}")
    return 0


def print_table(counts: tuple[int, ...], columns: list[dict[str, float]], form: str) -> None:
    """Print a row per name and a column per number of queues."""
    print("| |" + "".join(f" {count:,} queues |" for count in counts) + "\n|---|" + "---|" * len(counts))
    for name in sorted({name for column in columns for name in column}):
        print(f"| {name} |" + "".join(f" {form.format(column.get(name, 0.0))} |" for column in columns))
