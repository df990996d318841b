"""`lake show`: what people and programs see of a table, and from which log each position comes."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import asdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from mrecordlog_async.cli.main import main
from mrecordlog_async.spark.drain_call import DrainOptions, drain
from mrecordlog_async.spark.lake_show import show
from mrecordlog_async.spark.table_entries import entry_name
from mrecordlog_async.spark.table_files import TableFiles
from tests.spark.conftest import NewService
from tests.spark.services import numbered

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def shown(table: Path | str) -> dict[str, Any]:
    """Return what is shown, as plain values."""
    return asdict(show(TableFiles(str(table), {})))


def test_each_position_names_its_log(
    new_service: NewService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each drain that writes to the table, with the server that the log had and the queue's id."""
    one, two, table = new_service(), new_service(), tmp_path / "table"
    one.append("q", numbered("q", 0, 10))
    two.append("q", numbered("q", 0, 3))
    two.append("r", numbered("r", 0, 5))
    drain(DrainOptions(f"a={one.url},b={two.url}", str(table), partition_by=("queue",), subscribe=("q",)))
    drain(DrainOptions(f"c={two.url}", str(table), name="second", subscribe=("r",)))
    found = shown(table)
    assert (found["rows"], found["partition_by"], found["partitions"], found["earlier"]) == (18, ["queue"], 2, None)
    assert found["columns"]["payload"] == "binary" and found["bytes"] > 0
    logs = {each.log.inspection.public_id: each for each in (one, two)}
    first, second = found["drains"]["drain"], found["drains"]["second"]
    assert first["logs"].keys() == logs.keys() and first["batch"] == second["batch"] == 1
    ends = {
        (each["server"], queue): position
        for each in first["logs"].values()
        for queue, (_, position) in each["queues"].items()
    }
    assert ends == {("a", "q"): 10, ("b", "q"): 3}
    (log,) = second["logs"].values()
    assert (log["server"], [*log["queues"]]) == ("c", ["r"])
    assert main(["lake", "show", str(table)]) == 0
    said = capsys.readouterr().out
    assert "18 rows in" in said and "2 partitions by queue" in said and "drain 'second', up to batch 1:" in said
    assert "'q' (id " in said and "up to position 9" in said


def test_a_table_that_no_drain_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown, whatever statistics another engine states."""
    path = str(tmp_path / "table")
    row = {"d": Decimal("1.50"), "b": b"x", "s": {"n": Decimal(2)}, "day": date(2026, 1, 1), "at": datetime.now(UTC)}
    for _ in range(2):
        write_deltalake(path, pa.Table.from_pylist([row]), mode="append")
    found = shown(path)
    assert (found["version"], found["rows"], found["files"], found["drains"]) == (1, 2, 2, {})
    assert main(["lake", "show", path]) == 0
    assert "not written by a drain" in capsys.readouterr().out


def test_what_is_no_table_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And another table is not taken for the one that is named: delta-rs decodes such a path."""
    assert main(["lake", "show", str(tmp_path / "none")]) == 1
    assert f"the table at {tmp_path / 'none'} cannot be used" in capsys.readouterr().err
    for name, other in (("a%20b", "a b"), ("a\\b", "a/b")):
        write_deltalake(tmp_path / other, pa.table({"number": [1, 2, 3]}))
        shutil.copytree(tmp_path / other, tmp_path / name)
        assert main(["lake", "show", str(tmp_path / name)]) == 1
        assert f"somewhere else than {tmp_path / name}" in capsys.readouterr().err


# Rows that a deletion vector deletes.


def test_deleted_rows_are_not_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file still has them, and its entry counts them."""
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"payload": [b"%d" % number for number in range(5)]}))
    DeltaTable(path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    _delete(path, [1, 4])
    assert shown(path)["rows"] == 3


def _delete(path: Path, rows: list[int]) -> None:
    """Delete rows of the only file, as Spark does: the file stays, with a vector that has their numbers."""
    actions = [json.loads(line) for line in (path / entry_name(0)).read_text().splitlines()]
    (add,) = (each["add"] for each in actions if "add" in each)
    vector = _vector(rows)
    told = {"storageType": "i", "pathOrInlineDv": _z85(vector), "sizeInBytes": len(vector), "cardinality": len(rows)}
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True, "size": add["size"]}
    new = [{"commitInfo": {"operation": "DELETE"}}, {"remove": removed}, {"add": add | {"deletionVector": told}}]
    (path / entry_name(DeltaTable(path).version() + 1)).write_text("\n".join(json.dumps(each) for each in new))


def _vector(rows: list[int]) -> bytes:
    """Return a bitmap of row numbers below 65,536: Delta's frame around one Roaring bitmap with one array."""
    array = b"".join(struct.pack("<H", row) for row in rows)
    bitmap = struct.pack("<IIHHI", 12_346, 1, 0, len(rows) - 1, 16) + array
    return struct.pack("<IQI", 1_681_511_377, 1, 0) + bitmap


def _z85(content: bytes) -> str:
    found = ""
    for at in range(0, len(content), 4):
        number = int.from_bytes(content[at : at + 4].ljust(4, b"\0"))
        found += "".join(Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return found


def test_a_drain_that_commits_meanwhile_is_shown(
    new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the positions that the version had which was loaded before."""
    service, table = new_service(), tmp_path / "table"
    options = DrainOptions(service.url, str(table))
    service.append("q", numbered("q", 0, 3))
    drain(options)
    read, due = TableFiles.read, [True]

    def read_late(self: TableFiles, name: str) -> bytes | None:
        if due:
            due.clear()
            service.append("q", numbered("q", 3, 6))
            drain(options)
        return read(self, name)

    monkeypatch.setattr(TableFiles, "read", read_late)
    (log,) = show(TableFiles(str(table))).drains["drain"].logs.values()
    assert log.queues["q"][1] == 6
