"""Every reader of a table finds the same rows, with a filter on each column, for every layout and after its upkeep."""

from __future__ import annotations

import json
import os
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import Schema, write_deltalake

from mrecordlog_async.cli.main import main
from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.spark.delta import parts
from mrecordlog_async.spark.delta.parts import Layout, directory_of, write_files
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.sink import DeltaSink
from mrecordlog_async.spark.delta.table import DrainTable, NewBatch, create_table
from mrecordlog_async.spark.delta.upkeep import Replaced, optimize
from mrecordlog_async.spark.delta.vacuum import vacuum
from mrecordlog_async.spark.rows.blocks import READ_SCHEMA
from tests.deep.cases import step
from tests.spark.lake_readers import OPERATORS, Filter, Readers

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

QUERY = "7a9c2f1e-0000-4000-8000-000000000001"
LAYOUTS: list[tuple[str, ...]] = [(), ("queue",), ("server",), ("server", "queue")]
TWO_LAYOUTS = [
    (),
    pytest.param(("queue",), marks=pytest.mark.nightly),
    pytest.param(("server",), marks=pytest.mark.nightly),
    ("server", "queue"),
]

NAMES = (
    "orders",
    "7",
    "007",
    "1.5",
    "true",
    "2026-01-01",
    "null",
    "NULL",
    ".",
    "..",
    "a/../b",
    "%41",
    "A",
    "a%2Fb",
    "a=b",
    "a b",
    " a",
    "a ",
    "it's",
    '"quoted"',
    "`b`\\",
    "#?*[x]{y}|<>^~&;:@!$(),+",
    "\u00e4",
    unicodedata.normalize("NFD", "\u00e4"),
    "\ufefforders",
    "\u202eorders\u202c",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u6ce8\u6587",
    "\uffee\uffff",
    "\U0001f600",
    "\U00020000",
    "\u6ce8\u6587\U00020bb7",
    "\U00020bb7\u91ce\u5bb6",
    "\U0002ffff",
    "\U0003134a",
    "\U000e0041",
    "\U000fffff",
    "\U00100000",
    "\U0010ffff",
    "a\tb\nc\x01\x7f\x85",
)
"""Of each plane that has characters, and what paths, SQL, numbers and JSON have another meaning for."""

OUTSIDE = ("__HIVE_DEFAULT_PARTITION__", "x" * 255, "\u6ce8" * 85, "y" * 250, "a")
"""Names of which no directory can be named after all but the last."""

FIRST = datetime(2026, 1, 1, tzinfo=UTC)

DEFAULTS = {"queue": "q", "server": "s", "queue_id": 1_000, "error": None}

SPECIAL: tuple[dict[str, Any], ...] = (
    {"queue": None},
    {"server": None},
    {"queue": None, "server": None},
    {"queue_id": None},
    {"position": None},
    {"timestamp": None},
    {"position": POSITION_MAX},
    {"position": 2**53 + 1, "queue_id": 2**53 + 1},
    {"queue_id": 2**63 - 1},
    {"queue_id": 1},
    {"timestamp": datetime(1970, 1, 1, tzinfo=UTC)},
    {"timestamp": datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=UTC)},
    {"timestamp": datetime(9999, 12, 31, 23, 59, 59, 900_000, tzinfo=UTC)},
    {"error": "\U00020bb7 is no number"},
)

COLUMNS = READ_SCHEMA.append(pa.field("error", pa.string()))


