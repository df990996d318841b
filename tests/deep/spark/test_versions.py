"""Each supported Spark in its own environment: `SPARK_VERSIONS=DIRECTORY pytest tests/deep/spark/test_versions.py`.

`python -m tests.spark.versions DIRECTORY` makes the environments. Without them, there is only the newest Spark, which
all other tests use.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark import versions
from tests.spark.processes import ROOT, DrainProcess
from tests.spark.services import ThreadedService, numbered
from tests.spark.versions import installed

LAST_STEP = {"tests.spark.stopping_drain": "the look at the commit", "tests.spark.stream_job": "stored"}
"""Program → the step before which its batch is in the table, and the log not released."""

RECORDS = 500

needs_versions = pytest.mark.skipif(
    len(installed()) < 2, reason=f"{versions.VARIABLE} names no directory with other versions of Spark"
)


class Log:
    """A service, and what was appended to it."""

    def __init__(self, service: ThreadedService) -> None:
        self.service = service
        self.ends: dict[str, int] = {}

    def feed(self, *queues: str) -> None:
        for queue in queues:
            first = self.ends.get(queue, 0)
            self.ends[queue] = first + RECORDS
            self.service.append(queue, numbered(queue, first, first + RECORDS))

    def wait_until_empty(self, run: DrainProcess) -> None:
        still = run.still_runs("it leaves records")
        while any(self.service.records().values()):
            still()
            time.sleep(0.1)

    def rows(self) -> list[tuple[str, int, bytes]]:
        return sorted(
            (queue, at, payload)
            for queue, end in self.ends.items()
            for at, payload in enumerate(numbered(queue, 0, end))
        )


@needs_versions
@pytest.mark.nightly
@pytest.mark.timeout(3_600)  # Spark starts seven times, on a machine that may do other things
@pytest.mark.parametrize("module", LAST_STEP)
def test_a_checkpoint_continues_over_all_versions_and_back(
    service: ThreadedService, tmp_path: Path, module: str
) -> None:
    """Each version finishes the batch that another one began, to the newest and back; each record is stored once."""
    log, pythons = Log(service), installed()
    more = [] if "drain" in module else ["--checkpoint", str(tmp_path / "checkpoint")]
    order = [*pythons, *list(pythons)[-2::-1]]
    for number, minor in enumerate(order):
        place, python = tmp_path / f"run-{number}", pythons[minor]
        run = DrainProcess(module, {"a": service.url}, tmp_path / "table", place, *more, python=python)
        run.start()
        try:
            log.feed("q", f"new in run {number}")
            log.wait_until_empty(run)
            run.stops.want(LAST_STEP[module])
            log.feed("q", f"left by run {number}")
            run.stops.wait(run.still_runs(f"{minor} begins no batch"))
        finally:
            run.kill()
    last = DrainProcess(
        module, {"a": service.url}, tmp_path / "table", tmp_path / "last", *more, python=pythons[order[-1]]
    )
    last.start()
    try:
        log.wait_until_empty(last)
        assert last.terminate() == 0, last.said()
    finally:
        last.kill()
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["queue", "position", "payload"])
    assert sorted(tuple(row.values()) for row in table.to_pylist()) == log.rows()


@needs_versions
@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("minor", installed())
def test_reads_and_writes(service: ThreadedService, tmp_path: Path, minor: str) -> None:
    """Tables, positions alone, times, exact writes, written streams, and a drain: on each version."""
    python = installed()[minor]
    service.append("q", numbered("q", 0, 100))
    drain = [python, "-m", "mrecordlog_async", "drain", "--server", f"a={service.url}", "--no-truncate"]
    subprocess.run([*drain, "--output", str(tmp_path / "table"), "--once"], check=True, capture_output=True)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 100
    program = [python, "-m", "tests.spark.reads_and_writes", service.url, str(tmp_path)]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stdout.splitlines() == [
        "table 100 q:99",
        "positions ['server', 'queue', 'queue_id', 'position', 'timestamp']",
        "a day of 2020 0",
        "written 100",
        "streamed 100",
    ], ran.stderr[-2_000:]
