"""What people see of a table that other engines write, too."""

from __future__ import annotations

import json
import shutil
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from mrecordlog_async.cli.main import main
from mrecordlog_async.spark.delta.entries import entry_name
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.upkeep import Replaced, drop_older, open_table, optimize

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five rows, of which 1, 2 and 3 did not parse; then 1 and 4 are deleted with a deletion vector."""
    path = tmp_path / "table"
    errors = [None, "one", "two", "three", None]
    write_deltalake(path, pa.table({"payload": [b"%d" % number for number in range(5)], "error": errors}))
    DeltaTable(path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    _delete(path, [1, 4])
    return path


def _delete(path: Path, rows: list[int]) -> None:
    """Delete rows of the only file, as Spark does: the file stays, with a vector that has their numbers."""
    log = path / "_delta_log"
    (add,) = (each["add"] for each in _actions(log / entry_name(0)) if "add" in each)
    vector = _vector(rows)
    told = {"storageType": "i", "pathOrInlineDv": _z85(vector), "sizeInBytes": len(vector), "cardinality": len(rows)}
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True, "size": add["size"]}
    actions = [{"commitInfo": {"operation": "DELETE"}}, {"remove": removed}, {"add": add | {"deletionVector": told}}]
    entry = log / entry_name(DeltaTable(path).version() + 1)
    entry.write_text("\n".join(json.dumps(each) for each in actions))


def _actions(entry: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry.read_text().splitlines()]


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


def test_deleted_rows_are_not_counted(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file still has them, and its entry counts them."""
    assert main(["lake", "show", str(table), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3


def test_bad_rows_are_those_that_are_left(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is rewritten here, so a table with deletion vectors is not refused."""
    assert main(["lake", "show", str(table), "--bad"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(found, key=lambda row: row["error"]) == [
        {"payload": "3", "error": "three"},
        {"payload": "2", "error": "two"},
    ]


def test_a_table_may_have_statistics_of_every_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other engines state the lowest and the highest value of columns that the drain does not state."""
    path = str(tmp_path / "table")
    row = {"d": Decimal("1.50"), "b": b"x", "s": {"n": Decimal(2)}, "day": date(2026, 1, 1), "at": datetime.now(UTC)}
    for _ in range(2):
        write_deltalake(path, pa.Table.from_pylist([row]), mode="append")
    assert main(["lake", "show", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert main(["lake", "optimize", path]) == 0
    assert DeltaTable(path).to_pyarrow_table().to_pylist() == [row, row]


@pytest.mark.parametrize("times", [pa.array(["now"]), pa.array([1]), pa.array([datetime(2026, 1, 1)])])
def test_rows_without_times_of_a_drain_have_no_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], times: pa.Array
) -> None:
    """A column of another program may have the same name and another type."""
    path = str(tmp_path / "table")
    write_deltalake(path, pa.table({"timestamp": times}))
    assert main(["lake", "vacuum", path, "--drop-older-than", "1h"]) == 1
    assert "has no column 'timestamp' of the type timestamp" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "other"), [("a%20b", "a b"), ("a\\b", "a/b")])
def test_another_table_is_not_taken_for_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, other: str
) -> None:
    """delta-rs decodes such a path, and would open the table at the other one."""
    write_deltalake(tmp_path / other, pa.table({"number": [1, 2, 3]}))
    shutil.copytree(tmp_path / other, tmp_path / name)
    for action in ("show", "optimize", "vacuum"):
        assert main(["lake", action, str(tmp_path / name)]) == 1
        assert f"somewhere else than {tmp_path / name}" in capsys.readouterr().err


def test_rows_whose_age_is_not_known_are_not_dropped(tmp_path: Path) -> None:
    """Others may append rows without a time, and rewrite them into one file with old ones."""
    path, times = tmp_path / "table", [datetime(2026, 1, 1, tzinfo=UTC), None]
    write_deltalake(path, pa.table({"timestamp": times}, pa.schema([("timestamp", pa.timestamp("us", "UTC"))])))
    assert drop_older(TablePlace(str(path)), 3_600) == Replaced()
    assert DeltaTable(path).to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize("rewritten", [False, True])
def test_old_rows_of_another_programs_table_are_dropped(tmp_path: Path, rewritten: bool) -> None:
    """An optimize of a table that wants statistics of other columns leaves those of times to the files themselves."""
    place, kind = TablePlace(str(tmp_path / "table")), pa.timestamp("us", "UTC")
    for day in (1, 2):
        times = pa.array([datetime(2026, 1, day, hour, tzinfo=UTC) for hour in range(3)], kind)
        write_deltalake(place.uri, pa.table({"timestamp": times, "name": ["a", "b", None]}), mode="append")
    if rewritten:
        assert optimize(place) == Replaced(2, 1)
    age = (datetime.now(UTC) - datetime(2026, 1, 2, 2, tzinfo=UTC)).total_seconds()
    assert drop_older(place, age + 60) == Replaced(0 if rewritten else 1)
    assert drop_older(place, age - 60) == Replaced(1)
    assert open_table(place).to_pyarrow_table().num_rows == 0


def test_rewritten_rows_without_a_time_are_not_dropped(tmp_path: Path) -> None:
    """The file that they are in has no age."""
    place, kind = TablePlace(str(tmp_path / "table")), pa.timestamp("us", "UTC")
    for time in (datetime(2026, 1, 1, tzinfo=UTC), None):
        write_deltalake(place.uri, pa.table({"timestamp": pa.array([time], kind), "name": ["a"]}), mode="append")
    assert optimize(place) == Replaced(2, 1)
    assert drop_older(place, 3_600) == Replaced()
