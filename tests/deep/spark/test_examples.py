"""The Spark examples print what they promise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_orders_become_sql_results(spark: SparkSession, tmp_path: Path) -> None:
    """Orders go from FastAPI through a log and a Delta table to SQL."""
    rows = example("spark_pipeline").run(spark, tmp_path, orders=30)
    assert [tuple(row.values()) for row in rows] == [("ada", 10, 135), ("edsger", 10, 155), ("grace", 10, 145)]


def test_two_logs_are_one_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Sums continue across runs and across logs."""
    rows = example("spark_two_logs").run(spark, tmp_path)
    assert [tuple(row) for row in rows] == [("cellar", 2, 5.0), ("kitchen", 20, 9.5)]


def test_windows_are_counted_once_they_are_closed(spark: SparkSession, tmp_path: Path) -> None:
    """Every record is in one window; windows that later records have closed are final, and the newest one is open."""
    closed = example("spark_windows").run(spark, tmp_path, seconds=2)
    assert {(row.page, row.views) for row in closed} == {("/home", 3), ("/prices", 1)}
    assert len(closed) == 4
    assert all(row.until.timestamp() % 1 == 0 for row in closed)
