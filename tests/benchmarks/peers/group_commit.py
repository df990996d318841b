"""A log on top of an embedded store: what a good programmer writes by hand, with what this log gives.

Queues have names. The position of a record is returned when it is durable. What waits to be stored is bounded: above
the bound callers wait in order. A cancelled caller affects no other; its record may or may not be stored. After a
failed transaction every call fails, because it is unknown what the store holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import iscoroutinefunction

from tests.benchmarks.peers.peer import EmbeddedStore, Item, ServerStore

PENDING_BYTES = 128 * 1024 * 1024
"""The same bound as this log's."""
NAMES = 0
"""The number of the queue that holds the names of the others, each at its number."""


@dataclass(slots=True)
class _Queue:
    number: int
    next_position: int = 0


class GroupCommit:
    """Gathers what callers append while a transaction is synced, and stores it in the next transaction."""

    def __init__(self, store: EmbeddedStore | ServerStore, pending_bytes: int = PENDING_BYTES) -> None:
        self._store = store
        self._pending_max = pending_bytes
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1)
        self._queues: dict[str, _Queue] = {}
        self._items: list[Item] = []
        self._answers: list[tuple[asyncio.Future[int], int]] = []
        self._bytes = 0  # of _items
        self._pending = 0  # of _items, of the transaction that runs, and of callers that may go on
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def create_queue(self, queue: str) -> None:
        """Create *queue*; its name is durable when this returns."""
        if queue in self._queues:
            raise ValueError(f"queue {queue!r} exists")
        number = len(self._queues) + 1
        name = queue.encode()
        await self._enter(len(name))
        self._queues[queue] = _Queue(number)
        self._items.append((NAMES, number, name))
        await self._stored(number, len(name))

    async def append_record(self, queue: str, position: None, payload: bytes) -> int:
        """Store one record; return its position."""
        size = len(payload)
        if self._line or self._failure is not None or self._pending + size > self._pending_max:
            await self._enter(size)
        else:
            self._pending += size
        found = self._queues[queue]
        at = found.next_position
        found.next_position = at + 1
        self._items.append((found.number, at, payload))
        return await self._stored(at, size)

    async def append_records(self, queue: str, position: None, payloads: Sequence[bytes]) -> int:
        """Store several records in one transaction; return the position of the last one."""
        size = sum(map(len, payloads))
        await self._enter(size)
        found = self._queues[queue]
        at = found.next_position
        found.next_position = at + len(payloads)
        number = found.number
        self._items.extend([(number, at + index, payload) for index, payload in enumerate(payloads)])
        return await self._stored(found.next_position - 1, size)

    async def truncate(self, queue: str, position: int) -> None:
        """Delete records up to and including *position*."""
        number = self._queues[queue].number
        await self._call(self._store.truncate, number, position)

    def range(self, queue: str) -> Iterable[tuple[int, bytes]]:
        """Yield position and payload of the stored records of *queue*."""
        return self._store.read(self._queues[queue].number)

    async def close(self) -> None:
        """Wait for what is under way, and close the store."""
        if self._working is not None:
            await self._working
        await self._call(self._store.close)
        self._thread.shutdown()

    async def _call(self, call: Callable[..., object], *arguments: object) -> None:
        """Call the store: in the thread, or here if its calls are coroutines."""
        if iscoroutinefunction(call):
            await call(*arguments)
        else:
            await self._loop.run_in_executor(self._thread, call, *arguments)

    def _stored(self, position: int, size: int) -> Awaitable[int]:
        """Return a future that yields *position* when the items that were just added are durable."""
        self._bytes += size
        future: asyncio.Future[int] = self._loop.create_future()
        self._answers.append((future, position))
        if self._working is None:
            self._working = self._loop.create_task(self._work())
        return future

    async def _work(self) -> None:
        while self._items:
            items, self._items = self._items, []
            answers, self._answers = self._answers, []
            size, self._bytes = self._bytes, 0
            try:
                await self._call(self._store.store, items)
            except Exception as error:
                self._fail(error, answers)
                break
            self._pending -= size
            for future, position in answers:
                if not future.done():  # its caller may have been cancelled
                    future.set_result(position)
            self._admit()
        self._working = None

    async def _enter(self, size: int) -> None:
        """Take *size* bytes of what may wait, in order of the calls; one call that exceeds it all enters alone."""
        if self._failure is not None:
            raise self._failed()
        if not self._line and (self._pending == 0 or self._pending + size <= self._pending_max):
            self._pending += size
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._line.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was its turn already: the bytes go to the next one
                self._pending -= size
            self._admit()
            raise

    def _admit(self) -> None:
        while self._line:
            turn, size = self._line[0]
            if not turn.done():
                if self._pending and self._pending + size > self._pending_max:
                    return
                self._pending += size
                turn.set_result(None)
            self._line.popleft()

    def _fail(self, error: Exception, answers: list[tuple[asyncio.Future[int], int]]) -> None:
        self._failure = error
        for future, _ in (*answers, *self._answers):
            if not future.done():
                future.set_exception(self._failed())
        for turn, _ in self._line:
            if not turn.done():
                turn.set_exception(self._failed())
        self._items, self._answers = [], []
        self._line.clear()

    def _failed(self) -> RuntimeError:
        return RuntimeError(f"a transaction failed, and nothing can be stored anymore: {self._failure}")
