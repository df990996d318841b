"""Who waits for a queue to change: tails and long polls. Costs an append nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Changes:
    """Sleepers by queue id. Owned by the log; the writer wakes those whose queues a batch touched."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sleepers: dict[int, set[asyncio.Future[None]]] = {}

    async def wait(self, queue_id: int) -> None:
        """Sleep until the queue is touched, or everybody is woken."""
        future = self._loop.create_future()
        self._sleepers.setdefault(queue_id, set()).add(future)
        try:
            await future
        finally:
            sleepers = self._sleepers.get(queue_id)
            if sleepers is not None:
                sleepers.discard(future)
                if not sleepers:
                    del self._sleepers[queue_id]

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Wake all waiters for any of these queues."""
        if self._sleepers:
            for queue_id in self._sleepers.keys() & set(queue_ids):
                for future in self._sleepers.pop(queue_id):
                    if not future.done():
                        future.set_result(None)

    def wake_all(self) -> None:
        """Wake everybody: the log ends."""
        self.wake(list(self._sleepers))
