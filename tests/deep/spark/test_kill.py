"""Exactly once, shown by one campaign with one kill. For more: `python -m tests.spark.campaign --kills 30`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.spark.campaign import Campaign, run_campaign

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_record_is_stored_once_though_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Driver and JVM die inside a commit while records arrive; each record is stored once, and the log is empty."""

    def catch_up(campaign: Campaign) -> None:
        campaign.end_producers()
        (service,), (drain,) = campaign.services, campaign.drains
        job = DrainJob(f"{service.name}={service.url}", str(drain.output), str(drain.checkpoint))
        assert run_drain(spark, job).left == {service.name: 0}

    outcome = run_campaign(tmp_path, kills=1, seed=0, catch_up=catch_up)
    assert outcome.records > 0 and outcome.batches >= 2
    assert outcome.kills == ["a drain before 'commit'"]
