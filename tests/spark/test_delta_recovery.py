"""Half-written checkpoints of a table, of this and of other engines, and those that another program writes now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.entries import entry_name
from mrecordlog_async.spark.delta.recovery import LAST_CHECKPOINT, SIDECARS, repair_table

V2 = "00000000000000000002.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11"


@pytest.fixture
def table(tmp_path: Path) -> LocalLake:
    """Three versions without a checkpoint."""
    path = tmp_path / "table"
    for number in range(3):
        write_deltalake(path, pa.table({"x": [number]}), mode="append")
    return LocalLake(str(path))


def v2_checkpoint(table: LocalLake, kind: str) -> Path:
    """Write a checkpoint with the V2 specification, as other engines do: its files are named in a sidecar."""
    log = Path(table.path, "_delta_log")
    entries = [json.loads(line) for number in range(3) for line in (log / entry_name(number)).read_bytes().splitlines()]
    (log / SIDECARS).mkdir()
    pq.write_table(
        pa.table({"add": [each["add"]["path"] for each in entries if "add" in each]}), log / SIDECARS / "s.parquet"
    )
    sidecar = {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    metadata = next(each for each in entries if "metaData" in each)
    actions = [{"checkpointMetadata": {"version": 2}}, metadata, sidecar]
    checkpoint = log / f"{V2}.{kind}"
    if kind == "json":
        checkpoint.write_text("\n".join(json.dumps(each) for each in actions))
    else:
        pq.write_table(pa.table({"sidecar": [None, None, sidecar["sidecar"]]}), checkpoint)
    return checkpoint


def rows(table: LocalLake) -> list[int]:
    found: list[int] = DeltaTable(table.path).to_pyarrow_table()["x"].to_pylist()
    return sorted(found)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_checkpoint_of_another_engine_stays(table: LocalLake, kind: str) -> None:
    """It is whole, and so are the files that it names."""
    checkpoint = v2_checkpoint(table, kind)
    assert repair_table(table) == [] and checkpoint.exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "cut after a line", "cut sidecar", "no sidecar"])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_half_written_checkpoint_of_another_engine_is_removed(table: LocalLake, kind: str, damage: str) -> None:
    """No reader could open the table by it, and the entries have all that it sums up."""
    checkpoint = v2_checkpoint(table, kind)
    sidecar = checkpoint.parent / SIDECARS / "s.parquet"
    if damage == "cut":
        cut(checkpoint)
    elif damage == "empty":
        checkpoint.write_bytes(b"")
    elif damage == "cut after a line":
        checkpoint.write_bytes(b"".join(checkpoint.read_bytes().splitlines(keepends=True)[1:]))
    elif damage == "cut sidecar":
        cut(sidecar)
    else:
        sidecar.unlink()
    assert repair_table(table) == ["the checkpoint of version 2 of the table cannot be read and is removed"]
    assert not checkpoint.exists() and rows(table) == [0, 1, 2]


def test_the_only_checkpoint_is_not_removed(table: LocalLake) -> None:
    """The entries that it sums up are deleted: what it holds is nowhere else."""
    checkpoint = v2_checkpoint(table, "json")
    for number in range(2):
        (checkpoint.parent / entry_name(number)).unlink()
    cut(checkpoint)
    with pytest.raises(TableError, match="restore the table from a copy"):
        repair_table(table)
    assert checkpoint.exists()


def test_a_checkpoint_that_another_program_writes_now_stays(table: LocalLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written, and then the pointer to it, between two looks at the table's log."""
    pointer, read = f"_delta_log/{LAST_CHECKPOINT}", LocalLake.read

    def late(lake: LocalLake, name: str) -> Any:
        if name == pointer:
            DeltaTable(table.path).create_checkpoint()
        return read(lake, name)

    monkeypatch.setattr(LocalLake, "read", late)
    assert repair_table(table) == []
    assert Path(table.path, pointer).exists() and rows(table) == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 7}'])
def test_a_pointer_to_no_checkpoint_is_removed(table: LocalLake, content: bytes) -> None:
    """It is half written, or its checkpoint is lost."""
    DeltaTable(table.path).create_checkpoint()
    pointer = Path(table.path, "_delta_log", LAST_CHECKPOINT)
    pointer.write_bytes(content)
    assert repair_table(table) == [f"{LAST_CHECKPOINT} of the table was half written and is removed"]
    assert not pointer.exists() and rows(table) == [0, 1, 2]
