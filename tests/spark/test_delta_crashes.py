"""Exactly once into a Delta table, whatever a kill or a power cut leaves: every row of the table in `spark.delta`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.delta_engine import STEPS, DeltaEngine, Killed
from tests.spark.medium import Medium
from tests.spark.services import ThreadedService, numbered

POWER_CUTS = 6
"""Of each row: what reaches the disk is chosen at random."""


class Crash:
    """A drain of one service on a disk whose power can be cut."""

    def __init__(self, service: ThreadedService, place: Path) -> None:
        (place / "lake").mkdir()
        self.service, self.medium = service, Medium(place / "lake")
        self.engine = DeltaEngine(f"a={service.url}", place / "lake", maxRecordsPerTrigger="60", minPartitions="2")
        self.appended: dict[str, int] = {}

    def feed(self, records: int, *queues: str) -> None:
        for queue in queues or ("7", "007"):
            first = self.appended.get(queue, 0)
            self.service.append(queue, numbered(queue, first, first + records), first)
            self.appended[queue] = first + records

    def kill_at(self, step: str, nth: int = 1) -> None:
        """Drain, and die before the *nth* step of this name."""
        left = nth

        def stepped(name: str) -> None:
            nonlocal left
            left -= name == step
            if left == 0 and name == step:
                raise Killed

        self.engine.step = stepped
        try:
            with pytest.raises(Killed):
                self.engine.drain()
        finally:
            self.engine.step = lambda name: None

    def check(self) -> None:
        """Drain the rest; every record is in the table once, and the log is empty."""
        self.engine.drain()
        expected = [
            (queue, at, payload)
            for queue, records in self.appended.items()
            for at, payload in enumerate(numbered(queue, 0, records))
        ]
        assert self.engine.rows() == sorted(expected)
        assert not any(self.service.records().values())


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
        crash.kill_at(step, nth)
    crash.check()


@pytest.mark.parametrize("step", STEPS)
def test_a_power_cut_before_any_step_changes_nothing(crash: Crash, step: str) -> None:
    """Whatever of the unsynced files is on the disk, the drain continues where it was."""
    chance = random.Random(step)
    for number in range(POWER_CUTS):
        crash.feed(20)
        crash.kill_at(step, 1 + number % 2)
        crash.medium.cut(chance)
    crash.check()
