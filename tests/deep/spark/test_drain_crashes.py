"""Exactly once into a table, whatever a kill or a power cut leaves; and each sync that is left out is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from mrecordlog_async.spark import delta_output, table_files
from mrecordlog_async.spark.delta_output import DeltaOutput
from mrecordlog_async.spark.table_files import TableFiles
from tests.spark.drain_campaign import Campaign
from tests.spark.draining import STEPS
from tests.spark.services import ThreadedService

POWER_CUTS = 4
"""Of each step: what reaches the disk is chosen at random."""

ROUNDS_MAX = 150


@pytest.fixture(autouse=True)
def summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summarize the table's log often enough that kills and power cuts meet it."""
    monkeypatch.setattr(delta_output, "SUM_UP_EVERY", 3)


@pytest.mark.parametrize("step", [*STEPS])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_power_cut_at_any_step_changes_nothing(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, step: str
) -> None:
    """Whatever of the unsynced files is on the disk, the drain continues where it was."""
    campaign = Campaign(service, tmp_path, seed=len(step), partition_by=("queue",))
    medium = campaign.medium
    with closing(medium), medium.attached(monkeypatch), campaign.killer.attached(monkeypatch):
        for number in range(POWER_CUTS):
            campaign.feed("7", 20)
            campaign.feed(f"queue {number}", 5)
            campaign.killer.arm(when, step, 1 + number % 2)
            campaign.kill(2, cut=True)
        campaign.check()


def test_random_kills_and_power_cuts_change_nothing(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of `python -m tests.spark.drain_campaign`, with queues that are deleted and recreated."""
    outcome = Campaign(service, tmp_path, seed=7).run(25, monkeypatch)
    assert outcome.records > 200 and outcome.killed > 5 and outcome.cuts > 2 and outcome.recreated > 0


Mutant = Callable[[pytest.MonkeyPatch], None]


def without_data(patch: pytest.MonkeyPatch) -> None:
    sync = table_files._sync
    patch.setattr(table_files, "_sync", lambda handle, name: None if name.endswith(".parquet") else sync(handle, name))


def without_directories_of_partitions(patch: pytest.MonkeyPatch) -> None:
    sync_names = TableFiles.sync_names

    def left_out(self: TableFiles, names: Iterable[str]) -> None:
        sync_names(self, [name for name in names if "=" not in name])

    patch.setattr(TableFiles, "sync_names", left_out)


def without_entries(patch: pytest.MonkeyPatch) -> None:
    sync = DeltaOutput._sync_entries
    patch.setattr(
        DeltaOutput, "_sync_entries", lambda self, first, last: sync(self, first, last) if first == 0 else None
    )


def without_positions(patch: pytest.MonkeyPatch) -> None:
    def write(self: TableFiles, name: str, content: bytes) -> None:
        assert self.path is not None
        Path(self.path, name).write_bytes(content)

    patch.setattr(TableFiles, "write", write)


@pytest.mark.parametrize(
    "mutant", [without_data, without_directories_of_partitions, without_entries, without_positions]
)
def test_a_sync_that_is_left_out_is_found(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    """The model of a disk bites: without it, the rounds above would prove nothing."""
    with monkeypatch.context() as patch:
        mutant(patch)
        campaign = Campaign(service, tmp_path, seed=3, partition_by=("queue",))
        with pytest.raises(AssertionError):
            campaign.run(ROUNDS_MAX, patch)
