"""Drains on one Spark next to drains on another: `python -m tests.spark.version_rates DIRECTORY 4.1 4.3`.

DIRECTORY has the environments of `python -m tests.spark.versions`. Both versions move the same log into tables, in
turns, each in a session that stays; then both have a drain that waits, at the same time. Printed are the second
version's seconds and CPU time as a part of the first one's: with 0.95, the first one takes 5 % more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.benchmarks.process_cpu import TICKS_PER_SECOND, cpu_of, tree
from tests.benchmarks.serving import serve_command, serving
from tests.benchmarks.workloads.spark_drain import fill, ways
from tests.spark.versions import python_of

DELTA = "Delta, drained"
SETTLE_SECONDS = 15.0


class Took(NamedTuple):
    """Seconds of one drain, and the CPU seconds of all its processes."""

    seconds: float
    cpu: float


class Drainer:
    """A process with a session of one version, which drains when it is asked to."""

    def __init__(self, python: Path, url: str, records: int) -> None:
        command = [str(python), "-m", "tests.spark.version_rates", "--drain", url, str(records)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def drain(self) -> Took:
        """Drain once."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("took "):
                return Took(*json.loads(line.removeprefix("took ")))
        raise AssertionError("the process ended")

    def end(self) -> None:
        """End the process."""
        self.process.communicate()


def serve_drains(url: str, records: int) -> None:
    """Drain *url* for every line of standard input."""
    from mrecordlog_async.spark.session import spark_session

    session = spark_session("rates", master="local[2]", settings={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("OFF")
    drain = ways(session, url, records)[DELTA]
    for _ in sys.stdin:
        place = Path(tempfile.mkdtemp(prefix="mrecordlog-rates-"))
        cpu, begun = sum(cpu_of(os.getpid()).values()), time.perf_counter()
        drain(place)
        took = time.perf_counter() - begun, sum(cpu_of(os.getpid()).values()) - cpu
        shutil.rmtree(place)
        print(f"took {json.dumps(took)}", flush=True)
    session.stop()


@contextmanager
def waiting(python: Path, url: str, place: Path) -> Iterator[int]:
    """Run a drain that has caught up; yield its process."""
    place.mkdir()
    command = [str(python), "-m", "mrecordlog_async", "drain", "--server", f"log={url}", "--every", "1s"]
    command += ["--no-truncate", "--output", str(place / "table"), "--checkpoint", str(place / "checkpoint")]
    with open(place / "said", "wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            while "batch 1:" not in (place / "said").read_text():
                assert process.poll() is None, (place / "said").read_text()
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("place")
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    if arguments.drain:
        serve_drains(arguments.place, int(arguments.versions[0]))
        return
    first, second = arguments.versions
    pythons = [python_of(Path(arguments.place), version) for version in (first, second)]
    with tempfile.TemporaryDirectory(prefix="mrecordlog-rates-") as place, ExitStack() as closing:
        records = asyncio.run(fill(f"{place}/wal", arguments.records))
        url = closing.enter_context(serving(serve_command(f"{place}/wal")))
        drainers = [Drainer(python, url, records) for python in pythons]
        for each in drainers:
            closing.callback(each.end)
            each.drain()  # warms Java up
        rounds = [[each.drain() for each in drainers] for _ in range(arguments.rounds)]
        for name in Took._fields:
            ratios = [getattr(two, name) / getattr(one, name) for one, two in rounds]
            shown = ", ".join(f"{getattr(one, name):.2f}/{getattr(two, name):.2f}" for one, two in rounds)
            print(
                f"drain of {records:,} records, {name}: {second} / {first} = {median(ratios):.2f} ({shown})", flush=True
            )
        idle(pythons, (first, second), url, Path(place), arguments.idle_seconds)


def cpu_by_process(pid: int) -> dict[int, float]:
    """Return the CPU seconds of a process and its descendants. Spark ends workers that wait: they are left out."""
    found = {}
    for each in tree(pid):
        with suppress(OSError):
            stat = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
            found[each] = sum(map(int, stat[11:13])) / TICKS_PER_SECOND
    return found


def idle(pythons: list[Path], versions: tuple[str, str], url: str, place: Path, seconds: float) -> None:
    """Print what two drains that wait cost, watched at the same time."""
    with ExitStack() as running:
        drains = [
            running.enter_context(waiting(python, url, place / version))
            for python, version in zip(pythons, versions, strict=True)
        ]
        time.sleep(SETTLE_SECONDS)
        before = [cpu_by_process(each) for each in drains]
        time.sleep(seconds)
        after = [cpu_by_process(each) for each in drains]
        one, two = (
            sum(cpu - then.get(each, 0.0) for each, cpu in now.items()) for then, now in zip(before, after, strict=True)
        )
    print(f"idle, CPU: {versions[1]} / {versions[0]} = {two / one:.2f} ({one / seconds:.2%}, {two / seconds:.2%})")


if __name__ == "__main__":
    main()
