"""Exactly once, shown by one campaign with one kill. For more: `python -m tests.spark.campaign --kills 30`."""

from __future__ import annotations

from pathlib import Path

from mrecordlog_async.spark.drain_call import DrainOptions, drain
from tests.spark.campaign import Campaign, run_campaign


def test_every_record_is_stored_once_though_the_driver_is_killed(tmp_path: Path) -> None:
    """Driver and JVM die after a task stored its files while records arrive; each record is stored once."""

    def catch_up(campaign: Campaign) -> None:
        campaign.end_producers()
        (service,), (process,) = campaign.services, campaign.drains
        summary = drain(DrainOptions(f"{service.name}={service.url}", str(process.output)))
        assert summary.left == {service.name: 0}

    outcome = run_campaign(tmp_path, kills=1, seed=0, catch_up=catch_up)
    assert outcome.records > 0 and outcome.batches >= 2
    assert outcome.kills == ["a drain before 'files of a task'"]
