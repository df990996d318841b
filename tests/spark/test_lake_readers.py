"""Every reader of a table finds the same rows, with a filter on each column, for every layout and after its upkeep."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.spark.blocks import READ_SCHEMA
from mrecordlog_async.spark.delta.parts import Layout, write_files
from mrecordlog_async.spark.delta.place import Place
from mrecordlog_async.spark.delta.table import NewBatch, Table, create_table
from tests.spark.lake_readers import OPERATORS, Filter, Readers

QUERY = "7a9c2f1e-0000-4000-8000-000000000001"
LAYOUTS: list[tuple[str, ...]] = [()]

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


def written(place: Place, partition_by: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """Create the table of a drain with each of *rows* in a file of its own, as a reader skips files."""
    create_table(place, Schema.from_arrow(COLUMNS), partition_by, QUERY)
    layout = Layout(partition_by)
    batches = [pa.RecordBatch.from_pylist([each], COLUMNS) for each in rows]
    files = [file for each in batches for file in write_files(place, layout, COLUMNS, [each])]
    Table(place).store(NewBatch(QUERY, 0, [], files), Schema.from_arrow(COLUMNS), partition_by)


def filters(names: tuple[str, ...]) -> Iterator[Filter]:
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


@pytest.mark.parametrize("partition_by", LAYOUTS, ids=",".join)
def test_every_reader_finds_the_same_rows_with_filters(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    """Filters find each row in every reader, whatever characters its names have, also after the table's upkeep."""
    place, rows = Place(str(tmp_path / "lake")), rows_of(NAMES)
    written(place, partition_by, rows)
    compared(Readers(place.uri), rows, filters(NAMES))
