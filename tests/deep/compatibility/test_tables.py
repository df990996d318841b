"""A drain of an earlier release that parsed payloads continues with Spark: each event becomes one row of its table."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.pipeline import EVENTS, PLACE, REST_OPTIONS, TYPED_OPTIONS, event, rename_place
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


@pytest.mark.parametrize("release", TABLES)
@pytest.mark.parametrize(
    ("name", "queue", "options"), [("typed", "events", TYPED_OPTIONS), ("rest", "others", REST_OPTIONS)]
)
def test_a_drain_into_columns_goes_on(
    release: str, name: str, queue: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """What was in the table stays as it is, and the other half is added: each event once, in the same columns."""
    with tarfile.open(DATA / release / "tables.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    rename_place(tmp_path, PLACE, str(tmp_path))
    table = tmp_path / name / "table"
    before = rows(table)
    assert [row["position"] for row in before] == list(range(EVENTS // 2))
    with Process(tmp_path / "log", []) as service:
        drain = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"shop={service.address}"]
        drain += ["--subscribe", queue, "--checkpoint", str(tmp_path / name / "checkpoint"), "--output", str(table)]
        subprocess.run([*drain, *options], check=True)
    after = rows(table)
    assert after[: EVENTS // 2] == before
    assert [(row["server"], row["queue"], row["position"]) for row in after] == [
        ("shop", queue, number) for number in range(EVENTS)
    ]
    assert [row["error"] is None for row in after] == [is_read(number) for number in range(EVENTS)]
    assert [row["number"] for row in after[EVENTS // 2 :]] == [
        number * 100_000 if is_read(number) and number % 10 != 9 else None for number in range(EVENTS // 2, EVENTS)
    ]
    if name == "typed":
        assert [row["payload"] for row in after] == [event(number) for number in range(EVENTS)]
