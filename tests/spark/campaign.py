"""Exactly once under SIGKILL: `python -m tests.spark.campaign --kills 30 --services 3`.

Producers append to the services, delete queues that were drained and create them again, while drains run. Killed are,
in turns: a drain with all its processes, its Java, a worker, one service, several services. Half of the kills come at a
random moment, half inside a step of a commit, and of a truncate or an acknowledgement: a process of the drain stops
there until the victim is killed (`stops`). A drain that ended must have said why in one sentence; it is started again,
and so are services, after a moment.

Two drains share all queues: each is a consumer (`--consumer`), and the queues keep records until both have acknowledged
them. One drain alone truncates.

With `--memory-bytes 1MiB`, the services keep no more in memory, so that drains read most records from the disk.

`--stream` has plain `readStream` queries in their place, which store through `foreachBatch` (see `stream_job`).

Then the producers end, and the drains catch up. Every acknowledged record must be in each table once, with its payload,
read with delta-rs, and the logs must be empty.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark import stream_job
from tests.spark.processes import DrainProcess, Process, ServiceProcess, end_process, start, wait_until
from tests.spark.producers import RECORDS_PER_APPEND, Producer, check_empty, check_once, left_in, request
from tests.spark.stopping_drain import ACKNOWLEDGE_STEPS, COMMIT_STEPS, FILES, TRUNCATE_STEPS

logger = logging.getLogger(__name__)

PROGRAM = "tests.spark.stopping_drain"
SPARK, ENGINE, STREAM = PROGRAM, "without Spark", "tests.spark.stream_job"

VICTIMS = {
    SPARK: ("a drain", "Java", "a worker", "a service", "several services"),
    STREAM: ("a drain", "Java", "a worker", "the source", "a service", "several services"),
    ENGINE: ("a drain", "a service", "several services"),
}
"""What is killed, in turns. The drain without Spark is one process."""


RANDOM_SECONDS = 1.5
"""How long after the commit of a batch a kill at a random moment comes at most: a batch takes about that long."""

DOWN_SECONDS = 3.0
"""How long a killed service is down at most."""

REQUEST_SECONDS = 0.005
"""A service that is killed inside a request dies at most that long after the drain went on to send it."""


@dataclass(slots=True)
class Outcome:
    """What happened in a campaign.

    said: the last line of each drain that ended by itself. noise: stack traces. bytes_on_disk: the most that had left
    the memory of a service, as far as it was looked at.
    """

    kills: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)
    records: int = 0
    recreated: int = 0
    batches: int = 0
    bytes_on_disk: int = 0


class Campaign:
    """Services, producers and drains, and how they are killed."""

    def __init__(
        self,
        place: Path,
        module: str,
        services: int,
        drains: int,
        seed: int,
        *,
        consumers: bool,
        at_once: int,
        memory_bytes: str | None = None,
    ) -> None:
        self._chance = random.Random(seed)
        self._module = module
        beyond = () if memory_bytes is None else ("--memory-bytes", memory_bytes, "--beyond-memory", "disk")
        self.services = [
            ServiceProcess(name, place / f"log {name}", place / f"service-{name}.txt", *beyond)
            for name in "abcdefgh"[:services]
        ]
        urls = {service.name: service.url for service in self.services}
        shared, names = consumers or drains > 1, [f"lake-{number}" for number in range(drains)]
        self._consumers = names if shared else []
        program = STREAM if module == STREAM else PROGRAM
        self.drains = [
            DrainProcess(program, urls, place / name / "table", place / name, *self._more(place / name, name, shared))
            for name in names
        ]
        options: dict[str, object] | None = {"keep": "until_acknowledged"} if shared else None
        self.producers = [
            Producer(each.name, each.url, seed + number, options=options, at_once=at_once)
            for number, each in enumerate(self.services)
        ]
        releases = ACKNOWLEDGE_STEPS if shared else TRUNCATE_STEPS
        self.steps = [FILES, *COMMIT_STEPS, *releases]
        if module == STREAM:
            self.steps = [*(stream_job.ACKNOWLEDGE_STEPS if shared else stream_job.TRUNCATE_STEPS)]
        self.outcome = Outcome()

    def _more(self, place: Path, name: str, shared: bool) -> list[str]:
        """Return what else the command line of a drain has."""
        own = {STREAM: ["--checkpoint", str(place / "checkpoint")], ENGINE: ["--no-spark"]}.get(self._module, [])
        return [*own, *(["--consumer", name] if shared else [])]

    def _add_rules(self) -> None:
        """Make each drain a consumer of all queues before there are any: none is truncated before both know it."""
        for service in self.services:
            for name in self._consumers:
                request(service.url, "PUT", f"*/consumers/{name}?exist_ok=1", {})

    def kill(self, victim: str, step: str | None, drain: DrainProcess) -> None:
        """Kill *victim* of *drain*, or a service that it uses, before *step* or at a random moment."""
        stopped = 0
        if step is None:
            drain.wait_for_batches(1)
            time.sleep(self._chance.uniform(0, RANDOM_SECONDS))
        else:
            stopped = drain.stopped_at(step)
        match victim:
            case "a drain":
                drain.kill()
            case "Java":
                self._kill_part(drain, drain.java())
            case "a worker":
                self._kill_part(drain, stopped or drain.worker())
            case "the source":
                self._kill_part(drain, drain.source())
            case _:
                self._kill_services(1 if victim == "a service" else len(self.services) - 1, drain)
        drain.stops.release()
        self.outcome.kills.append(f"{victim} {'at a random moment' if step is None else f'before {step!r}'}")
        logger.info("kill %d: %s", len(self.outcome.kills), self.outcome.kills[-1])

    def _kill_part(self, drain: DrainProcess, process: int) -> None:
        """Kill one process of *drain*, and wait for the end of a drain that cannot continue without it.

        Without its source a drain can still commit a batch, and would end during a later kill.
        """
        ends = process and process in (drain.java(), drain.source())
        end_process(process)
        drain.stops.release()
        if ends:
            wait_until(lambda: drain.ended is not None, f"the drain continues without process {process}")

    def _kill_services(self, number: int, drain: DrainProcess) -> None:
        if self._chance.random() < 0.5:  # inside the request that the drain was about to send
            drain.stops.release()
            time.sleep(self._chance.uniform(0, REQUEST_SECONDS))
        killed: list[Process] = [*self._chance.sample(self.services, max(number, 1))]
        for service in killed:
            service.kill()
        drain.stops.release()
        time.sleep(self._chance.uniform(0, DOWN_SECONDS))
        start(killed)

    def run_on(self) -> None:
        """Start drains that were killed or ended, and wait until each has committed a batch. Raises AssertionError."""
        for drain in self.drains:
            if drain.process is None:
                drain.start()
        before = {drain.output: drain.batches() for drain in self.drains}
        wait_until(lambda: self._all_run() and self._committed_since(before), "a drain commits nothing")

    def _all_run(self) -> bool:
        """Start those drains again that ended by themselves; note what is on the disks."""
        on_disk = (service.bytes_on_disk() for service in self.services)
        self.outcome.bytes_on_disk = max(self.outcome.bytes_on_disk, *on_disk)
        for drain in self.drains:
            if drain.process is not None and drain.ended is not None:
                self._start_again(drain)
        return True

    def _committed_since(self, before: dict[Path, int]) -> bool:
        return all(drain.batches() > before[drain.output] for drain in self.drains)

    def _start_again(self, drain: DrainProcess) -> None:
        said = drain.said()
        assert drain.ended in (1, 5), f"exit code {drain.ended}: {said[-3_000:]}"
        if self._module != STREAM and ("Traceback" in said or "\tat " in said):
            self.outcome.noise.append(said[-3_000:])
        self.outcome.said.append(said.splitlines()[-1])
        logger.info("a drain ended: %s", self.outcome.said[-1])
        drain.kill()
        drain.start()

    def wait_for_records(self, records: int) -> None:
        """Wait until the producers have appended this many."""
        wait_until(
            lambda: self._all_run() and sum(sum(each.acknowledged.values()) for each in self.producers) >= records,
            f"the producers do not append {records} records",
        )

    def end_producers(self) -> None:
        """Stop appending. Raises what went wrong in a producer."""
        for producer in self.producers:
            producer.end()

    def catch_up(self) -> None:
        """End the producers, wait until the logs are empty, and end the drains as their users would."""
        self.run_on()
        self.end_producers()
        wait_until(lambda: self._all_run() and not left_in(self.producers), "the drains leave records")
        for drain in self.drains:
            assert drain.terminate() == 0, drain.said()[-3_000:]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run services and producers; kill what is left at the end."""
        with ExitStack() as closing:
            for process in (*self.services, *self.drains):
                closing.callback(process.kill)
            start([*self.services])
            self._add_rules()
            for producer in self.producers:
                producer.start()
                closing.callback(producer.stop)
            yield


