"""Wakes those that wait for a queue: tails and long polls, and expiry. Costs an append nothing while nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from mrecordlog_async.errors import LogFailedError
from mrecordlog_async.format.stored_options import SEALED
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues


class Changes:
    """Waiters by queue id. The log owns it; the writer wakes the waiters of the queues that a batch changed.

    ended: no record will be appended to any queue, as the log is being drained. handing_out: False once the readers are
    to end before what is there. on_aging: called after a batch by which
    a queue was given a `max_age`, or lost it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, queues: Queues) -> None:
        self._loop = loop
        self._queues = queues
        self._sleepers: dict[int, set[asyncio.Future[None]]] = {}
        self.ended = False
        self.handing_out = True
        self.on_aging: Callable[[], None] | None = None

    def end(self) -> None:
        """Note that nothing more will be appended, and wake all waiters: they end once they have read what is there.

        Called once every accepted append is stored or refused.
        """
        self.ended = True
        self.wake_all()

    def end_readers(self) -> None:
        """Have every reader end after what it was handed already. Appends and acknowledgements go on."""
        self.handing_out = False
        self.wake_all()

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

    def applied(self, queue_ids: Iterable[int]) -> None:
        """Tell all who wait for these queues that a batch has changed them."""
        self.wake(queue_ids)
        # The call that set a `max_age` cannot do this, because it may have been cancelled.
        if self.on_aging is not None and (self._queues.newly_aging or self._queues.stopped_aging):
            self.on_aging()

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


class QueueWatch:
    """One incarnation of a queue, watched by a tail or a long poll: its state now, and a wait for its next change.

    check: raises if the queue may not be read any more, as by a holder of a consumer once another one has attached.
    """

    def __init__(
        self,
        queues: Queues,
        queue_id: int,
        changes: Changes,
        is_closing: Callable[[], bool],
        failure: Callable[[], BaseException | None],
        check: Callable[[Queue], None] | None = None,
    ) -> None:
        self.queue_id = queue_id
        self._queues = queues
        self._changes = changes
        self._is_closing = is_closing
        self._failure = failure
        self._check = check

    def queue(self) -> Queue | None:
        """Return the queue, or None if it is deleted or its readers end: then nothing of it is handed out any more."""
        queue = None if self.is_ending() else self._queues.by_id(self.queue_id)
        if queue is not None and self._check is not None:
            self._check(queue)
        return queue

    def is_ending(self) -> bool:
        """Return whether readers are to end, because the log closes or the application that holds it ends."""
        return not self._changes.handing_out or self._is_closing()

    def is_complete(self, queue: Queue) -> bool:
        """Return whether *queue* gets no more records, because it is sealed or the log is being drained."""
        return self._changes.ended or (queue.options is not None and bool(queue.options.flags & SEALED))

    async def reach(self, position: int) -> bool:
        """Wait until *position* has been assigned; return False if it will not be."""
        while (queue := self.queue()) is not None:
            if queue.next_position > position:
                return True
            if self.is_complete(queue):
                return False
            await self.change()
        return False

    async def change(self) -> None:
        """Wait until the queue changes or the log ends; raise LogFailedError if it failed."""
        failure = self._failure()
        if failure is not None:
            raise LogFailedError(str(failure)) from failure
        await self._changes.wait(self.queue_id)
