"""A drain of an earlier release that parsed payloads continues with a function that gives its columns."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.pipeline import EVENTS, PLACE, TYPED, event, rename_place
from tests.compatibility.record import DATA
from tests.serving import Process

pytest.importorskip("pyspark")

TABLES = [path.parent.name for path in sorted(DATA.glob("*/tables.tar.xz"))]


def rows(table: Path) -> list[dict[str, Any]]:
    import pyarrow
    from deltalake import DeltaTable, QueryBuilder

    found = QueryBuilder().register("t", DeltaTable(table)).execute("select * from t order by position")
    listed: list[dict[str, Any]] = pyarrow.table(found).to_pylist()
    return listed


def is_read(number: int) -> bool:
    """Return whether the payload of the event parses."""
    return number % 10 not in (3, 7)


TYPED_COLUMNS = f"""
from pyspark.sql.functions import expr
from mrecordlog_async.spark.json_columns import with_json_columns

def columns(rows):
    found = with_json_columns({TYPED!r})(rows)
    return found.withColumn("error", expr("if(text is null, 'it does not parse', null)"))
"""

REST_COLUMNS = """
from pyspark.sql.functions import expr
from mrecordlog_async.spark.json_columns import with_json_columns

def columns(rows):
    found = with_json_columns("text string, number int")(rows)
    found = found.withColumn("error", expr("if(text is null, 'it does not parse', null)"))
    return found.withColumn("_rest", expr("if(error is null, null, 'all of it')")).drop("payload")
"""


@pytest.mark.parametrize("release", TABLES)
@pytest.mark.parametrize(
    ("name", "queue", "program", "more"),
    [
        ("typed", "events", TYPED_COLUMNS, ["--partition-by", "date,queue"]),
        ("rest", "others", REST_COLUMNS, []),
    ],
    ids=["typed", "rest"],
)
def test_a_drain_into_columns_goes_on(
    release: str, name: str, queue: str, program: str, more: list[str], tmp_path: Path
) -> None:
    """Without such a function it is refused, and nothing is truncated. What was in the table stays as it is."""
    with tarfile.open(DATA / release / "tables.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    rename_place(tmp_path, PLACE, str(tmp_path))
    table = tmp_path / name / "table"
    before = rows(table)
    assert [row["position"] for row in before] == list(range(EVENTS // 2))
    (tmp_path / "columns_of.py").write_text(program)
    with Process(tmp_path / "log", []) as service:
        drain = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"shop={service.address}"]
        drain += ["--subscribe", queue, "--migrate-from", str(tmp_path / name / "checkpoint"), "--output", str(table)]
        refused = subprocess.run([*drain, *more, "--no-spark"], capture_output=True, text=True)
        assert refused.returncode == 2 and "--transform that gives every one of them" in refused.stderr
        function = ["--transform", "columns_of:columns", "--master", "local[2]"]
        subprocess.run([*drain, *more, *function], check=True, cwd=tmp_path)
    after = rows(table)
    assert after[: EVENTS // 2] == before
    assert [(row["server"], row["queue"], row["position"]) for row in after] == [
        ("shop", queue, number) for number in range(EVENTS)
    ]
    assert [row["number"] for row in after[EVENTS // 2 :]] == [
        number * 100_000 if is_read(number) and number % 10 != 9 else None for number in range(EVENTS // 2, EVENTS)
    ]
    if name == "typed":
        assert [row["payload"] for row in after] == [event(number) for number in range(EVENTS)]
