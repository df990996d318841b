"""Waiting for a queue to change, for tails and long polls. Costs an append nothing while nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Changes:
    """Waiters by queue id. The log owns it; the writer wakes the waiters of the queues that a batch changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sleepers: dict[int, set[asyncio.Future[None]]] = {}

    async def wait(self, queue_id: int) -> None:
        """Sleep until the queue changes or the log ends."""
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
        """Wake all waiters of these queues."""
        if self._sleepers:
            for queue_id in self._sleepers.keys() & set(queue_ids):
                for future in self._sleepers.pop(queue_id):
                    if not future.done():
                        future.set_result(None)

    def wake_all(self) -> None:
        """Wake all waiters: the log ends."""
        self.wake(list(self._sleepers))
