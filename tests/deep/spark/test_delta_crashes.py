"""Exactly once into a Delta table, whatever a kill or a power cut leaves: every row of the table in `spark.delta`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.table import sum_up
from tests.spark import lake_campaign
from tests.spark.delta_campaign import Crash, run_campaign
from tests.spark.delta_engine import STEPS
from tests.spark.services import ThreadedService

POWER_CUTS = 6
"""Of each row: what reaches the disk is chosen at random."""


@pytest.fixture
def crash(service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crash]:
    """Attach a drain to a disk."""
    crash = Crash(service, tmp_path)
    with crash.medium.attached(monkeypatch):
        yield crash
    crash.medium.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_before_any_step_changes_nothing(crash: Crash, step: str) -> None:
    """Killed before each step of a batch, the drain continues where it was."""
    for nth in (1, 2):  # a batch that only enrols queues, and one with rows
        crash.feed(50)
        assert crash.engine.kill_at(step, nth)
    crash.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_power_cut_before_any_step_changes_nothing(crash: Crash, step: str) -> None:
    """Whatever of the unsynced files is on the disk, the drain continues where it was."""
    chance = random.Random(step)
    for number in range(POWER_CUTS):
        crash.feed(20)
        assert crash.engine.kill_at(step, 1 + number % 2)
        crash.medium.cut(chance)
    crash.check()


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "cut"])
def test_a_batch_is_not_stored_unless_its_files_are_as_its_tasks_left_them(crash: Crash, is_missing: bool) -> None:
    """The driver looks at every file before the commit; the batch runs again, and its rows are there once."""

    def spoil(step: str) -> None:
        if step == "sync of the checkpoint":
            for path in crash.engine.table_path.glob("*.parquet"):
                content = path.read_bytes()
                path.unlink()
                if not is_missing:
                    path.write_bytes(content[:-1])

    crash.feed(20)
    crash.engine.step = spoil
    with pytest.raises(TableError, match="is missing" if is_missing else "bytes instead of"):
        crash.engine.drain()
    crash.engine.step = lambda step: None
    assert crash.engine.rows() == []
    crash.check()


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_after_old_entries_were_deleted_leaves_a_table(crash: Crash, seed: int) -> None:
    """What sums them up is durable before they are: otherwise nothing would say which files have the rows."""
    for _ in range(3):
        crash.feed(20)
        crash.engine.drain()
    entries = sorted((crash.engine.table_path / "_delta_log").glob("*.json"))
    for path in entries:
        os.utime(path, (path.stat().st_mtime - 2 * 86_400,) * 2)
    crash.engine.place.sync()
    sum_up(DeltaTable(crash.engine.place.uri), crash.engine.place)
    assert not all(path.exists() for path in entries), "none was deleted"
    crash.medium.cut(random.Random(seed))
    crash.check()


@pytest.mark.parametrize("step", STEPS[-3:])
def test_acknowledgements_survive_kills_and_power_cuts(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A drain that is a consumer acknowledges only what a power cut cannot take from table and checkpoint."""
    crash, chance = Crash(service, tmp_path, consumer="lake"), random.Random(step)
    with crash.medium.attached(monkeypatch):
        for number in range(POWER_CUTS):
            crash.feed(20)
            assert crash.engine.kill_at(step, 1 + number % 2)
            if number % 3:
                crash.medium.cut(chance)
        crash.check()
    crash.medium.close()


@pytest.mark.parametrize("step", STEPS[-3:])
def test_the_directories_of_partitions_survive_power_cuts(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A new directory is durable in the table before records are truncated, whichever task or batch created it."""
    crash, chance = Crash(service, tmp_path, partition_by=("server", "queue")), random.Random(step)
    with crash.medium.attached(monkeypatch):
        for number in range(POWER_CUTS):
            crash.feed(20, "7", f"queue {number}")
            assert crash.engine.kill_at(step, 1 + number % 2)
            crash.medium.cut(chance)
        crash.check()
    crash.medium.close()


def test_random_kills_and_power_cuts_change_nothing(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of `python -m tests.spark.delta_campaign`, with queues that are deleted and recreated."""
    outcome = run_campaign(service, tmp_path, rounds=25, seed=7, patch=monkeypatch)
    assert outcome.records > 200 and outcome.killed > 5 and outcome.cuts > 5 and outcome.recreated > 0


def test_kills_next_to_upkeep_and_another_program_change_nothing(service: ThreadedService, tmp_path: Path) -> None:
    """A slice of `python -m tests.spark.lake_campaign`: files of others below the table's directory stay, too."""
    outcome = lake_campaign.run_campaign(service, tmp_path, rounds=15, seed=7)
    assert outcome.records > 100 and outcome.drains_killed > 0
