"""A fleet of services in this process, each with a proxy in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from mrecordlog_async.client import RecordLogFleet, Stored
from mrecordlog_async.service.options import ServiceOptions
from tests.client.fleet.proxy import Proxy, proxied
from tests.served import Served, serving


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Running:
    """Services, each behind a proxy, and a fleet of them."""

    def __init__(self, served: list[Served], proxies: list[Proxy], fleet: RecordLogFleet) -> None:
        self.served, self.proxies, self.fleet = served, proxies, fleet

    def cut(self, number: int) -> None:
        """Let no connection reach a service, and have the fleet know it."""
        self.proxies[number].cut()

    async def mend(self, number: int) -> None:
        """Let connections reach a service again, and have the fleet look at it."""
        self.proxies[number].targets = [self.served[number].port]
        await self.fleet._membership.look()

    def index(self, stored: Stored) -> int:
        """Return which service has a record."""
        return [one.log.inspection.public_id for one in self.served].index(stored.log_id)

    def payload(self, stored: Stored) -> bytes:
        """Return what that service has at that position."""
        log = self.served[self.index(stored)].log
        assert stored.position is not None
        return next(iter(log.range(stored.queue, stored.position, stored.position + 1))).payload

    def payloads(self, queue: str) -> list[list[bytes]]:
        """Return the payloads of every service."""
        return [
            [record.payload for record in one.log.range(queue)] if one.log.queue_exists(queue) else []
            for one in self.served
        ]


@asynccontextmanager
async def running(directory: Path, count: int = 2, **options: Any) -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        served = [
            await stack.enter_async_context(serving(directory / str(number), ServiceOptions(name=f"wal-{number}")))
            for number in range(count)
        ]
        proxies = [await stack.enter_async_context(proxied(one.port)) for one in served]
        fleet = RecordLogFleet([proxy.url for proxy in proxies], **options)
        await stack.enter_async_context(fleet)
        yield Running(served, proxies, fleet)
