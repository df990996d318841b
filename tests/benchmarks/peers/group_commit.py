"""Coroutines in front of an embedded store: plain, and with the group commit one would write by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

from tests.benchmarks.peers.peer import EmbeddedStore


class Plain:
    """Every call is a transaction of its own; the thread takes one at a time."""

    def __init__(self, store: EmbeddedStore, thread: Executor) -> None:
        self._store = store
        self._thread = thread
        self._loop = asyncio.get_running_loop()

    async def append(self, payload: bytes) -> None:
        """Store one record."""
        await self._loop.run_in_executor(self._thread, self._store.store, (payload,))

    async def append_many(self, payloads: Sequence[bytes]) -> None:
        """Store several records at once."""
        await self._loop.run_in_executor(self._thread, self._store.store, payloads)


class GroupCommit:
    """What comes in while a transaction is being synced goes into the next one, together."""

    def __init__(self, store: EmbeddedStore, thread: Executor) -> None:
        self._store = store
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._payloads: list[bytes] = []
        self._futures: list[asyncio.Future[None]] = []
        self._working: asyncio.Task[None] | None = None

    async def append(self, payload: bytes) -> None:
        """Store one record."""
        self._payloads.append(payload)
        await self._wait()

    async def append_many(self, payloads: Sequence[bytes]) -> None:
        """Store several records; they are never split over transactions."""
        self._payloads.extend(payloads)
        await self._wait()

    async def _wait(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._futures.append(future)
        if self._working is None:
            self._working = self._loop.create_task(self._work())
        await future

    async def _work(self) -> None:
        while self._futures:
            payloads, self._payloads = self._payloads, []
            futures, self._futures = self._futures, []
            try:
                await self._loop.run_in_executor(self._thread, self._store.store, payloads)
            except Exception as error:
                for future in futures:
                    future.set_exception(error)
            else:
                for future in futures:
                    future.set_result(None)
        self._working = None