def run_campaign(
    place: Path,
    kills: int,
    seed: int,
    *,
    services: int = 1,
    drains: int = 1,
    module: str = SPARK,
    consumers: bool = False,
    records: int = 0,
    memory_bytes: str | None = None,
    catch_up: Callable[[Campaign], None] = Campaign.catch_up,
) -> Outcome:
    """Run one campaign in *place*. Raises AssertionError if a record is missing, stored twice or changed.

    Args:
        place: where logs, tables and checkpoints are.
        kills: how many.
        seed: of all choices.
        services: how many.
        drains: how many.
        module: the program that drains: `SPARK`, `ENGINE` for many short batches without Spark, or `STREAM`.
        consumers: let even a drain that is alone be a consumer.
        records: append at least this many, faster than usual.
        memory_bytes: limit of each service's memory, beyond which records are on its disk alone; None for the default.
        catch_up: called at the end: it ends the producers, and brings the drains to the end of the logs.
    """
    at_once = RECORDS_PER_APPEND * (4 if records else 1)
    campaign = Campaign(
        place, module, services, drains, seed, consumers=consumers, at_once=at_once, memory_bytes=memory_bytes
    )
    victims = VICTIMS[module]
    outcome = campaign.outcome
    with campaign.running():
        for number in range(kills):
            # One kill for each drain, and then both start again at the same time.
            if number % drains == 0:
                campaign.run_on()
            drain = campaign.drains[(number + number // len(victims)) % drains]
            # Each victim dies inside a step and at a random moment in turns.
            inside = (number + number // len(victims)) % 2 == 0
            step = campaign.steps[(seed + number // 2) % len(campaign.steps)] if inside else None
            campaign.kill(victims[number % len(victims)], step, drain)
        campaign.wait_for_records(records)
        catch_up(campaign)
        outcome.records = check_once([drain.output for drain in campaign.drains], campaign.producers)
        outcome.recreated = sum(producer.recreated for producer in campaign.producers)
        outcome.batches = sum(drain.batches() for drain in campaign.drains)
        check_empty(campaign.producers)
    assert not outcome.noise, outcome.noise[0]
    assert memory_bytes is None or outcome.bytes_on_disk, "no record has left memory"
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--services", type=int, default=3)
    parser.add_argument("--drains", type=int, default=2)
    parser.add_argument("--consumers", action="store_true", help="let a drain that is alone be a consumer, too")
    parser.add_argument("--records", type=int, default=0, help="append at least this many")
    parser.add_argument("--memory-bytes", help="keep this much in the memory of a service, and the rest on its disk")
    parser.add_argument("--stream", action="store_true", help="run plain queries instead of drains (see stream_job)")
    parser.add_argument("--without-spark", action="store_true", help="run many short batches (--no-spark)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("seed %d", arguments.seed)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-") as place:
        outcome = run_campaign(
            Path(place),
            arguments.kills,
            arguments.seed,
            services=arguments.services,
            drains=arguments.drains,
            module=ENGINE if arguments.without_spark else STREAM if arguments.stream else SPARK,
            consumers=arguments.consumers,
            records=arguments.records,
            memory_bytes=arguments.memory_bytes,
        )
    if arguments.memory_bytes:
        print(f"up to {outcome.bytes_on_disk:,} bytes had left the memory of a service")
    print(
        f"{len(outcome.kills)} kills, {outcome.batches} batches, {outcome.recreated} queues recreated: "
        f"{outcome.records:,} of {outcome.records:,} records exactly once, the logs are empty; "
        f"{time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
