"""Kill services of a fleet while producers and consumers run, and compare what both were given.

    python -m tests.client.fleet.kills --kills 100 --seed 3

The suite runs a short one, in `test_kills`. What this leaves out: services on several machines, a network that loses
packets or is cut in two, power cuts (`tests/faults` has those of a single log), and more than one fleet of consumers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from mrecordlog_async.client import (
    FleetBatch,
    OutcomeUnknownError,
    RecordLogFleet,
    ServiceError,
    ServiceUnreachableError,
    Stored,
)
from mrecordlog_async.client.fleet.membership import Resolver
from tests.serving import Process

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class Names(Resolver):
    """Knows one name: every host whose process runs, as a headless service does."""

    def __init__(self, services: dict[str, Process]) -> None:
        self.processes = services

    async def addresses(self, host: str, port: int) -> list[str]:
        assert host == "wal"
        return [address for address, service in self.processes.items() if service.process is not None]


@contextmanager
def three_services(directory: Path) -> Iterator[dict[str, Process]]:
    """Run three processes at one port of three addresses."""
    with ExitStack() as stack:
        services: dict[str, Process] = {}
        for host in HOSTS:
            port = next(iter(services.values())).port if services else 0
            arguments = ["--host", host, "--allow-host", "wal", "--name", f"wal-{host[-1]}"]
            services[host] = stack.enter_context(Process(directory / host, arguments, port=port))
        yield services


async def kill_some(services: dict[str, Process], kills: int, seed: int, progress: dict[str, int]) -> None:
    """Kill one process after another, and start each again once producers have stored something without it."""
    choose = random.Random(seed)
    for _ in range(kills):
        victim = services[choose.choice(HOSTS)]
        await asyncio.to_thread(victim.kill)
        await passed(progress, 40)
        await asyncio.to_thread(victim.start)
        await passed(progress, 10)


async def passed(progress: dict[str, int], records: int) -> None:
    """Wait until this many more records are stored."""
    until = progress["stored"] + records
    while progress["stored"] < until:
        await asyncio.sleep(0.01)


@dataclass
class Ledger:
    """What producers and consumers were given, by (log, queue, position)."""

    acknowledged: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    consumed: dict[tuple[str, str, int], bytes] = field(default_factory=dict)
    queue_ids: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    order: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    progress: dict[str, int] = field(default_factory=lambda: {"stored": 0, "unknown": 0})

    def stored(self, key: str, payload: bytes, stored: Stored) -> None:
        assert stored.position is not None
        place = (stored.log_id, stored.queue, stored.position)
        assert place not in self.acknowledged, "a position was given twice"
        self.acknowledged[place] = payload
        self.order[key, stored.log_id].append(stored.position)
        self.progress["stored"] += 1

    def given(self, batch: FleetBatch) -> None:
        self.queue_ids[batch.log_id, batch.queue].add(batch.queue_id)
        for position, payload in batch:
            known = self.consumed.setdefault((batch.log_id, batch.queue, position), payload)
            assert known == payload, "a position has two records"


async def append(
    store: Callable[[bytes, str], Awaitable[Stored]], key: str, ledger: Ledger, ending: asyncio.Event
) -> None:
    """Append records of one key, one after the other."""
    for number in count():
        if ending.is_set():
            return
        payload = f"{key} {number}".encode()
        try:
            ledger.stored(key, payload, await store(payload, key))
        except OutcomeUnknownError:
            ledger.progress["unknown"] += 1


async def consume(fleet: RecordLogFleet, queue: str, ledger: Ledger) -> None:
    """Consume a queue until it is sealed everywhere."""
    async with fleet.consumer(queue, "lake") as consumer:
        async for batch in consumer.batches(max_records=50, max_wait=0.05):
            ledger.given(batch)
            await consumer.acknowledge(batch)


def check(ledger: Ledger) -> None:
    """Raise AssertionError unless what was acknowledged was consumed, and each server has a key in order."""
    assert ledger.acknowledged.items() <= ledger.consumed.items()
    assert all(positions == sorted(positions) for positions in ledger.order.values())
    assert all(len(ids) == 1 for ids in ledger.queue_ids.values())


async def kill_services(directory: Path, kills: int, seed: int) -> Ledger:
    """Kill services while producers and consumers run; return what both were given, after all has been consumed."""
    ledger, ending, queues = Ledger(), asyncio.Event(), ["plain", "waiting", "owned"]
    with three_services(directory) as services:
        servers, names = f"dns+http://wal:{services[HOSTS[0]].port}", Names(services)
        async with (
            RecordLogFleet(servers, resolver=names) as fleet,
            RecordLogFleet(servers, resolver=names, on_unknown="wait") as patient,
            asyncio.TaskGroup() as consuming,
        ):
            while [one.name for one in fleet.servers()] != ["wal-2", "wal-3", "wal-4"]:
                await asyncio.sleep(0.05)  # the last one still recovers
            for queue in queues:
                consuming.create_task(consume(fleet, queue, ledger))
            async with fleet.producer("owned") as producer, asyncio.TaskGroup() as producing:
                stores: dict[str, Callable[[bytes, str], Awaitable[Stored]]] = {
                    "plain": lambda payload, key: fleet.append_record("plain", payload, key=key),
                    "waiting": lambda payload, key: patient.append_record("waiting", payload, key=key),
                    "owned": lambda payload, key: producer.append_record(payload, key=key),
                }
                for queue in queues:
                    for number in range(4):
                        producing.create_task(append(stores[queue], f"{queue} {number}", ledger, ending))
                await kill_some(services, kills, seed, ledger.progress)
                ending.set()
            for queue in queues:
                await sealed_everywhere(fleet, queue)
    return ledger


async def sealed_everywhere(fleet: RecordLogFleet, queue: str) -> None:
    """Seal a queue, once the service that was started last has recovered."""
    while True:
        try:
            return await fleet.seal_queue(queue)
        except (ServiceUnreachableError, ServiceError):
            await asyncio.sleep(0.05)


def run() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="how often to kill a service (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="which service is killed when (default: 0)")
    given = parser.parse_args()
    with TemporaryDirectory() as directory:
        ledger = asyncio.run(kill_services(Path(directory), given.kills, given.seed))
    check(ledger)
    stored, unknown, consumed = len(ledger.acknowledged), ledger.progress["unknown"], len(ledger.consumed)
    print(
        f"{given.kills} kills: {stored:,} records acknowledged, {unknown:,} unknown, {consumed:,} consumed, none lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(run())
