"""Hostile proxies and kills of the service, while producers append: count what was lost, doubled or misreported.

    python -m tests.client.hostile_campaign --records 5000 --seed 3

Two services, each behind a proxy that delays, loses, repeats, replays and refuses requests. The suite runs a short one,
without kills, in `test_hostile_proxy`. With kills, a proxy that sends a request again until it has a response
(`Fault.RETRY`) may hide a record that is stored: the repeat meets a service that recovers, and 503 says that nothing is
stored. docs/client.md says so. What this leaves out: proxies that change bodies or mix up responses.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from mrecordlog_async import RecordLogError
from mrecordlog_async.client import (
    OutcomeUnknownError,
    RecordLogClient,
    RecordLogFleet,
    ServiceError,
    ServiceUnreachableError,
)
from mrecordlog_async.errors import LogFailedError
from tests.client.hostile import Fault, Plan, Request, hostile
from tests.serving import Process

QUEUES = ("producer", "fleet producer", "fleet wait", "fleet raise")
"""What appends to them. Records of the last one have no position, so what a proxy repeats is stored twice."""

Store = Callable[[bytes], Awaitable[object]]


@dataclass
class Ledger:
    """What callers got, by queue: payloads that are stored, perhaps stored, and not stored."""

    stored: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    unknown: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    refused: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    consumed: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    async def append(self, queue: str, name: str, number: int, store: Store) -> None:
        payload = f"{queue} {name} {number}".encode()
        try:
            await store(payload)
        except RecordLogError as error:
            (self.unknown if is_unknown(error) else self.refused)[queue].add(payload)
        else:
            self.stored[queue].add(payload)


@dataclass(frozen=True)
class Verdict:
    """Numbers of one queue. doubled: without an error. misreported: reported as not stored, and stored."""

    stored: int
    unknown: int
    refused: int
    lost: int
    doubled: int
    misreported: int
    not_consumed: int


def is_unknown(error: RecordLogError) -> bool:
    """Return whether *error* says that the record may be stored, as `Producer.append_record` documents it."""
    match error:
        case OutcomeUnknownError():
            return True
        case ServiceUnreachableError():
            return error.sent
        case LogFailedError():
            return error.written != "no"
        case ServiceError():
            return not 300 <= error.status < 500 and error.status != 503
    return False


def random_plan(choose: random.Random, faults: Sequence[Fault], share: float, delay_seconds: float) -> Plan:
    """Return a plan that does one of *faults* to this share of all requests."""

    def plan(request: Request) -> tuple[Fault, float]:
        fault = choose.choice(faults) if choose.random() < share else Fault.NONE
        return fault, choose.random() * delay_seconds if choose.random() < share else 0.0

    return plan


async def attack(
    directory: Path, records: int, seed: int, *, kills: bool, faults: Sequence[Fault] = tuple(Fault), tasks: int = 3
) -> dict[str, Verdict]:
    """Append to two services through hostile proxies until each queue has this many; return a verdict on each."""
    choose, ledger, ending = random.Random(seed), Ledger(), asyncio.Event()
    async with AsyncExitStack() as stack:
        services = [stack.enter_context(Process(directory / name)) for name in ("a", "b")]
        proxies = [
            await stack.enter_async_context(hostile(one.port, random_plan(choose, faults, 0.15, 0.05)))
            for one in services
        ]
        client = await stack.enter_async_context(RecordLogClient(proxies[0].url, retry_seconds=8.0))
        for queue in QUEUES:
            await client.create_queue(queue, exist_ok=True)
        urls = [proxy.url for proxy in proxies]
        fleets = {
            policy: await stack.enter_async_context(RecordLogFleet(urls, retry_seconds=8.0, on_unknown=policy))
            for policy in ("raise", "wait")
        }
        for fleet in fleets.values():
            while len(fleet.servers()) < len(services):  # a probe was lost; nobody reads a server that was never seen
                await fleet.look()
        async with asyncio.TaskGroup() as group:
            group.create_task(produce(client, ledger, ending))
            group.create_task(produce_for_fleet(fleets["raise"], ledger, ending, tasks))
            for number in range(tasks):
                for policy, fleet in fleets.items():
                    group.create_task(append_plain(f"fleet {policy}", str(number), fleet, ledger, ending))
            consumers = [
                asyncio.create_task(consume(fleets["raise"], queue, ledger))
                for queue in ("fleet producer", "fleet wait")
            ]
            if kills:
                group.create_task(kill(services, choose, ending))
            while min(len(ledger.stored[queue]) for queue in QUEUES) < records:
                await asyncio.sleep(0.01)
            ending.set()
        for proxy in proxies:
            proxy.plan = lambda _: (Fault.NONE, 0.0)
            while proxy.later:
                await asyncio.sleep(0.01)
        for queue in ("fleet producer", "fleet wait"):
            await sealed(fleets["raise"], queue)
        async with asyncio.timeout(120):
            await asyncio.gather(*consumers)
        return await judge(services, ledger)


async def produce(client: RecordLogClient, ledger: Ledger, ending: asyncio.Event) -> None:
    """Append through one producer after the other: one that has failed is replaced."""
    numbers = count()
    while not ending.is_set():
        with suppress(RecordLogError):  # the next position could not be asked for
            async with client.producer("producer") as producer:
                while not producer.failed and not ending.is_set():
                    several = [next(numbers) for _ in range(3)]
                    await asyncio.gather(
                        *(ledger.append("producer", "", number, producer.append_record) for number in several)
                    )


async def produce_for_fleet(fleet: RecordLogFleet, ledger: Ledger, ending: asyncio.Event, tasks: int) -> None:
    async with fleet.producer("fleet producer") as producer:

        async def one(name: str) -> None:
            for number in count():
                if ending.is_set():
                    return
                await ledger.append(
                    "fleet producer", name, number, lambda payload: producer.append_record(payload, key=name)
                )

        await asyncio.gather(*(one(str(number)) for number in range(tasks)))


async def append_plain(queue: str, name: str, fleet: RecordLogFleet, ledger: Ledger, ending: asyncio.Event) -> None:
    for number in count():
        if ending.is_set():
            return
        await ledger.append(queue, name, number, lambda payload: fleet.append_record(queue, payload, key=name))


async def consume(fleet: RecordLogFleet, queue: str, ledger: Ledger) -> None:
    """Consume until the queue is sealed everywhere; a holder that its own repeated request has fenced enters again."""
    while True:
        try:
            async with fleet.consumer(queue, "lake") as consumer:
                async for batch in consumer.batches(max_records=20, max_wait=0.05):
                    ledger.consumed[queue].update(batch.payloads())
                    await consumer.acknowledge(batch)
                return
        except RecordLogError:
            await asyncio.sleep(0.05)


async def kill(services: list[Process], choose: random.Random, ending: asyncio.Event) -> None:
    while not ending.is_set():
        victim = choose.choice(services)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
        with suppress(TimeoutError):
            async with asyncio.timeout(choose.uniform(2.0, 6.0)):
                await ending.wait()


async def sealed(fleet: RecordLogFleet, queue: str) -> None:
    while True:
        try:
            return await fleet.seal_queue(queue)
        except RecordLogError:
            await asyncio.sleep(0.1)


async def judge(services: list[Process], ledger: Ledger) -> dict[str, Verdict]:
    """Compare what the services hold with what callers got."""
    held: dict[str, Counter[bytes]] = {queue: Counter() for queue in QUEUES}
    for service in services:
        async with RecordLogClient(service.address) as client:
            for queue in QUEUES:
                if await client.queue_exists(queue):
                    held[queue].update([payload async for _, payload in client.range(queue)])
    verdicts: dict[str, Verdict] = {}
    for queue, counts in held.items():
        stored, unknown, refused = ledger.stored[queue], ledger.unknown[queue], ledger.refused[queue]
        consumed = ledger.consumed.get(queue, stored)
        verdicts[queue] = Verdict(
            stored=len(stored),
            unknown=len(unknown),
            refused=len(refused),
            lost=sum(not counts[payload] for payload in stored),
            doubled=sum(times > 1 and payload not in unknown for payload, times in counts.items()),
            misreported=sum(counts[payload] > 0 for payload in refused),
            not_consumed=len(stored - consumed),
        )
    return verdicts


def run() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000, help="how many to store in each queue (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="what happens to which request (default: 0)")
    parser.add_argument("--no-kills", action="store_true", help="do not kill the services")
    parser.add_argument("--without", nargs="*", default=[], help="faults to leave out, such as RETRY")
    given = parser.parse_args()
    faults = [fault for fault in Fault if fault.name not in given.without]
    with TemporaryDirectory() as directory:
        verdicts = asyncio.run(
            attack(Path(directory), given.records, given.seed, kills=not given.no_kills, faults=faults)
        )
    for queue, verdict in verdicts.items():
        print(f"{queue:15}", verdict)
    return 0


if __name__ == "__main__":
    sys.exit(run())
