"""Random kills and power cuts of a drain into a Delta table: `python -m tests.spark.delta_campaign --rounds 500`.

Each round appends to some queues, kills the drain before a random step of a batch, and cuts the power half of the
time. Now and then everything is drained, and a queue is deleted and created again. At the end every acknowledged record
must be in the table once, and the log empty. Without Spark: thousands of batches per minute (see `delta_engine`).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from mrecordlog_async.options import QueueOptions
from tests.spark.delta_engine import STEPS, DeltaEngine, continuing
from tests.spark.medium import Medium
from tests.spark.services import ThreadedService, numbered


class Crash:
    """A drain of one service on a disk whose power can be cut. consumer: it acknowledges instead of truncating."""

    def __init__(
        self,
        service: ThreadedService,
        place: Path,
        *,
        consumer: str | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        (place / "lake").mkdir()
        self.service, self.medium = service, Medium(place / "lake")
        self.queue_options = QueueOptions(keep="until_acknowledged") if consumer else None
        self.engine = DeltaEngine(
            f"a={service.url}",
            place / "lake",
            consumer=consumer,
            partition_by=partition_by,
            maxRecordsPerTrigger="60",
            minPartitions="2",
        )
        self.appended: dict[str, int] = {}
        self.ended: list[tuple[str, int]] = []
        """Queues that were deleted after they were drained, and how many records they had."""

    def feed(self, records: int, *queues: str) -> None:
        for queue in queues or ("7", "007"):
            first = self.appended.get(queue, 0)
            self.service.call(self.service.log.create_queue(queue, exist_ok=True, options=self.queue_options))
            self.service.append(queue, numbered(queue, first, first + records), first)
            self.appended[queue] = first + records

    def check(self) -> None:
        """Drain the rest; every record is in the table once, and the log is empty."""
        with continuing():
            self.engine.drain()
        expected = [
            (queue, at, payload)
            for queue, records in [*self.appended.items(), *self.ended]
            for at, payload in enumerate(numbered(queue, 0, records))
        ]
        assert self.engine.rows() == sorted(expected)
        assert not any(self.service.records().values())


@dataclass(slots=True)
class Outcome:
    """What happened in a campaign."""

    records: int = 0
    killed: int = 0
    cuts: int = 0
    recreated: int = 0


def run_campaign(
    service: ThreadedService,
    place: Path,
    *,
    rounds: int,
    seed: int,
    patch: pytest.MonkeyPatch,
    consumer: str | None = None,
) -> Outcome:
    """Run one campaign; raise AssertionError if a record is missing, stored twice or changed."""
    chance, outcome, crash = random.Random(seed), Outcome(), Crash(service, place, consumer=consumer)
    with crash.medium.attached(patch):
        for _ in range(rounds):
            for _ in range(chance.randrange(4)):
                crash.feed(chance.randrange(1, 40), f"queue {chance.randrange(4)}")
            outcome.killed += crash.engine.kill_at(chance.choice(STEPS), chance.randrange(1, 4))
            if chance.random() < 0.5:
                crash.medium.cut(chance)
                outcome.cuts += 1
            if crash.appended and chance.random() < 0.1:
                crash.engine.drain()
                queue = chance.choice(sorted(crash.appended))
                crash.ended.append((queue, crash.appended.pop(queue)))
                service.delete(queue)
                outcome.recreated += 1
        crash.check()
    crash.medium.close()
    outcome.records = sum(crash.appended.values()) + sum(records for _, records in crash.ended)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--consumer", metavar="NAME", help="acknowledge as this consumer instead of truncating")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-") as place, pytest.MonkeyPatch.context() as patch:
        service = ThreadedService(Path(place, "wal"))
        outcome = run_campaign(
            service,
            Path(place),
            rounds=arguments.rounds,
            seed=arguments.seed,
            patch=patch,
            consumer=arguments.consumer,
        )
        service.end()
    print(
        f"{outcome.killed} kills, {outcome.cuts} power cuts, {outcome.recreated} queues recreated: {outcome.records:,} "
        f"of {outcome.records:,} records exactly once, the log is empty; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
