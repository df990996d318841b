"""Exactly once, shown by one campaign with one kill. For more: `python -m tests.spark.campaign --kills 5`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.campaign import run_campaign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_record_is_stored_once_though_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Driver and JVM die inside a commit while records arrive; each record is stored once, and the log is empty."""
    outcome = run_campaign(spark, tmp_path, kills=1, seed=1)
    assert outcome.records > 0 and outcome.batches_at_kills[0] >= 1
