"""Random kills and power cuts of a drain in this process: `python -m tests.spark.drain_campaign --rounds 500`.

Each round appends to some queues, kills the drain at a random step, and cuts the power half of the time. Now and then
everything is drained, and a queue is deleted and created again. At the end every acknowledged record must be in the
table once, and the log empty.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from mrecordlog_async.spark import delta_output
from tests.spark.draining import STEPS, Draining, Killed, Killer, age_entries, going_on, table_rows
from tests.spark.medium import Medium
from tests.spark.services import ThreadedService, numbered

QUEUES = ("7", "007", "q b", "ä")

CHECK_EVERY = 15
"""Rounds after which everything is drained and compared: a bug is found soon."""


@dataclass(slots=True)
class Outcome:
    """What happened in a campaign."""

    records: int = 0
    killed: int = 0
    cuts: int = 0
    recreated: int = 0


class Campaign:
    """A drain of one service on a disk whose power can be cut."""

    def __init__(self, service: ThreadedService, place: Path, *, seed: int, partition_by: tuple[str, ...] = ()) -> None:
        (place / "lake").mkdir()
        self.service, self.table = service, place / "lake" / "table"
        self.medium, self.killer = Medium(place / "lake"), Killer()
        self.chance, self.outcome = random.Random(seed), Outcome()
        self._partition_by = partition_by
        self._process: Draining | None = None
        self._appended: dict[str, int] = {}
        self._ended: list[tuple[str, int]] = []

    def run(self, rounds: int, patch: pytest.MonkeyPatch) -> Outcome:
        """Run it; raise AssertionError if a record is missing, stored twice or changed, or the drain does not go on."""
        with closing(self.medium), self.medium.attached(patch), self.killer.attached(patch):
            for number in range(rounds):
                self._round()
                if number % CHECK_EVERY == CHECK_EVERY - 1:
                    self.check()
            self.check()
        return self.outcome

    def _round(self) -> None:
        chance = self.chance
        for queue in (*QUEUES, f"queue {self.outcome.killed}"):  # a new one after each kill
            if chance.random() < 0.6:
                self.feed(queue, chance.randrange(1, 50))
        self.killer.arm(chance.choice(("before", "after")), chance.choice(list(STEPS)), chance.randrange(1, 4))
        self.kill(chance.randrange(1, 4), cut=chance.random() < 0.5)
        if self._appended and chance.random() < 0.1:
            self.drain()
            queue = chance.choice(sorted(self._appended))
            self._ended.append((queue, self._appended.pop(queue)))
            self.service.delete(queue)
            self.outcome.recreated += 1

    def kill(self, batches: int, *, cut: bool) -> None:
        """Store *batches* until the killer comes; *cut* the power then."""
        age_entries(self.table)
        try:
            with going_on():
                for _ in range(batches):
                    self.process().step()
        except Killed:
            self.outcome.killed += 1
            self._process = None
            if cut:
                self.medium.cut(self.chance)
                self.outcome.cuts += 1
        self.killer.disarm()

    def process(self) -> Draining:
        if self._process is None:
            self._process = Draining({"a": self.service}, self.table, partition_by=self._partition_by, records=60)
        return self._process

    def feed(self, queue: str, records: int) -> None:
        first = self._appended.get(queue, 0)
        self.service.append(queue, numbered(queue, first, first + records), first)
        self._appended[queue] = first + records
        self.outcome.records += records

    def drain(self) -> None:
        with going_on():
            self.process().all()

    def check(self) -> None:
        self.drain()
        rows = [
            (queue, at, payload)
            for queue, records in [*self._appended.items(), *self._ended]
            for at, payload in enumerate(numbered(queue, 0, records))
        ]
        with going_on():
            found = table_rows(self.table)
        assert found == sorted(rows)
        assert not any(self.service.records().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--partition-by", default="")
    parser.add_argument("--sum-up-every", type=int, default=7, help="batches after which the table's log is summarized")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-") as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_output, "SUM_UP_EVERY", arguments.sum_up_every)
        service = ThreadedService(Path(place, "wal"))
        partition_by = tuple(filter(None, arguments.partition_by.split(",")))
        campaign = Campaign(service, Path(place), seed=arguments.seed, partition_by=partition_by)
        outcome = campaign.run(arguments.rounds, patch)
        service.end()
    print(
        f"{outcome.killed} kills, {outcome.cuts} power cuts, {outcome.recreated} queues recreated: {outcome.records:,} "
        f"of {outcome.records:,} records exactly once, the log is empty; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
