"""Services of a fleet are killed while producers append: ingest goes on, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mrecordlog_async.client import OutcomeUnknownError, RecordLogClient, RecordLogFleet, Stored
from mrecordlog_async.client.fleet.addresses import Resolver
from tests.serving import Process

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
KILLS = 6


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


async def kill_some(services: dict[str, Process], seed: int, progress: dict[str, int]) -> None:
    """Kill one process after another, and start each again once producers have stored something without it."""
    choose = random.Random(seed)
    for _ in range(KILLS):
        victim = services[choose.choice(HOSTS)]
        await asyncio.to_thread(victim.kill)
        await passed(progress, 40)
        await asyncio.to_thread(victim.start)
        await passed(progress, 10)


async def passed(progress: dict[str, int], records: int) -> None:
    """Wait until so many more records are stored."""
    until = progress["stored"] + records
    while progress["stored"] < until:
        await asyncio.sleep(0.01)


async def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path) -> None:
    """Every acknowledged record is where the response says, once; those of a key are in order on each server."""
    acknowledged: dict[tuple[str, int], bytes] = {}
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    progress, ending = {"stored": 0, "unknown": 0}, asyncio.Event()

    async def produce(fleet: RecordLogFleet, key: str) -> None:
        number = 0
        async with fleet.producer(f"queue {key}") as producer:
            while not ending.is_set():
                payload = f"{key} {number}".encode()
                try:
                    note(key, number, payload, await producer.append_record(payload, key=key))
                except OutcomeUnknownError:
                    progress["unknown"] += 1
                number += 1

    async def append(fleet: RecordLogFleet, key: str) -> None:
        number = 0
        while not ending.is_set():
            payload = f"{key} {number}".encode()
            note(key, number, payload, await fleet.append_record("shared", payload, key=key))
            number += 1

    def note(key: str, number: int, payload: bytes, stored: Stored) -> None:
        assert stored.position is not None
        place = (f"{stored.log_id} {stored.queue}", stored.position)
        assert place not in acknowledged, "a position was given twice"
        acknowledged[place] = payload
        order[key, stored.log_id].append(stored.position)
        progress["stored"] += 1

    with three_services(tmp_path) as services:
        port = services[HOSTS[0]].port
        names = Names(services)
        async with (
            RecordLogFleet(f"dns+http://wal:{port}", resolver=names) as fleet,
            RecordLogFleet(f"dns+http://wal:{port}", resolver=names, on_unknown="wait") as waiting,
        ):
            while [one.name for one in fleet.servers()] != ["wal-2", "wal-3", "wal-4"]:
                await asyncio.sleep(0.05)  # the last one still recovers
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(produce(fleet, f"key {number}"))
                    group.create_task(append(waiting, f"other {number}"))
                await kill_some(services, 7, progress)
                ending.set()
        stored = await read_all(services)
    assert acknowledged.items() <= stored.items()
    assert all(positions == sorted(positions) for positions in order.values())
    assert len({log_id for _, log_id in order}) == 3


async def read_all(services: dict[str, Process]) -> dict[tuple[str, int], bytes]:
    """Return the payload at every position of every queue."""
    found: dict[tuple[str, int], bytes] = {}
    for service in services.values():
        async with RecordLogClient(service.address) as client:
            log_id = (await client.log_info()).id
            for queue in await client.list_queues():
                async for position, payload in client.range(queue):
                    found[f"{log_id} {queue}", position] = payload
    return found
