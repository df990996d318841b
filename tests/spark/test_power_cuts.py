"""Exactly once under random kills and power failures at any step, without Java: thousands of steps in seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.spark.ledger import LEDGER
from tests.spark.engine import Engine, Run
from tests.spark.services import ThreadedService

STEPS = 60


class Killed(Exception):  # not an error of anybody's
    """The process is killed here."""


class Chaos:
    """Feeds a log, drains it and kills the drain; remembers what was acknowledged."""

    def __init__(self, engine: Engine, service: ThreadedService, seed: int) -> None:
        self.engine, self.service = engine, service
        self.random = random.Random(seed)
        self.acknowledged: dict[str, list[bytes]] = {}
        self.again = 0
        """How many starts found something that had to run again."""

    def feed(self) -> None:
        for _ in range(self.random.randrange(3)):
            queue = f"queue {self.random.randrange(4)}"
            known = self.acknowledged.setdefault(queue, [])
            payloads = [f"{queue}:{len(known) + n}".encode() for n in range(self.random.randrange(1, 30))]
            self.service.append(queue, payloads, len(known))
            known += payloads

    def run_until_killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Start, run a few batches, and die in a batch or in any step of the release."""
        with monkeypatch.context() as patch:
            try:
                with self.engine.started() as run:
                    self.again += run.found is not None
                    self._arm(run, patch)
                    for _ in range(self.random.randrange(6)):
                        self.feed()
                        run.batch(until=self.random.choice(["commit"] * 6 + ["offset", "manifest"]))
                        if self.random.random() < 0.7:
                            run.release.advance()
            except Killed:
                pass

    def _arm(self, run: Run, patch: pytest.MonkeyPatch) -> None:
        """Die before or after one of the next calls that change something."""
        release, client = run.release, run.release._fleet.client("a")
        left = self.random.randrange(1, 25)

        def deadly(call: Any) -> Any:
            def called(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                before = self.random.random() < 0.5
                if left == 0 and before:
                    raise Killed
                found = call(*arguments, **named)
                if left == 0:
                    raise Killed
                return found

            return called

        patch.setattr(release, "_save", deadly(release._save))
        patch.setattr(release, "_sync", deadly(release._sync))
        patch.setattr(client, "truncate", deadly(client.truncate))

    def cut_power(self) -> None:
        """Empty or remove some of the files that the ledger lists as written since the last sync."""
        ledger = json.loads((self.engine.checkpoint_path / LEDGER).read_bytes())["batch"]
        places = [self.engine.checkpoint_path / "offsets", self.engine.checkpoint_path / "commits"]
        found = [
            path for place in [*places, self.engine.output_path / "_spark_metadata"] for path in place.glob("[0-9]*")
        ]
        found = [path for path in found if int(path.stem) > ledger]
        found += [path for path in self.engine.output_path.glob("*.parquet") if int(path.name.split("-")[1]) > ledger]
        for path in found:
            if self.random.random() < 0.3:
                path.write_bytes(b"")
            elif self.random.random() < 0.1 and path.parent.name != "offsets":
                path.unlink()


@pytest.mark.parametrize("seed", range(4))
def test_every_record_is_stored_once_whatever_is_cut_off(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After kills at any step and emptied files, each record is stored once, and the log is empty."""
    engine = Engine(f"a={service.url}", tmp_path, maxRecordsPerTrigger="40")
    chaos = Chaos(engine, service, seed)
    with engine.started():
        pass
    for _ in range(STEPS):
        chaos.run_until_killed(monkeypatch)
        if chaos.random.random() < 0.5:
            chaos.cut_power()
    engine.drain()
    expected = [
        ("a", queue, at, payload) for queue, known in chaos.acknowledged.items() for at, payload in enumerate(known)
    ]
    assert engine.rows() == sorted(expected)
    assert not any(service.records().values())
    assert chaos.again > 0
