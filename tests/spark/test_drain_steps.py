"""What a drain refuses before it starts, without Spark. For table and checkpoint, see test_delta_start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.drain.steps import refuse_unsafe
from mrecordlog_async.spark.settings.drain_job import DrainJob

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
