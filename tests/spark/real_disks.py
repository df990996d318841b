"""Power cuts of logs and table on real file systems: `sudo python -m tests.spark.real_disks --cuts 12`.

Three services and a drain run, with their files on mounted images. Producers append all the time; they are on no
machine that loses power. Each layout has states that the others lack, so all of them are worth a run:

    --images 2   the logs and the table apart: none is synced because the other one is
    --images 1   all on one: each sync of a log also writes the names of files whose contents are in memory only

Half of the cuts come at a random moment, half before a step of a batch. They hit the machine of the logs, that of the
drain with its table, or both at once. All processes of these machines are stopped first, so the images are
cut at one moment: what the processes did until then is what the file systems know. Then each is shut down without
writing its journal, the processes are killed, and the images are mounted again.

At the end, every acknowledged record must be in the table once, read with delta-rs, and the logs must be empty.

Left out: a disk that reorders or loses what was written before its cache was flushed. The file systems flush it when
they sync; whether they do is not tested here. Needs root, loop devices, and mkfs.
"""

from __future__ import annotations

import argparse
import logging
import random
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from tests.faults.real_disk import MAKE, cut_power, image
from tests.spark.processes import DrainProcess, Process, ServiceProcess, start, wait_until
from tests.spark.producers import Producer, check_empty, check_once, left_in
from tests.spark.stopping_drain import STEPS

logger = logging.getLogger(__name__)

SERVICES = "abc"
PROGRAM = "tests.spark.stopping_drain"
RANDOM_SECONDS, RANDOM_SECONDS_WITHOUT_SPARK = 1.5, 0.3
WHERE = {1: (0, 0), 2: (0, 1)}
"""By the number of images: on which the logs are, and the table."""

LOGS, DRAIN, BOTH = "the logs", "the drain", "both"


class Disk:
    """A file system in an image, which is mounted."""

    def __init__(self, file: Path, mount: Path) -> None:
        self._file, self.mount = file, mount
        self._mount()

    def cut(self) -> None:
        """Cut the power: nothing that is in memory reaches the image any more."""
        cut_power(self.mount)

    def mount_again(self) -> None:
        """Mount the image as it was when the power was cut."""
        self.unmount()
        self._mount()

    def unmount(self) -> None:
        """Unmount the image, and wait until nothing uses it: another namespace may have copied the mount."""
        command = ["umount", str(self.mount)]  # the kernel closes the files of killed processes a moment later
        wait_until(lambda: subprocess.run(command, capture_output=True).returncode == 0, f"{self.mount} stays busy")
        used = ["losetup", "-j", str(self._file)]
        wait_until(lambda: not subprocess.run(used, capture_output=True).stdout, f"{self._file} stays in use")

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._file), str(self.mount)], check=True, capture_output=True)


@dataclass(slots=True)
class Outcome:
    """What happened in a campaign. repaired: what the starts of the drain said about files that were half written."""

    cuts: list[str] = field(default_factory=list)
    records: int = 0
    batches: int = 0
    recreated: int = 0
    repaired: list[str] = field(default_factory=list)


class Machines:
    """One machine with services and their logs, and one with a drain and its table."""

    def __init__(
        self, kind: str, images: int, services: str, place: Path, closing: ExitStack, *, with_spark: bool
    ) -> None:
        disks = [self._disk(kind, closing) for _ in range(images)]
        self._logs, self._table = (disks[at] for at in WHERE[images])
        self.services = [
            ServiceProcess(name, self._logs.mount / name, place / f"service-{name}.txt") for name in services
        ]
        urls = {service.name: service.url for service in self.services}
        self.table = self._table.mount / "table"
        more = () if with_spark else ("--no-spark",)
        self.drain = DrainProcess(PROGRAM, urls, self.table, place / "drain", *more)
        self.cuts = (LOGS, DRAIN, DRAIN, BOTH, BOTH) if images > 1 else (BOTH,)
        for process in (*self.services, self.drain):
            closing.callback(process.kill)
        start([*self.services])
        start([self.drain])

    def cut(self, which: str) -> None:
        """Cut the power of one machine, or of both at one moment, and start what ran on it again."""
        disks = {
            *([self._logs] if which != DRAIN else ()),
            *([self._table] if which != LOGS else ()),
        }
        services = self.services if which != DRAIN else []
        drains = [self.drain] if which != LOGS else []
        processes: list[Process] = [*services, *drains]
        for process in processes:
            process.stop()
        for disk in disks:
            disk.cut()
        for process in processes:
            process.kill()
        for disk in disks:
            disk.mount_again()
        start([*services])
        start([*drains])  # a drain waits only for services that have responded before
        self.drain.stops.release()

    def _disk(self, kind: str, closing: ExitStack) -> Disk:
        disk = Disk(*closing.enter_context(image(kind)))
        closing.callback(disk.unmount)
        return disk


def run_cuts(
    kind: str, images: int, cuts: int, seed: int, services: str = SERVICES, *, with_spark: bool = True
) -> Outcome:
    """Cut the power *cuts* times. Raises AssertionError if a record is missing or stored twice."""
    chance, outcome = random.Random(seed), Outcome()
    with tempfile.TemporaryDirectory(prefix="mrecordlog-cuts-") as place, ExitStack() as closing:
        machines = Machines(kind, images, services, Path(place), closing, with_spark=with_spark)
        drain = machines.drain
        producers = [Producer(each.name, each.url, seed + number) for number, each in enumerate(machines.services)]
        for producer in producers:
            producer.start()
            closing.callback(producer.stop)
        for number in range(cuts):
            which = chance.choice(machines.cuts)
            when = _moment(drain, chance, with_spark=with_spark) if number % 2 else _step(drain, chance)
            machines.cut(which)
            outcome.cuts.append(f"{which} {when}")
            logger.info("cut %d: %s", len(outcome.cuts), outcome.cuts[-1])
            if which != LOGS:
                drain.wait_for_batches(1)
                repaired = [line for line in drain.said().splitlines() if "half written" in line]
                logger.info("\n".join(["a batch was committed", *repaired]))
                outcome.repaired += repaired
        for producer in producers:
            producer.end()
        wait_until(lambda: not left_in(producers), "the drain leaves records in the logs")
        outcome.batches, outcome.recreated = drain.batches(), sum(producer.recreated for producer in producers)
        outcome.records = check_once([DeltaTable(str(machines.table))], producers)
        check_empty(producers)
    return outcome


def _moment(drain: DrainProcess, chance: random.Random, *, with_spark: bool) -> str:
    drain.wait_for_batches(1)
    time.sleep(chance.uniform(0, RANDOM_SECONDS if with_spark else RANDOM_SECONDS_WITHOUT_SPARK))
    return "at a random moment"


def _step(drain: DrainProcess, chance: random.Random) -> str:
    drain.wait_for_batches(chance.randrange(2))
    step = chance.choice(STEPS)
    drain.stopped_at(step)
    return f"before {step!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file-system", choices=MAKE, default="ext4")
    parser.add_argument("--images", type=int, choices=WHERE, default=2)
    parser.add_argument("--cuts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--without-spark", action="store_true", help="run many short batches (--no-spark)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("seed %d", arguments.seed)
    begun = time.monotonic()
    outcome = run_cuts(
        arguments.file_system,
        arguments.images,
        arguments.cuts,
        arguments.seed,
        with_spark=not arguments.without_spark,
    )
    print(
        f"{len(outcome.cuts)} power cuts on {arguments.file_system}, {outcome.batches} batches, "
        f"{outcome.recreated} queues recreated: {outcome.records:,} of {outcome.records:,} records exactly once, the "
        f"logs are empty; {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
