"""A batch that a crash left in the table without a commit file, and that cannot be read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mrecordlog_async.spark.delta.content import ForeignBatchError
from mrecordlog_async.spark.settings.offset import Offset
from tests.spark.conftest import NewService
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import ThreadedService, numbered


def begun(new_service: NewService, tmp_path: Path, step: str) -> tuple[DeltaEngine, ThreadedService, ThreadedService]:
    """Drain two services, and die before *step* of a batch that both are part of."""
    a, b = new_service(), new_service()
    engine = DeltaEngine(f"a={a.url},b={b.url}", tmp_path, truncate="false")
    for name, service in (("qa", a), ("qb", b)):
        service.append(name, numbered(name, 0, 3))
    engine.drain()
    for name, service in (("qa", a), ("qb", b)):
        service.append(name, numbered(name, 3, 6))
    assert engine.kill_at(step)
    return engine, a, b


def log_of(engine: DeltaEngine, server: str) -> str:
    """Return the log that the newest offset knows under a name."""
    newest = max((engine.checkpoint_path / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    found = Offset.decode(json.loads(newest.read_text().split("\n")[2]))
    (log,) = (log for log, name in found.servers.items() if name == server)
    return log


@pytest.mark.parametrize("step", ["sync of the entry", "commits"])
def test_a_stored_batch_of_a_forgotten_log_is_confirmed(new_service: NewService, tmp_path: Path, step: str) -> None:
    """The log's rows are in the table: the drain goes on after them, with the other log and with the new one."""
    engine, a, b = begun(new_service, tmp_path, step)
    engine.given["forget"] = log_of(engine, "b")[:8]
    b.replace_by_nothing()
    b.append("new", numbered("new", 0, 2))
    a.append("qa", numbered("qa", 6, 8), 6)
    for _ in range(2):
        engine.drain()
        assert engine.rows() == [
            (queue, at, payload)
            for queue, stop in (("new", 2), ("qa", 8), ("qb", 6))
            for at, payload in enumerate(numbered(queue, 0, stop))
        ]


def test_a_stored_batch_of_a_queue_that_was_deleted_is_confirmed(new_service: NewService, tmp_path: Path) -> None:
    """What is lost is in the table already; only a drain that may lose records gets so far."""
    engine, _, b = begun(new_service, tmp_path, "commits")
    engine.given["failOnDataLoss"] = "false"
    b.delete("qb")
    engine.drain()
    assert [row[1] for row in engine.rows() if row[0] == "qb"] == list(range(6))


def test_a_batch_that_is_not_in_the_table_runs_without_the_forgotten_log(
    new_service: NewService, tmp_path: Path
) -> None:
    """Nothing is confirmed that the table does not have."""
    engine, _, b = begun(new_service, tmp_path, "commit")
    engine.given["forget"] = log_of(engine, "b")[:8]
    b.replace_by_nothing()
    engine.drain()
    assert [(queue, at) for queue, at, _ in engine.rows()] == [("qa", at) for at in range(6)] + [
        ("qb", at) for at in range(3)
    ]


def test_a_stored_batch_with_other_records_is_not_confirmed(new_service: NewService, tmp_path: Path) -> None:
    """A copy of the checkpoint may have planned a batch of the same number that holds other records."""
    engine, a, b = begun(new_service, tmp_path, "offsets")
    one, two = engine.checkpoint_path, tmp_path / "copied"
    shutil.copytree(one, two)
    assert engine.kill_at("files")
    a.append("qa", numbered("qa", 6, 8), 6)
    engine.checkpoint_path = two
    assert engine.kill_at("files")
    engine.checkpoint_path = one
    assert engine.kill_at("commits")
    engine.checkpoint_path = two
    engine.given["forget"] = log_of(engine, "b")[:8]
    b.replace_by_nothing()
    with pytest.raises(ForeignBatchError, match="with other records"):
        engine.drain()
    assert len(engine.rows()) == 12
