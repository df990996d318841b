"""Every reader of a table finds the same rows, with a filter on each column, for every layout and after its upkeep."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.spark import parquet_writer
from mrecordlog_async.spark.blocks import READ_SCHEMA
from mrecordlog_async.spark.delta_output import DeltaOutput
from mrecordlog_async.spark.parquet_writer import directory_of
from mrecordlog_async.spark.table_files import TableFiles
from tests.deep.cases import step
from tests.docs.blocks import ROOT, blocks
from tests.spark.lake_readers import OPERATORS, Filter, Readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECIPES = ROOT / "docs" / "recipes.md"
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

SPARK_COLUMNS = (
    "server string, queue string, queue_id long, position long, timestamp timestamp, payload binary, error string"
)


def rows_of(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return two rows for each of *names*, as a queue and as a server, and rows with nulls and extremes."""
    named = [{"queue": name} for name in names] + [{"server": name} for name in names]
    return [
        {**DEFAULTS, "position": at, "timestamp": FIRST + timedelta(hours=at), "payload": b"%d" % at, **each}
        for at, each in enumerate([*named, *SPECIAL])
    ]


def written(place: str, partition_by: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """Store *rows* as a batch of a drain, each in a separate file, because readers skip files."""
    output = DeltaOutput(TableFiles(place), COLUMNS, partition_by=partition_by, plain=False)
    output.open()
    state = output.load()
    batches = [pa.RecordBatch.from_pylist([each], COLUMNS) for each in rows]
    files = [file for each in batches for file in output.writer.write([each])]
    output.commit(files, replace(state, batch=state.batch + 1))
    output.close()


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
    partition_by: tuple[str, ...], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Filters find each row in every reader, whatever characters its names have, even after delta-rs' own upkeep.

    All rows are in the table; half of the names are looked for.
    """
    place, rows = str(tmp_path / "lake"), rows_of(NAMES)
    written(place, partition_by, rows)
    compared(Readers(place), rows, filters(NAMES[:: step(pytestconfig)]))

    done = DeltaTable(place).optimize.compact()
    assert done["numFilesRemoved"] > done["numFilesAdded"] > 0
    compared(Readers(place), rows, few(NAMES))
    removed = DeltaTable(place).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(removed) == done["numFilesRemoved"]
    compared(Readers(place), rows, few(NAMES))


@pytest.mark.parametrize("partition_by", [(), ("server", "queue")], ids=",".join)
def test_spark_finds_the_same_rows_with_filters(
    spark: SparkSession, partition_by: tuple[str, ...], tmp_path: Path
) -> None:
    """It reads the files, whose directories name the partitions; Delta's own reader for Spark is not part of it.

    Names of directories are ASCII: Java reads others only in a locale that has them.
    """
    names = NAMES if not partition_by else tuple(name for name in NAMES if name.isascii())
    place, rows = str(tmp_path / "lake"), rows_of(names)
    written(place, partition_by, rows)
    frame = spark.read.schema(spark.createDataFrame([], SPARK_COLUMNS).schema).parquet(place)
    wrong = []
    for each in few(names):
        column = frame[each.column]
        condition = column.isNull() if each.value is None else each.applied(column, each.value)
        found = sorted(bytes(row.payload) for row in frame.where(condition).select("payload").collect())
        if found != sorted(row["payload"] for row in rows if each.holds(row)):
            wrong.append((each, found))
    assert not wrong


@pytest.mark.parametrize("partition_by", LAYOUTS[1:], ids=",".join)
def test_a_name_that_no_directory_can_have_is_found(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    """Files of long names, and of the word for null, lie in the table's directory: polars reads them with pyarrow."""
    place, rows = str(tmp_path / "lake"), rows_of(OUTSIDE)
    written(place, partition_by, rows)
    compared(Readers(place, hive=False), rows, filters(OUTSIDE))


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
    partition_by: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statistics have escapes, and its files lie in the table's directory: the recipe renews both."""
    place, rows, new = str(tmp_path / "lake"), rows_of(NAMES), rows_of(("\U00020bb7", "new"))
    statistics = parquet_writer.statistics_of
    with monkeypatch.context() as patch:
        patch.setattr(parquet_writer, "directory_of", lambda values: "")
        patch.setattr(
            parquet_writer,
            "statistics_of",
            lambda footer, *, has_ends: json.dumps(json.loads(statistics(footer, has_ends=has_ends))),
        )
        written(place, partition_by, rows)
    for each in new:
        each["payload"] += b" new"
    written(place, partition_by, new)
    recipe("rewrite every file of a table", place)
    compared(Readers(place), rows + new, few(NAMES))
    written(place, partition_by, new[:1])
    assert DeltaTable(place).to_pyarrow_table().num_rows == len(rows) + len(new) + 1


def recipe(name: str, table: str) -> None:
    """Run a recipe of the manual for *table*."""
    (block,) = (each for each in blocks(RECIPES) if name in each.text)
    exec(block.text.replace("./lake/events", table), {})
