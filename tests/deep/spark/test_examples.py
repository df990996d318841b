"""The Spark examples print what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs import load_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_orders_become_sql_results(spark: SparkSession, tmp_path: Path) -> None:
    """Orders go from FastAPI through a log and a Delta table to SQL."""
    rows = load_program(EXAMPLES / "spark_pipeline.py").run(spark, tmp_path, orders=30)
    assert [tuple(row.values()) for row in rows] == [("ada", 10, 135), ("edsger", 10, 155), ("grace", 10, 145)]


def test_two_logs_are_one_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Sums continue across runs and across logs."""
    rows = load_program(EXAMPLES / "spark_two_logs.py").run(spark, tmp_path)
    assert [tuple(row) for row in rows] == [("cellar", 2, 5.0), ("kitchen", 20, 9.5)]


def test_windows_are_counted_once_they_are_closed(spark: SparkSession, tmp_path: Path) -> None:
    """Every record is in one window; windows that later records have closed are final, and the newest one is open."""
    closed = load_program(EXAMPLES / "spark_windows.py").run(spark, tmp_path, seconds=2)
    assert {(row.page, row.views) for row in closed} == {("/home", 3), ("/prices", 1)}
    assert len(closed) == 4
    assert all(row.until.timestamp() % 1 == 0 for row in closed)
