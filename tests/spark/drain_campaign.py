"""Random kills and power cuts of a drain in this process: `python -m tests.spark.drain_campaign --rounds 500`.

Each round appends to some queues, kills the drain at a random step, and cuts the power half of the time. Now and then
everything is drained, and a queue is deleted and created again. With `--others`, a program appends to the table and
sums up its log without a sync, and drains of the same and of another name start, commit and are killed at any moment of
the drain's batches. At the end every acknowledged record must be in the table once, and the logs empty.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from mrecordlog_async.spark import delta_output
from mrecordlog_async.spark.log_server import ReadTask
from mrecordlog_async.spark.output import RowWriter, WrittenFile
from mrecordlog_async.spark.runners import in_process
from tests.spark.draining import STEPS, Draining, Killed, Killer, Runner, age_entries, going_on, table_rows
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
    others: int = 0
    refused: int = 0


class Campaign:
    """A drain of one service on a disk whose power can be cut."""

    def __init__(
        self,
        service: ThreadedService,
        place: Path,
        *,
        seed: int,
        partition_by: tuple[str, ...] = (),
        theirs: ThreadedService | None = None,
        cuts: float = 0.5,
    ) -> None:
        """Prepare it.

        Args:
            service: what the drain reads.
            place: of the disk.
            seed: of all choices.
            partition_by: the columns by which the table is partitioned.
            theirs: what a drain of another name reads into the table; None for no other writers.
            cuts: the part of the kills that are power cuts.
        """
        (place / "lake").mkdir()
        self.service, self.table = service, place / "lake" / "table"
        self.medium, self.killer = Medium(place / "lake"), Killer()
        self.chance, self.outcome = random.Random(seed), Outcome()
        self._partition_by, self._cuts = partition_by, cuts
        self._theirs, self._records_of_theirs = theirs, 0
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
        self.kill(chance.randrange(1, 4), cut=chance.random() < self._cuts)
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
        except AssertionError as error:
            # One of the same name has committed: this one is refused, or what it was about to read is truncated.
            if self._theirs is None or not ("another drain" in str(error) or "are truncated" in str(error)):
                raise
            self._process = None
            self.outcome.refused += 1
        self.killer.disarm()

    def process(self) -> Draining:
        if self._process is None:
            self._process = self._started("a", self.service, self._run)
        return self._process

    def _started(
        self, server: str, service: ThreadedService, run: Runner = in_process, name: str = "drain"
    ) -> Draining:
        services = {server: service}
        return Draining(services, self.table, partition_by=self._partition_by, records=60, run=run, name=name)

    # Other writers of the table.

    def _run(self, tasks: Sequence[ReadTask], writer: RowWriter) -> list[WrittenFile]:
        """Carry out tasks, and let others write before or after them."""
        before, after = (self._theirs is not None and self.chance.random() < 0.3 for _ in range(2))
        if before:
            self._other()
        files = in_process(tasks, writer)
        if after:
            self._other()
        return files

    def _other(self) -> None:
        """Let another writer commit, and perhaps not live to sync that."""
        self.outcome.others += 1
        due, chance = self.killer.disarmed(), self.chance
        kind = chance.choice(("append", "append", "sum up", "same name", "another name", "another name"))
        if kind == "append":
            rows = DeltaTable(str(self.table)).to_pyarrow_table().schema.empty_table()
            write_deltalake(str(self.table), rows, mode="append")
        elif kind == "sum up":
            DeltaTable(str(self.table)).create_checkpoint()
        else:
            self._drained(kind == "another name", killed=chance.random() < 0.7)
        self.killer.rearm(due)

    def _drained(self, is_another: bool, *, killed: bool) -> None:
        assert self._theirs is not None
        if is_another:
            first, self._records_of_theirs = self._records_of_theirs, self._records_of_theirs + 5
            self._theirs.append("theirs", numbered("theirs", first, first + 5), first)
            self.outcome.records += 5
        if killed:
            self.killer.arm("after", "the commit")
        other = self._started("t", self._theirs, name="other") if is_another else self._started("a", self.service)
        try:
            other.step()
        except Killed:
            self.outcome.killed += 1
        finally:
            other.drain.close()
            self.killer.disarm()

    def feed(self, queue: str, records: int) -> None:
        first = self._appended.get(queue, 0)
        self.service.append(queue, numbered(queue, first, first + records), first)
        self._appended[queue] = first + records
        self.outcome.records += records

    def drain(self) -> None:
        theirs, self._theirs = self._theirs, None
        with going_on():
            self._process = None
            self.process().all()
            if theirs is not None:
                self._started("t", theirs, name="other").all()
                assert not any(theirs.records().values())
        self._theirs = theirs

    def check(self) -> None:
        self.drain()
        rows = [
            (queue, at, payload)
            for queue, records in [*self._appended.items(), *self._ended, ("theirs", self._records_of_theirs)]
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
    parser.add_argument("--others", action="store_true", help="let others write to the table as well")
    parser.add_argument("--cuts", type=float, default=0.5, help="the part of the kills that are power cuts")
    parser.add_argument("--sum-up-every", type=int, default=7, help="batches after which the table's log is summarized")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-") as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_output, "SUM_UP_EVERY", arguments.sum_up_every)
        service = ThreadedService(Path(place, "wal"))
        partition_by = tuple(filter(None, arguments.partition_by.split(",")))
        theirs = ThreadedService(Path(place, "theirs")) if arguments.others else None
        campaign = Campaign(
            service, Path(place), seed=arguments.seed, partition_by=partition_by, theirs=theirs, cuts=arguments.cuts
        )
        outcome = campaign.run(arguments.rounds, patch)
        for each in (service, theirs):
            if each is not None:
                each.end()
    print(
        f"{outcome.killed} kills, {outcome.cuts} power cuts, {outcome.recreated} queues recreated, "
        f"{outcome.others} commits of others, {outcome.refused} refusals: {outcome.records:,} "
        f"of {outcome.records:,} records exactly once, the log is empty; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
