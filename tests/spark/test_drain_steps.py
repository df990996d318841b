"""What a drain refuses before it starts, without Spark. For table and checkpoint, see test_delta_start."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async.servers import outages as absences
from mrecordlog_async.spark.checkpoints.batches import OFFSETS, SparkBatches
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.drain.steps import held_back, impatient, refuse_unsafe, remaining
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.drain_job import DrainJob
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.options import Options
from tests.spark.canned import misbehaving
from tests.spark.services import ThreadedService, numbered

JOB = DrainJob("http://127.0.0.1:1", "/lake/out", "/lake/checkpoint")


def refuse(job: DrainJob, *, local: bool = True, master: str = "local[2]") -> None:
    refuse_unsafe(job, local=local, master=master)


def test_local_paths_on_several_machines_are_refused() -> None:
    """On a local path, each machine would store only its part."""
    with pytest.raises(RefusedError, match="all machines share"):
        refuse(JOB, master="spark://host:7077")
    refuse(JOB, master="spark://host:7077", local=False)
    refuse(replace(JOB, truncate=False), master="spark://host:7077")


def test_local_paths_that_every_machine_mounts_are_allowed() -> None:
    """A local path is allowed on a cluster only if the user says that every machine mounts it."""
    refuse(replace(JOB, shared_paths=True), master="spark://host:7077")


def test_latest_and_truncate_are_refused() -> None:
    """With startingOffsets=latest, the first truncate would delete records that were never read."""
    with pytest.raises(RefusedError, match="requires startingOffsets=earliest"):
        refuse(replace(JOB, options={"startingOffsets": "latest"}))
    refuse(replace(JOB, options={"startingOffsets": "latest"}, truncate=False))


@pytest.mark.parametrize("columns", [("payload",), ("queue", "queue")])
def test_other_columns_cannot_name_directories(columns: tuple[str, ...]) -> None:
    """A table can be partitioned by server, queue and date, each once."""
    with pytest.raises(RefusedError, match="choose from server, queue"):
        refuse(replace(JOB, partition_by=columns))


def test_a_consumer_excludes_what_contradicts_it() -> None:
    """A consumer acknowledges; a take-over names what it takes over."""
    job = DrainJob("http://127.0.0.1:1", "/lake/out", "/lake/checkpoint", consumer="lake", take_over=True)
    refuse(job)
    for wrong, why in (
        (replace(job, consumer=None), "name it with --consumer"),
        (replace(job, truncate=False), "set one of them"),
        (replace(job, options={"startingOffsets": "latest"}), "requires startingOffsets=earliest"),
    ):
        with pytest.raises(RefusedError, match=why):
            refuse(wrong)


@pytest.mark.parametrize("broken", ["502", "404"])
def test_a_server_that_does_not_respond_is_asked_once_at_the_end(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """The summary waits for one timeout, which all servers share: a service manager waits a minute for a stop."""
    monkeypatch.setattr(absences, "RETRY_SECONDS", 600.0)
    service.append("q", numbered("q", 0, 3))
    with misbehaving(broken) as (url, requests), closing(LocalLake(str(tmp_path))) as lake:
        lake.write(f"{OFFSETS}/0", f"v1\n{{}}\n{json.dumps(Offset().encode())}".encode())
        job = replace(JOB, servers=f"a={service.url},b={url},c={url}")
        with closing(Fleet(impatient(Options.parse(job.source_options())))) as fleet:
            left, down = remaining(job, fleet, DrainProgress())
            assert held_back(fleet, SparkBatches(lake)) == {}
        assert (left, list(down), len(requests)) == ({"a": 3}, ["b", "c"], 2)
