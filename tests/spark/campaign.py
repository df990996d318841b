"""Exactly once under SIGKILL: `python -m tests.spark.campaign --kills 30 --services 3`.

Producers append to the services, delete queues that were drained and create them again, while drains run. Killed are,
in turns: a drain with all its processes, its driver, its Java, a worker, one service, several services. Half of the
kills come at a random moment, half inside a step of a commit, and of a truncate or an acknowledgement: a process of the
drain stops there until the victim is killed (`stops`). A drain that ended must have said why in one sentence; it is
started again, and so are services, after a moment.

`--on` names another Spark, with one drain: executors of their own (`local-cluster`) are killed too; on a `cluster` with
two workers at two addresses, a task that does not end is overtaken by its copy (speculation), and then ends; of
`connect`, the server is killed. `--s3` keeps the table in a store. With `--truncates`, another program truncates what
may be unread.

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
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from tests.deep.spark.s3 import s3_server
from tests.serving import free_port
from tests.spark import small_java, stream_job
from tests.spark.cluster import SPARK_HOME, cluster, descendants
from tests.spark.processes import (
    MASTER,
    ROOT,
    DrainProcess,
    Process,
    ServiceProcess,
    command_line,
    end_process,
    start,
    wait_until,
)
from tests.spark.producers import RECORDS_PER_APPEND, Producer, check_empty, check_once, left_in, request
from tests.spark.stopping_drain import ACKNOWLEDGE_STEPS, COMMIT_STEPS, FILES, TRUNCATE_STEPS
from tests.spark.stops import PLACE

logger = logging.getLogger(__name__)

PROGRAM = "tests.spark.stopping_drain"
SPARK, ENGINE, STREAM = PROGRAM, "without Spark", "tests.spark.stream_job"

LOCAL, LOCAL_CLUSTER, CLUSTER, CONNECT = "local", "local-cluster", "cluster", "connect"

SERVICES = ("a service", "several services")
VICTIMS = {
    (SPARK, LOCAL): ("a drain", "the driver", "Java", "a worker", *SERVICES),
    (SPARK, LOCAL_CLUSTER): ("a drain", "an executor", "a worker", "an executor", *SERVICES),
    (SPARK, CLUSTER): ("a drain", "an executor", "a slow task", "a slow task", *SERVICES),
    (SPARK, CONNECT): ("a drain", "Connect's server", "a worker", "Connect's server", *SERVICES),
    (STREAM, LOCAL): ("a drain", "Java", "a worker", "the source", *SERVICES),
    (ENGINE, LOCAL): ("a drain", *SERVICES),
}
"""What is killed, in turns. The drain without Spark is one process."""

IN_TASKS = ("a worker", "a slow task")
"""Victims that stop where a task does."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.task.duration.threshold": "2s",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
}


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
        on: str = LOCAL,
        storage: Mapping[str, str] | None = None,
        truncates: bool = False,
    ) -> None:
        self._chance = random.Random(seed)
        self._module, self._on, self._truncates = module, on, truncates
        beyond = () if memory_bytes is None else ("--memory-bytes", memory_bytes, "--beyond-memory", "disk")
        self.services = [
            ServiceProcess(name, place / f"log {name}", place / f"service-{name}.txt", *beyond)
            for name in "abcdefgh"[:services]
        ]
        urls = {service.name: service.url for service in self.services}
        shared, names = consumers or drains > 1, [f"lake-{number}" for number in range(drains)]
        self._consumers = names if shared else []
        program = STREAM if module == STREAM else PROGRAM
        self._connect = ConnectServer(place, place / names[0] / "stops") if on == CONNECT else None
        masters = {LOCAL_CLUSTER: "local-cluster[2,1,1024]", CONNECT: self._connect and self._connect.url}
        self._place, self._environment = place, dict[str, str]()
        self.drains = [
            DrainProcess(
                program,
                urls,
                f"s3://lake/{name}" if storage else place / name / "table",
                place / name,
                *self._more(place / name, name, shared),
                master=masters.get(on) or MASTER,
                settings=SPECULATION if on == CLUSTER else None,
                storage=storage,
            )
            for name in names
        ]
        options: dict[str, object] | None = {"keep": "until_acknowledged"} if shared else None
        self.producers = [
            Producer(each.name, each.url, seed + number, options=options, at_once=at_once, truncates=truncates)
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
        own += ["--shared-paths"] if self._on != LOCAL else []
        own += ["--allow-data-loss"] if self._truncates else []
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
            case "the driver":
                self._kill_driver(drain)
            case "Java":
                self._kill_part(drain, drain.java())
            case "a worker":
                end_process(stopped or _started(lambda line: "spark.daemon" in line, self._chance))
            case "an executor":
                end_process(_started(lambda line: "CoarseGrainedExecutorBackend" in line, self._chance))
            case "a slow task":  # its copy has stored the batch before it may continue
                drain.wait_for_batches(1)
            case "Connect's server":
                assert self._connect is not None
                self._connect.kill()
                wait_until(lambda: drain.ended is not None, "the drain continues without Spark")
                start([self._connect])
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

    def _kill_driver(self, drain: DrainProcess) -> None:
        """Kill the driver alone: its Java has to end as well."""
        assert drain.process is not None
        java = drain.java()
        end_process(drain.process.pid)
        drain.stops.release()
        wait_until(lambda: java not in drain.members(), "Java runs on without its driver")
        drain.kill()

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
        before = {str(drain.output): drain.batches() for drain in self.drains}
        wait_until(lambda: self._all_run() and self._committed_since(before), "a drain commits nothing")

    def _all_run(self) -> bool:
        """Start those drains again that ended by themselves; note what is on the disks."""
        on_disk = (service.bytes_on_disk() for service in self.services)
        self.outcome.bytes_on_disk = max(self.outcome.bytes_on_disk, *on_disk)
        for drain in self.drains:
            if drain.process is not None and drain.ended is not None:
                self._start_again(drain)
        return True

    def _committed_since(self, before: dict[str, int]) -> bool:
        return all(drain.batches() > before[str(drain.output)] for drain in self.drains)

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
            if self._on == CLUSTER:
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
                hosts = ("127.0.0.1", "127.0.0.2")
                found = closing.enter_context(cluster(self._place, environment, hosts))
                for drain in self.drains:
                    drain.use_master(found.url)
            for process in (*self.services, *self.drains, *([self._connect] if self._connect else [])):
                closing.callback(process.kill)
            start([*self.services, *([self._connect] if self._connect else [])])
            self._add_rules()
            for producer in self.producers:
                producer.start()
                closing.callback(producer.stop)
            yield


class ConnectServer(Process):
    """A server of Spark Connect, whose tasks stop where the drain's do."""

    def __init__(self, place: Path, stops: Path) -> None:
        port = free_port()
        self.url = f"sc://127.0.0.1:{port}"
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", MASTER, "--driver-java-options"]
        command += [small_java.OPTIONS, "--conf", "spark.ui.enabled=false"]
        command += ["--conf", f"spark.connect.grpc.binding.port={port}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environment = {"PYSPARK_PYTHON": sys.executable, PLACE: str(stops), "SPARK_LOCAL_IP": "127.0.0.1"}
        super().__init__(command, place / "connect.txt", environment)

    def wait(self) -> None:
        """Wait until it serves."""
        wait_until(lambda: "Spark Connect server started" in self.said(), "Connect's server does not start")


def _started(fits: Callable[[str], bool], chance: random.Random) -> int:
    """Return one of the processes of this campaign whose command line fits; 0 for none."""
    found = [each for each in descendants(os.getpid()) if fits(command_line(each))]
    return chance.choice(found) if found else 0


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
    on: str = LOCAL,
    storage: Mapping[str, str] | None = None,
    truncates: bool = False,
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
        on: the Spark, of `VICTIMS`.
        storage: of a store that has the tables in the bucket `lake`; None for a disk.
        truncates: let another program truncate.
        memory_bytes: limit of each service's memory, beyond which records are on its disk alone; None for the default.
        catch_up: called at the end: it ends the producers, and brings the drains to the end of the logs.
    """
    at_once = RECORDS_PER_APPEND * (4 if records else 1)
    campaign = Campaign(
        place,
        module,
        services,
        drains,
        seed,
        consumers=consumers,
        at_once=at_once,
        memory_bytes=memory_bytes,
        on=on,
        storage=storage,
        truncates=truncates,
    )
    victims = VICTIMS[module, on]
    outcome = campaign.outcome
    with campaign.running():
        for number in range(kills):
            # One kill for each drain, and then both start again at the same time.
            if number % drains == 0:
                campaign.run_on()
            drain = campaign.drains[(number + number // len(victims)) % drains]
            # Each victim dies inside a step and at a random moment in turns.
            inside = (number + number // len(victims)) % 2 == 0
            victim = victims[number % len(victims)]
            step = campaign.steps[(seed + number // 2) % len(campaign.steps)] if inside else None
            if module == SPARK and (victim == "a slow task" or (inside and victim in IN_TASKS)):
                step = FILES
            campaign.kill(victim, step, drain)
        campaign.wait_for_records(records)
        catch_up(campaign)
        tables = [DeltaTable(str(drain.output), storage_options=drain.storage) for drain in campaign.drains]
        outcome.records = check_once(tables, campaign.producers)
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
    parser.add_argument("--on", choices=(LOCAL, LOCAL_CLUSTER, CLUSTER, CONNECT), default=LOCAL)
    parser.add_argument("--s3", action="store_true", help="keep the tables in a store")
    parser.add_argument("--truncates", action="store_true", help="let another program truncate what may be unread")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("seed %d", arguments.seed)
    begun = time.monotonic()
    with ExitStack() as closing:
        place = closing.enter_context(tempfile.TemporaryDirectory(prefix="mrecordlog-campaign-"))
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
            on=arguments.on,
            storage=closing.enter_context(s3_server(Path(place))) if arguments.s3 else None,
            truncates=arguments.truncates,
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