def rows_of(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return two rows for each of *names*, as a queue and as a server, and rows with nulls and extremes."""
    named = [{"queue": name} for name in names] + [{"server": name} for name in names]
    return [
        {**DEFAULTS, "position": at, "timestamp": FIRST + timedelta(hours=at), "payload": b"%d" % at, **each}
        for at, each in enumerate([*named, *SPECIAL])
    ]


def written(place: TablePlace, partition_by: tuple[str, ...], rows: list[dict[str, Any]], batch: int = 0) -> None:
    """Store *rows* as a batch of a drain, each in a separate file, because readers skip files."""
    create_table(place, Schema.from_arrow(COLUMNS), partition_by, QUERY)
    layout = Layout(partition_by)
    batches = [pa.RecordBatch.from_pylist([each], COLUMNS) for each in rows]
    files = [file for each in batches for file in write_files(place, layout, COLUMNS, [each])]
    DrainTable(place).store(NewBatch(QUERY, batch, [], files), Schema.from_arrow(COLUMNS), partition_by)


def filters(names: Sequence[str]) -> Iterator[Filter]:
    """Yield filters on every column."""
    for column in ("queue", "server"):
        yield from (Filter(column, "=", name) for name in names)
        yield from (Filter(column, compare, names[-1]) for compare in OPERATORS)
    for each in SPECIAL:
        for column, value in each.items():
            yield from (Filter(column, compare, value) for compare in (("=",) if value is None else OPERATORS))
    yield Filter("error")
    yield Filter("payload", "=", b"3")
    yield Filter("payload", "=", b"none")


def compared(readers: Readers, rows: list[dict[str, Any]], wanted: Iterable[Filter]) -> None:
    """Check what each reader finds with each filter."""
    wrong = []
    for each in wanted:
        expected = sorted(row["payload"] for row in rows if each.holds(row))
        wrong += [f"{name}: {each}: {found}" for name, found in readers.found(each).items() if found != expected]
    assert not wrong, "\n".join(wrong)


def few(names: tuple[str, ...]) -> Iterator[Filter]:
    """Yield filters that an escaped, a misspelt or a lost name would make wrong."""
    yield from (Filter(column, "=", name) for column in ("queue", "server") for name in names[::4])
    yield from (Filter("queue"), Filter("position", ">=", POSITION_MAX), Filter("timestamp", "<", FIRST))


@pytest.mark.parametrize("partition_by", TWO_LAYOUTS, ids=",".join)
def test_every_reader_finds_the_same_rows_with_filters(
    partition_by: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Filters find each row in every reader, whatever characters its names have, even after the table's upkeep.

    All rows are in the table; half of the names are looked for.
    """
    place, rows = TablePlace(str(tmp_path / "lake")), rows_of(NAMES)
    written(place, partition_by, rows)
    compared(Readers(place.uri), rows, filters(NAMES[:: step(pytestconfig)]))

    left = left_by_a_task(Path(place.uri))
    with monkeypatch.context() as patch:
        before = time.time() - 30 * 24 * 3_600
        patch.setattr(time, "time", lambda: before)
        optimized = optimize(place)
    assert optimized.removed > optimized.added > 0
    compared(Readers(place.uri), rows, few(NAMES))

    assert optimize(place, rewrite=True) == Replaced()  # nothing of this version has to be rewritten
    for path in Path(place.uri).rglob("*.parquet"):
        os.utime(path, (0, 0))
    assert len(vacuum(place)) == len(left) + optimized.removed
    assert not any(path.exists() for path in left)
    compared(Readers(place.uri), rows, few(NAMES))


@pytest.mark.parametrize("partition_by", TWO_LAYOUTS, ids=",".join)
def test_spark_finds_the_same_rows(spark: SparkSession, partition_by: tuple[str, ...], tmp_path: Path) -> None:
    """The same where Spark reads the table without a jar: with fewer names, because each file is a task."""
    names = ("007", "7", "a%2Fb", "null", "\U00020bb7", *OUTSIDE)
    place, rows = TablePlace(str(tmp_path / "lake")), rows_of(names)
    written(place, partition_by, rows)
    spark.dataSource.register(DeltaSink)
    frame, wanted = spark.read.format("mrecordlog-delta").load(place.uri), list(filters(names))
    flags = [in_spark(each).alias(str(number)) for number, each in enumerate(wanted)]
    held = {bytes(row[0]): list(row[1:]) for row in frame.select("payload", *flags).collect()}
    assert held == {row["payload"]: [each.in_sql(row) for each in wanted] for row in rows}
    found = frame.where(in_spark(wanted[0])).collect()
    assert sorted(bytes(row.payload) for row in found) == sorted(row["payload"] for row in rows if wanted[0].holds(row))


def in_spark(wanted: Filter) -> Column:
    """Return the condition as an expression of Spark."""
    from pyspark.sql.functions import col, lit, timestamp_micros, unhex

    match wanted.value:
        case None:
            return col(wanted.column).isNull()
        case datetime():
            value = timestamp_micros(lit(wanted.microseconds))
        case bytes():
            value = unhex(lit(wanted.value.hex()))
        case _:
            value = lit(wanted.value)
    condition: Column = wanted.applied(col(wanted.column), value)
    return condition


def left_by_a_task(table: Path) -> list[Path]:
    """Create a file next to those of each partition, which no version names."""
    left = [directory / f"part-{uuid4()}.parquet" for directory in {path.parent for path in table.rglob("*.parquet")}]
    for path in left:
        path.touch()
    return left


@pytest.mark.parametrize("partition_by", LAYOUTS[1:], ids=",".join)
def test_a_name_that_no_directory_can_have_is_found(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    """Files of long names, and of the word for null, lie in the table's directory: polars reads them with pyarrow."""
    place, rows = TablePlace(str(tmp_path / "lake")), rows_of(OUTSIDE)
    written(place, partition_by, rows)
    readers = Readers(place.uri, hive=False)
    compared(readers, rows, filters(OUTSIDE))
    optimize(place)
    compared(Readers(place.uri, hive=False), rows, few(OUTSIDE))


def test_the_directory_of_a_partition_is_that_of_delta_rs(tmp_path: Path) -> None:
    """Its own writer would put a file with these values into the same directory."""
    values = [*NAMES, None]
    for at, value in enumerate(values):
        table = str(tmp_path / str(at))
        write_deltalake(table, pa.table({"queue": pa.array([value], pa.string()), "at": [at]}), partition_by=["queue"])
        (path,) = Path(table).glob("*/*.parquet")
        assert directory_of({"queue": value}) == f"{path.parent.name}/", value


@pytest.mark.parametrize("partition_by", TWO_LAYOUTS, ids=",".join)
def test_a_table_of_0_2_0_is_read_after_a_rewrite(
    partition_by: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its statistics have escapes, and its files lie in the table's directory: `optimize --rewrite` renews both."""
    place, rows, new = TablePlace(str(tmp_path / "lake")), rows_of(NAMES), rows_of(("\U00020bb7", "new"))
    statistics = parts._statistics
    with monkeypatch.context() as patch:
        patch.setattr(parts, "directory_of", lambda values: "")
        patch.setattr(parts, "_statistics", lambda seen: json.dumps(json.loads(statistics(seen))))
        written(place, partition_by, rows)
    for each in new:
        each["payload"] += b" new"
    written(place, partition_by, new, batch=1)

    misread = [row for row in rows if any((ord(each) >> 16) % 2 == 0 < ord(each) >> 16 for each in names_of(row))]
    assert main(["lake", "optimize", place.uri, "--rewrite", "--target-file-bytes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == len(rows if partition_by else misread)
    compared(Readers(place.uri), rows + new, few(NAMES))
    assert optimize(place, 1, rewrite=True) == Replaced()


def names_of(row: dict[str, Any]) -> str:
    return f"{row['server']}{row['queue']}"
