"""A new checkpoint for a table whose own is lost: where it continues, and what others may do meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from mrecordlog_async.cli.main import main
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta import resume as resume_module
from mrecordlog_async.spark.delta.content import ForeignBatchError, TableError
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.rows.blocks import READ_SCHEMA
from mrecordlog_async.spark.settings.offset import Offset
from tests.spark.conftest import NewService
from tests.spark.delta_engine import DeltaEngine, Killed
from tests.spark.services import ThreadedService, numbered
from tests.spark.test_delta_start import mapped

positions, write = resume_module.positions, LocalLake.write


@pytest.fixture
def engine(service: ThreadedService, tmp_path: Path) -> DeltaEngine:
    """Drain ten records."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 10))
    engine.drain()
    return engine


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


def test_a_drain_that_still_runs_stores_nothing_more(
    engine: DeltaEngine, service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is refused as soon as the table is read for the new checkpoint, which would not count the batch."""
    with engine.started() as run:

        def meanwhile(place: TablePlace) -> Offset:
            found = positions(place)
            service.append("q", numbered("q", 10, 20))
            with pytest.raises(ForeignBatchError, match="belongs to another checkpoint now"):
                run.batch()
            return found

        monkeypatch.setattr(resume_module, "positions", meanwhile)
        assert resumed(engine, tmp_path / "new") == {"a": {"q": 10}}
    engine.checkpoint_path = tmp_path / "new"
    engine.drain()
    assert engine.rows() == rows(20)


def test_a_batch_without_rows_does_not_give_a_drain_its_table_back(
    engine: DeltaEngine, service: ThreadedService, tmp_path: Path
) -> None:
    """The batch after it is refused, although nobody else has written to the table in between."""
    with engine.started() as run:
        assert resumed(engine, tmp_path / "new") == {"a": {"q": 10}}
        service.append("new queue", numbered("new queue", 0, 10))
        with pytest.raises(ForeignBatchError, match="belongs to another checkpoint now"):
            while run.batch():
                pass
    assert service.positions("new queue") == (0, 10) and engine.rows() == rows(10)


@pytest.mark.parametrize("step", ["offsets/0", "commits/0", "owner"])
def test_a_resume_that_was_killed_runs_again(
    engine: DeltaEngine,
    service: ThreadedService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: str,
) -> None:
    """Until then every drain is refused, and says what to run; afterwards each row is stored once."""

    def killed(place: TablePlace, query: str) -> NoReturn:
        raise Killed

    def killed_at_step(lake: LocalLake, name: str, content: bytes) -> None:
        if name == step:
            raise Killed
        write(lake, name, content)

    new = tmp_path / "new"
    with monkeypatch.context() as dying:
        dying.setattr(LocalLake, "write", killed_at_step)
        if step == "owner":
            dying.setattr(resume_module, "_finish", killed)
        with pytest.raises(Killed):
            resumed(engine, new)
    service.append("q", numbered("q", 10, 20))
    for checkpoint in (engine.checkpoint_path, new):
        engine.checkpoint_path = checkpoint
        with pytest.raises(RefusedError, match=r"`mrecordlog lake resume` of the table .* has not finished: run it"):
            engine.drain()
    assert main(["lake", "show", str(engine.table_path)]) == 0
    assert "`mrecordlog lake resume` of it has not finished" in capsys.readouterr().out
    assert resumed(engine, new) == {"a": {"q": 10}}
    engine.drain()
    assert engine.rows() == rows(20)


def test_of_two_resumes_the_later_one_has_the_table(
    engine: DeltaEngine, service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one says so: its checkpoint would store again what the drain of the later one stores."""
    one, two = tmp_path / "one", tmp_path / "two"

    def meanwhile(place: TablePlace) -> Offset:
        monkeypatch.setattr(resume_module, "positions", positions)
        resumed(engine, two)
        return positions(place)

    monkeypatch.setattr(resume_module, "positions", meanwhile)
    with pytest.raises(RefusedError, match="another `mrecordlog lake resume` took the table"):
        resumed(engine, one)
    service.append("q", numbered("q", 10, 20))
    engine.checkpoint_path = one
    with pytest.raises(RefusedError, match="written with another checkpoint"):
        engine.drain()
    engine.checkpoint_path = two
    engine.drain()
    assert engine.rows() == rows(20)


def test_the_checkpoint_may_be_a_file_url(
    engine: DeltaEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the directory that a drain makes of this URL; an address that is not on this machine is refused."""
    monkeypatch.chdir(tmp_path)
    before, new = {path.name for path in tmp_path.iterdir()}, tmp_path / "new"
    command = ["lake", "resume", str(engine.table_path), "--checkpoint"]
    assert main([*command, "s3://bucket/checkpoint"]) == 2
    assert "on a disk of this machine, not at s3://bucket/checkpoint" in capsys.readouterr().err
    assert main([*command, new.as_uri()]) == 0
    assert (new / "commits" / "0").exists() and {path.name for path in tmp_path.iterdir()} == before | {"new"}


@pytest.mark.parametrize("missing", ["server", "queue", "queue_id", "position"])
def test_rows_of_other_writers_say_nothing_about_a_queue(
    engine: DeltaEngine, service: ThreadedService, tmp_path: Path, missing: str
) -> None:
    """Others may append rows that have no position, or no queue: reading continues after those of the drain."""
    row = {"server": "a", "queue": "q", "queue_id": 1, "position": 99, "timestamp": datetime.now(UTC), "payload": b""}
    write_deltalake(engine.place.uri, pa.Table.from_pylist([row | {missing: None}], READ_SCHEMA), mode="append")
    assert resumed(engine, tmp_path / "new") == {"a": {"q": 10}}
    engine.checkpoint_path = tmp_path / "new"
    service.append("q", numbered("q", 10, 20))
    engine.drain()
    assert DeltaTable(engine.place.uri).to_pyarrow_table(columns=["position"]).num_rows == 21


@pytest.mark.parametrize("feature", [TableFeatures.DeletionVectors, TableFeatures.V2Checkpoint])
def test_a_table_with_a_feature_that_a_drain_goes_on_with_can_be_resumed(
    engine: DeltaEngine, service: ThreadedService, tmp_path: Path, feature: TableFeatures
) -> None:
    """Spark deletes rows with deletion vectors: neither the drain nor a new checkpoint for it needs to know."""
    DeltaTable(engine.place.uri).alter.add_feature(feature, allow_protocol_versions_increase=True)
    assert resumed(engine, tmp_path / "new") == {"a": {"q": 10}}
    engine.checkpoint_path = tmp_path / "new"
    service.append("q", numbered("q", 10, 20))
    engine.drain()
    assert positions(engine.place).next_positions() == {"a": {"q": 20}}


def test_a_table_that_no_drain_may_write_keeps_its_owner(engine: DeltaEngine, tmp_path: Path) -> None:
    """Mapped columns are refused before the table is changed."""
    mapped(engine)
    version = DeltaTable(engine.place.uri).version()
    with pytest.raises(TableError, match="maps the names of its columns"):
        resumed(engine, tmp_path / "new")
    assert DeltaTable(engine.place.uri).version() == version


@pytest.mark.parametrize("name", ["checkpoint", "."])
def test_the_checkpoint_is_not_inside_the_table(
    engine: DeltaEngine, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """No drain would start with it, because a vacuum would delete its files; the table keeps its owner."""
    before = sorted(engine.table_path.rglob("*"))
    inside = str(engine.table_path / name)
    assert main(["lake", "resume", str(engine.table_path), "--checkpoint", inside]) == 2
    assert "is inside the table" in capsys.readouterr().err
    assert sorted(engine.table_path.rglob("*")) == before
    engine.drain()
