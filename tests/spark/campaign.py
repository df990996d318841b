"""Exactly once under SIGKILL: `python -m tests.spark.campaign --kills 5`.

A feeder appends to a service and creates queues while a drain runs. Driver and JVM are killed as often as requested:
in turns before a step of the commit of a batch, and at a random moment after they have committed one. Then the feeder
ends, and one more drain catches up. Every acknowledged record must be in the table once, at its position, with its
payload, and the log must be empty.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from mrecordlog_async.model import Run
from mrecordlog_async.spark.client import ServiceClient
from mrecordlog_async.spark.drain import run_drain
from mrecordlog_async.spark.option_values import Server
from mrecordlog_async.spark.preflight import DrainJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_PER_APPEND = 40
APPENDS_PER_QUEUE = 200
DEADLINE_SECONDS = 120

COMMIT_STEPS = ("commit", "sync of the entry", "end of the commit", "sync of the checkpoint")
"""Before which steps of a commit the drain dies, in turns."""


@dataclass(slots=True)
class Outcome:
    """What happened in a campaign."""

    kills: int
    records: int
    queues: int
    batches_at_kills: list[int] = field(default_factory=list)


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve a log in its own process; yield its address."""
    command = [sys.executable, "-m", "mrecordlog_async", "serve", str(directory), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found is not None, "the service did not start"
            yield found[0]
        finally:
            process.terminate()
            process.communicate(timeout=60)


class Feeder(threading.Thread):
    """Appends to a few queues at a time until it is stopped, and remembers what was acknowledged."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[str, int] = {}
        self._client = client_of(url)
        self._random = random.Random(seed)
        self._ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ended.wait(0.02):  # about 2,000 records per second, so that there is always more to come
            queue = f"queue-{number // APPENDS_PER_QUEUE * 3 + self._random.randrange(3)}"
            next_position = self.acknowledged.get(queue, 0)
            run = Run.of(next_position, [payload(queue, next_position + n) for n in range(RECORDS_PER_APPEND)])
            self._client.append(queue, [run], position=next_position, create=True)
            self.acknowledged[queue] = run.next_position
            number += 1

    def end(self) -> dict[str, int]:
        """Stop appending; return queue → next position."""
        self._ended.set()
        self.join(DEADLINE_SECONDS)
        self._client.close()
        return self.acknowledged


def run_campaign(session: SparkSession, place: Path, kills: int, seed: int) -> Outcome:
    """Run one campaign in *place*; raise AssertionError if a record is missing, stored twice or changed."""
    chance = random.Random(seed)
    output, checkpoint = place / "out", place / "checkpoint"
    outcome = Outcome(kills, 0, 0)
    with served(place / "wal") as url:
        feeder = Feeder(url, seed)
        feeder.start()
        for number in range(kills):
            if number % 2:
                kill_one(url, output, checkpoint, chance)
            else:
                die_inside(url, output, checkpoint, COMMIT_STEPS[(seed + number // 2) % len(COMMIT_STEPS)])
            outcome.batches_at_kills.append(committed(checkpoint))
        acknowledged = feeder.end()
        job = DrainJob(f"a={url}", str(output), str(checkpoint))
        summary = run_drain(session, job)
        assert summary.left == {"a": 0}, summary
        outcome.records, outcome.queues = sum(acknowledged.values()), len(acknowledged)
        check_output(output, acknowledged)
        check_log(url, acknowledged)
    return outcome


def kill_one(url: str, output: Path, checkpoint: Path, chance: random.Random) -> None:
    """Start a driver, wait until it has committed two more batches, and kill it and its JVM after a random time."""
    before = committed(checkpoint)
    driver = started_drain(url, output, checkpoint, "mrecordlog_async.spark", {})
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while committed(checkpoint) < before + 2:
            assert driver.poll() is None, f"the drain ended by itself: {messages_of(output)}"
            assert time.monotonic() < deadline, "the drain commits nothing"
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1.5))
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def die_inside(url: str, output: Path, checkpoint: Path, step: str) -> None:
    """Start a driver that kills itself and its JVM before *step* of the commit of its second batch from now."""
    deadly = {"DEADLY_STEP": step, "DEADLY_BATCH": str(committed(checkpoint) + 1)}
    driver = started_drain(url, output, checkpoint, "tests.spark.deadly_drain", deadly)
    try:
        assert driver.wait(DEADLINE_SECONDS) == -signal.SIGKILL, f"the drain ended by itself: {messages_of(output)}"
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def started_drain(
    url: str, output: Path, checkpoint: Path, module: str, more: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a drain that runs until it is killed. more: of its environment."""
    command = [sys.executable, "-m", module, "drain", "--server", f"a={url}", "--every", "100ms"]
    command += ["--output", str(output), "--checkpoint", str(checkpoint), "--master", "local[2]"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(root), **more}
    with open(output.parent / "driver.txt", "ab") as messages:
        return subprocess.Popen(
            command, stdout=messages, stderr=messages, env=environment, start_new_session=True, cwd=output.parent
        )


def messages_of(output: Path) -> str:
    """Return the end of what the drivers printed."""
    return (output.parent / "driver.txt").read_text()[-2_000:]


def committed(checkpoint: Path) -> int:
    """Return how many batches have been committed, including those whose files Spark has deleted."""
    commits = checkpoint / "commits"
    names = os.listdir(commits) if commits.exists() else []
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)


def check_output(output: Path, acknowledged: dict[str, int]) -> None:
    """Compare what delta-rs reads with what was acknowledged."""
    rows = DeltaTable(str(output)).to_pyarrow_table(columns=["queue", "position", "payload"]).to_pylist()
    assert all(row["payload"] == payload(row["queue"], row["position"]) for row in rows)
    found = sorted((row["queue"], row["position"]) for row in rows)
    assert found == [(queue, at) for queue in sorted(acknowledged) for at in range(acknowledged[queue])]


def check_log(url: str, acknowledged: dict[str, int]) -> None:
    """Check that the log is empty, and that no position was lost."""
    client = client_of(url)
    listing = {queue.queue: (queue.records, queue.next_position) for queue in client.queues()}
    client.close()
    assert listing == {queue: (0, following) for queue, following in acknowledged.items()}


def payload(queue: str, position: int) -> bytes:
    return f"{queue}:{position}".encode()


def client_of(url: str) -> ServiceClient:
    return ServiceClient(Server("a", url), token=None, timeout_seconds=60, retries=10)


def main() -> None:
    from mrecordlog_async.spark.session import spark_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    session = spark_session("campaign", master="local[2]", settings={"spark.ui.enabled": "false"})
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-") as place:
        begun = time.monotonic()
        outcome = run_campaign(session, Path(place), arguments.kills, arguments.seed)
    session.stop()
    print(
        f"{outcome.kills} kills (after batches {outcome.batches_at_kills}), {outcome.records:,} of {outcome.records:,} "
        f"records of {outcome.queues} queues exactly once, the log is empty; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
