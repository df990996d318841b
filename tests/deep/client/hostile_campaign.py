"""Hostile proxies and kills of the services, while clients append: count what was lost, doubled or misreported.

    python -m tests.deep.client.hostile_campaign --records 5000 --seed 3

Two services, each behind a proxy that delays, loses, repeats, replays and refuses requests. The suite runs a short one,
without kills, in `test_hostile_campaign`. With kills, a proxy that sends a request again until it has a response
(`Fault.RETRY`) may hide a record that is stored: the repeat meets a service that recovers, and 503 says that nothing is
stored. docs/client.md says so. What this leaves out: proxies that change bodies or mix up responses.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from mrecordlog_async import RecordLogError
from mrecordlog_async.client import (
    BlockingProducer,
    BlockingRecordLogClient,
    OutcomeUnknownError,
    RecordLogClient,
    ServiceError,
    ServiceUnreachableError,
)
from mrecordlog_async.errors import LogFailedError, QueueSealedError
from tests.client.hostile import Fault, Plan, Request, hostile
from tests.serving import Process

QUEUES = {"producer": "a", "placed": "a", "blocking producer": "b", "plain": "ab"}
"""The queues, named after what appends to them, and the services that have each.

Plain appends have no position, so what a proxy repeats is stored twice.
"""

RETRY_SECONDS = 8.0


@dataclass
class Ledger:
    """What callers got, by queue: payloads that are stored, perhaps stored, and not stored."""

    stored: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    unknown: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    refused: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    consumed: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    @contextmanager
    def noting(self, queue: str, payload: bytes) -> Iterator[None]:
        """Note what became of a record that is appended inside. An error goes no further."""
        try:
            yield
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
        services = {name: stack.enter_context(Process(directory / name)) for name in "ab"}
        proxies = {
            name: await stack.enter_async_context(hostile(one.port, random_plan(choose, faults, 0.15, 0.05)))
            for name, one in services.items()
        }
        clients = {
            name: await stack.enter_async_context(RecordLogClient(proxy.url, retry_seconds=RETRY_SECONDS))
            for name, proxy in proxies.items()
        }
        places = [(queue, clients[name]) for queue, names in QUEUES.items() for name in names]
        for queue, client in places:
            await client.create_queue(queue, exist_ok=True)
        readers = [asyncio.create_task(read(client, queue, ledger)) for queue, client in places]
        async with asyncio.TaskGroup() as group:
            group.create_task(produce(clients["a"], ledger, ending))
            group.create_task(append_placed(clients["a"], ledger, ending))
            group.create_task(asyncio.to_thread(produce_in_threads, proxies["b"].url, ledger, ending, tasks))
            for name, client in clients.items():
                for number in range(tasks):
                    group.create_task(append_plain(client, f"{name} {number}", ledger, ending))
            if kills:
                group.create_task(kill(list(services.values()), choose, ending))
            while min(len(ledger.stored[queue]) for queue in QUEUES) < records:
                await asyncio.sleep(0.01)
            ending.set()
        for proxy in proxies.values():
            proxy.plan = lambda _: (Fault.NONE, 0.0)
            while proxy.later:
                await asyncio.sleep(0.01)
        for queue, client in places:
            await seal(client, queue)
        async with asyncio.timeout(120):
            await asyncio.gather(*readers)
        return await judge(services, ledger)


async def produce(client: RecordLogClient, ledger: Ledger, ending: asyncio.Event) -> None:
    """Append through one producer after the other: one that has failed is replaced."""
    numbers = count()

    async def append() -> None:
        payload = b"producer %d" % next(numbers)
        with ledger.noting("producer", payload):
            await producer.append_record(payload)

    while not ending.is_set():
        with suppress(RecordLogError):  # the next position could not be asked for
            async with client.producer("producer") as producer:
                while not producer.failed and not ending.is_set():
                    await asyncio.gather(append(), append(), append())


def produce_in_threads(url: str, ledger: Ledger, ending: asyncio.Event, threads: int) -> None:
    """Append from threads that share one producer, until a call fails; then it is replaced."""
    numbers = count()

    def append(producer: BlockingProducer) -> None:
        last: set[bytes] = set()
        while last <= ledger.stored["blocking producer"] and not ending.is_set():
            payload = b"blocking producer %d" % next(numbers)
            with ledger.noting("blocking producer", payload):
                producer.append_record(payload)
            last = {payload}

    with BlockingRecordLogClient(url, retry_seconds=RETRY_SECONDS) as client, ThreadPoolExecutor(threads) as pool:
        while not ending.is_set():
            with suppress(RecordLogError), client.producer("blocking producer") as producer:
                list(pool.map(append, [producer] * threads))


async def append_placed(client: RecordLogClient, ledger: Ledger, ending: asyncio.Event) -> None:
    """Append as the only writer of a queue, each record at the position that is asked for after a failure."""
    position: int | None = None
    for number in count():
        if ending.is_set():
            return
        payload = b"placed %d" % number
        with ledger.noting("placed", payload):
            if position is None:
                position = await client.next_position("placed")
            try:
                await client.append_record("placed", position, payload)
            except RecordLogError:
                position = None
                raise
            position += 1


async def append_plain(client: RecordLogClient, name: str, ledger: Ledger, ending: asyncio.Event) -> None:
    for number in count():
        if ending.is_set():
            return
        payload = f"plain {name} {number}".encode()
        with ledger.noting("plain", payload):
            await client.append("plain", payload)


async def read(client: RecordLogClient, queue: str, ledger: Ledger) -> None:
    """Read what is stored until the queue is sealed: through a tail, or a consumer of tasks or of a thread."""
    match queue:
        case "plain":
            await follow(client, queue, ledger)
        case "blocking producer":
            await asyncio.to_thread(consume_in_thread, client.url, queue, ledger)
        case _:
            await consume(client, queue, ledger)


async def follow(client: RecordLogClient, queue: str, ledger: Ledger) -> None:
    """Read a tail, which continues after an error where it was."""
    tail = client.tail(queue, 0)
    while True:
        try:
            async for record in tail:
                ledger.consumed[queue].add(record.payload)
            return
        except RecordLogError:
            await asyncio.sleep(0.05)


async def consume(client: RecordLogClient, queue: str, ledger: Ledger) -> None:
    """Consume; a holder that its own repeated request has fenced off enters again."""
    while True:
        try:
            async with client.consumer(queue, "lake") as consumer:
                async for batch in consumer.batches(max_records=20, max_wait=0.05):
                    ledger.consumed[queue].update(batch.payloads())
                    await consumer.acknowledge(batch)
                return
        except RecordLogError:
            await asyncio.sleep(0.05)


def consume_in_thread(url: str, queue: str, ledger: Ledger) -> None:
    """Do what `consume` does, with a blocking consumer."""
    with BlockingRecordLogClient(url, retry_seconds=RETRY_SECONDS) as client:
        while True:
            try:
                with client.consumer(queue, "lake") as consumer:
                    for batch in consumer.batches(max_records=20, max_wait=0.05):
                        ledger.consumed[queue].update(batch.payloads())
                        consumer.acknowledge(batch)
                    return
            except RecordLogError:
                time.sleep(0.05)


async def kill(services: list[Process], choose: random.Random, ending: asyncio.Event) -> None:
    while not ending.is_set():
        victim = choose.choice(services)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
        with suppress(TimeoutError):
            async with asyncio.timeout(choose.uniform(2.0, 6.0)):
                await ending.wait()


async def seal(client: RecordLogClient, queue: str) -> None:
    while True:
        try:
            await client.seal_queue(queue)
        except QueueSealedError:
            return
        except RecordLogError:
            await asyncio.sleep(0.1)


async def judge(services: Mapping[str, Process], ledger: Ledger) -> dict[str, Verdict]:
    """Compare what the services hold with what callers got."""
    held: dict[str, Counter[bytes]] = {queue: Counter() for queue in QUEUES}
    for name, service in services.items():
        async with RecordLogClient(service.address) as client:
            for queue, names in QUEUES.items():
                if name in names:
                    held[queue].update([payload async for _, payload in client.range(queue)])
    verdicts: dict[str, Verdict] = {}
    for queue, counts in held.items():
        stored, unknown, refused = ledger.stored[queue], ledger.unknown[queue], ledger.refused[queue]
        verdicts[queue] = Verdict(
            stored=len(stored),
            unknown=len(unknown),
            refused=len(refused),
            lost=sum(not counts[payload] for payload in stored),
            doubled=sum(times > 1 and payload not in unknown for payload, times in counts.items()),
            misreported=sum(counts[payload] > 0 for payload in refused),
            not_consumed=len(stored - ledger.consumed[queue]),
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
        print(f"{queue:18}", verdict)
    return 0


if __name__ == "__main__":
    sys.exit(run())
