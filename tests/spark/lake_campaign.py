"""A drain that is killed, next to `lake optimize`, `lake vacuum` and a program with delta-rs, which are killed, too.

`python -m tests.spark.lake_campaign --rounds 200`. Files get old within seconds, and files of others lie below the
table's directory. At the end every acknowledged record must be in the table once, the log empty, and the files of
others unchanged. Nobody else rewrites files: delta-rs lets two such programs store rows twice (`changes.broken_after`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.upkeep import optimize
from mrecordlog_async.spark.delta.vacuum import RETENTION, SECONDS_MIN, vacuum
from tests.spark.delta_engine import STEPS, DeltaEngine
from tests.spark.services import ThreadedService, numbered

OLD_SECONDS = 25
"""Files of this age get the age of those that a vacuum may delete; no batch takes this long."""

FOREIGN = "of another program"


def upkeep(path: str, seed: int) -> None:
    """Optimize and vacuum the table until the process is killed."""
    chance, place = random.Random(seed), TablePlace(path)
    while True:
        with suppress(DeltaError, OSError, RecordLogError):  # another writer was faster each time
            if chance.random() < 0.6:
                optimize(place)
            age(Path(path), OLD_SECONDS)
            vacuum(place, SECONDS_MIN)
        time.sleep(chance.random() * 0.5)


def another_program(path: str, seed: int) -> None:
    """Append, delete and update rows, and write checkpoints of the table, until the process is killed."""
    chance = random.Random(seed)
    while True:
        with suppress(DeltaError, OSError):
            table, what = DeltaTable(path), chance.randrange(5)
            if what < 2:
                schema = pa.schema([each.with_nullable(True) for each in pa.schema(table.schema().to_arrow())])
                rows = [{"queue": FOREIGN, "server": "a", "position": 0, "payload": b"x"}] * 3
                write_deltalake(path, pa.Table.from_pylist(rows, schema), mode="append")
            elif what == 2:
                table.delete(f"queue = '{FOREIGN}'")
            elif what == 3:
                table.update({"position": "1"}, predicate=f"queue = '{FOREIGN}'")
            else:
                table.create_checkpoint()
        time.sleep(chance.random() * 0.3)


def age(table: Path, seconds: float) -> None:
    """Let data files that are older than *seconds* be older than any period."""
    now = time.time()
    for directory, _, names in os.walk(table):
        for name in names if "_delta_log" not in directory else ():
            with suppress(FileNotFoundError):
                if now - os.stat(f"{directory}/{name}").st_mtime > seconds:
                    os.utime(f"{directory}/{name}", (now - 30 * 86_400,) * 2)


Program = Callable[[str, int], None]
"""Takes the path of the table, and a seed."""


@dataclass(slots=True)
class Outcome:
    """What happened in a campaign."""

    records: int = 0
    drains_killed: int = 0
    others_killed: int = 0
    versions: int = 0


@contextmanager
def running(path: str, chance: random.Random) -> Iterator[Callable[[], None]]:
    """Run the other programs; yield a function that kills one of them and starts it again."""
    spawn = multiprocessing.get_context("spawn")

    def started(what: Program) -> BaseProcess:
        process = spawn.Process(target=what, args=(path, chance.randrange(1 << 30)), daemon=True)
        process.start()
        return process

    programs: dict[Program, BaseProcess] = {what: started(what) for what in (upkeep, another_program)}

    def end(what: Program) -> None:
        programs[what].kill()
        programs[what].join()

    def killed() -> None:
        what = chance.choice([*programs])
        end(what)
        programs[what] = started(what)

    try:
        yield killed
    finally:
        for what in programs:
            end(what)


def run_campaign(service: ThreadedService, place: Path, *, rounds: int, seed: int) -> Outcome:
    """Run one campaign; raise AssertionError if a record is missing or stored twice, or a file of others is."""
    chance, outcome, stored = random.Random(seed), Outcome(), {"q": 5}
    partition_by = chance.choice([(), ("queue",), ("server", "queue")])
    engine = DeltaEngine(
        f"a={service.url}", place, partition_by=partition_by, maxRecordsPerTrigger="60", minPartitions="2"
    )
    service.append("q", numbered("q", 0, 5))
    engine.drain()
    DeltaTable(engine.place.uri).alter.set_table_properties({RETENTION: "interval 1 seconds"})
    others = [engine.table_path / "notes" / f"{name}" for name in ("thesis.txt", f"part-{uuid.uuid4()}.parquet")]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("of others")
        os.utime(path, (0, 0))
    with running(str(engine.table_path), chance) as kill_another:
        for _ in range(rounds):
            queue, records = chance.choice(["q", "7", "ä/%= b"]), chance.randrange(1, 40)
            first = stored.get(queue, 0)
            service.append(queue, numbered(queue, first, first + records), first)
            stored[queue] = first + records
            outcome.drains_killed += engine.kill_at(chance.choice(STEPS), chance.randrange(1, 4))
            if chance.random() < 0.1:
                kill_another()
                outcome.others_killed += 1
    engine.drain()
    expected = [(queue, at, each) for queue, stop in stored.items() for at, each in enumerate(numbered(queue, 0, stop))]
    assert [row for row in engine.rows() if row[0] != FOREIGN] == sorted(expected)
    assert not any(service.records().values())
    assert [path.read_text() for path in others] == ["of others"] * len(others)
    outcome.records, outcome.versions = len(expected), DeltaTable(engine.place.uri).version()
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-") as place:
        service = ThreadedService(Path(place, "wal"))
        outcome = run_campaign(service, Path(place), rounds=arguments.rounds, seed=arguments.seed)
        service.end()
    print(
        f"{outcome.drains_killed} kills of the drain, {outcome.others_killed} of others: {outcome.records:,} of "
        f"{outcome.records:,} records exactly once in {outcome.versions} versions, the log is empty"
    )


if __name__ == "__main__":
    main()
