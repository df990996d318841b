"""A new checkpoint for a table whose own is lost: where it continues, and what others may do meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.spark.delta import resume as resume_module
from mrecordlog_async.spark.local_lake import LocalLake
from tests.spark.conftest import NewService
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import ThreadedService, numbered


def rows(stop: int) -> list[tuple[str, int, bytes]]:
    return [("q", at, each) for at, each in enumerate(numbered("q", 0, stop))]


def resumed(engine: DeltaEngine, path: Path) -> dict[str, dict[str, int]]:
    checkpoint = LocalLake(str(path))
    try:
        return resume_module.resume(engine.place, checkpoint)
    finally:
        checkpoint.close()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("a", "c", "b")])
def test_a_queue_whose_server_was_renamed_continues_after_all_of_its_rows(
    service: ThreadedService, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Rows of one queue id under several names are of one queue: nothing is lost, and nothing is stored twice."""
    engine = DeltaEngine("", tmp_path)
    for first, name in enumerate(names):
        engine.given["servers"] = f"{name}={service.url}"
        service.append("q", numbered("q", 10 * first, 10 * first + 10))
        engine.drain()
    end = 10 * len(names)
    engine.checkpoint_path = tmp_path / "new"
    assert resumed(engine, engine.checkpoint_path) == {names[-1]: {"q": end}}
    service.append("q", numbered("q", end, end + 10))
    engine.drain()
    assert engine.rows() == rows(end + 10) and not any(service.records().values())


def test_queues_of_one_name_on_two_servers_stay_apart(new_service: NewService, tmp_path: Path) -> None:
    """Each log has other queue ids, so each queue continues after its own rows."""
    services = new_service(), new_service()
    engine = DeltaEngine(",".join(f"{name}={each.url}" for name, each in zip("ab", services, strict=True)), tmp_path)
    for service, stop in zip(services, (10, 5), strict=True):
        service.append("q", numbered("q", 0, stop))
    engine.drain()
    engine.checkpoint_path = tmp_path / "new"
    assert resumed(engine, engine.checkpoint_path) == {"a": {"q": 10}, "b": {"q": 5}}
    for service, stop in zip(services, (10, 5), strict=True):
        service.append("q", numbered("q", stop, 15))
    engine.drain()
    assert engine.rows() == sorted(rows(15) * 2)
