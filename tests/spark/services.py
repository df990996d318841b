"""Real services for the tests of the pipeline, each in a thread of this process."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.service.connections import Connections
from mrecordlog_async.service.listening import bind
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.service import Service
from tests.served import running
from tests.serving import free_port

T = TypeVar("T")


async def _end_tasks() -> None:
    """End what still runs on this loop, as `asyncio.run` does before it closes its loop."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


class ThreadedService:
    """A log and its service on an event loop in a thread; the test can use both."""

    def __init__(
        self,
        directory: Path,
        token: str | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "",
        limits: Limits | None = None,
    ) -> None:
        self.directory = directory
        self._limits = limits
        self.tokens: frozenset[bytes] = frozenset({token.encode()} if token else ())  # as of the next start
        self._name = name
        self.host, self.port = host, port or free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.log: MultiRecordLog
        self._running: AbstractAsyncContextManager[Connections]
        self.start()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Open the log and serve it; after `stop`, at the same address."""
        self.call(self._start())

    def stop(self) -> None:
        """Close the service and the log."""
        self.call(self._stop())

    def end(self) -> None:
        """Stop the service and end the thread."""
        self.stop()
        self.call(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* on the service's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(240)

    def append(self, queue: str, payloads: Iterable[bytes], position: int | None = None) -> None:
        """Append records to a queue, which is created if it is missing."""

        async def append() -> None:
            await self.log.create_queue(queue, exist_ok=True)
            await self.log.append_records(queue, position, payloads)

        self.call(append())

    def acknowledge(self, queue: str, consumer: str, position: int) -> None:
        """Acknowledge up to and including *position* as another program's consumer, which is created if missing."""

        async def acknowledge() -> None:
            await self.log.create_consumer(queue, consumer, exist_ok=True)
            async with self.log.consumer(queue, consumer) as held:
                await held.acknowledge(position)

        self.call(acknowledge())

    def truncate(self, queue: str, position: int) -> None:
        self.call(self.log.truncate(queue, position))

    def delete(self, queue: str) -> None:
        self.call(self.log.delete_queue(queue))

    def replace_by_nothing(self) -> None:
        """Serve an empty directory instead of the log."""
        self.stop()
        shutil.rmtree(self.directory)
        self.start()

    def keep_copy(self, copy: Path) -> None:
        """Copy the log as it is now, while it is closed."""
        self.stop()
        shutil.copytree(self.directory, copy)
        self.start()

    def go_back(self, copy: Path) -> None:
        """Serve *copy* instead of the log, as after restoring a snapshot."""
        self.stop()
        shutil.rmtree(self.directory)
        shutil.copytree(copy, self.directory)
        self.start()

    def positions(self, queue: str) -> tuple[int, int]:
        """Return first and next position."""

        async def positions() -> tuple[int, int]:
            return self.log.first_position(queue), self.log.next_position(queue)

        return self.call(positions())

    def summary(self) -> dict[str, QueueSummary]:
        """Return the first and next position of every queue."""

        async def summary() -> dict[str, QueueSummary]:
            return self.log.summary()

        return self.call(summary())

    def records(self) -> dict[str, list[tuple[int, bytes]]]:
        """Return everything that is retained."""

        async def records() -> dict[str, list[tuple[int, bytes]]]:
            return {queue: [(at, payload) for at, payload in self.log.range(queue)] for queue in self.log.list_queues()}

        return self.call(records())

    async def _start(self) -> None:
        service = Service(ServiceOptions(tokens=self.tokens, name=self._name))
        self.log = await service.open(self.directory, limits=self._limits)
        sockets = await bind(self.host, self.port)
        self.port = sockets[0].getsockname()[1]
        self._running = running(service, sockets)
        await self._running.__aenter__()

    async def _stop(self) -> None:
        await self._running.__aexit__(None, None, None)
        await self.log.close()


def numbered(queue: str, start: int, stop: int) -> list[bytes]:
    """Make payloads that name their queue and position."""
    return [f"{queue}:{position}".encode() for position in range(start, stop)]


def ask(url: str, method: str = "GET", body: Any = None) -> Any:
    """Send a request as JSON and return the JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def drain_samples(url: str) -> dict[tuple[str, str], float]:
    """Return the metrics of a drain: (name, server) → value."""
    with urlopen(url, timeout=60) as response:
        text = response.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (each.name.removeprefix("mrecordlog_drain_"), each.labels.get("server", "")): each.value for each in samples
    }
