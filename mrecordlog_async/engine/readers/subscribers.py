"""Wakes those that wait for a queue: tails and long polls, and expiry. Costs an append nothing while nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from mrecordlog_async.engine.intake.commands import ELSEWHERE
from mrecordlog_async.engine.planning.consumer_view import ConsumerMove
from mrecordlog_async.engine.readers.acknowledgements import Acknowledgements
from mrecordlog_async.errors import LogClosedError
from mrecordlog_async.format.record import LogRecord, queue_ids
from mrecordlog_async.memory.queues import Queues


class Changes:
    """Waiters by queue id. The log owns it; the writer wakes the waiters of the queues that a batch changed.

    ended: no record will be appended to any queue, as the log is being drained; ended_queues: to these. handing_out:
    False once the readers are to end before what is there. on_aging: called after a batch by which a queue was given a
    `max_age`, or lost it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, queues: Queues, acknowledgements: Acknowledgements) -> None:
        self._loop = loop
        self._queues = queues
        self._sleepers: dict[int, set[asyncio.Future[None]]] = {}
        self.ended = False
        self.ended_queues: set[str] = set()
        self.handing_out = True
        self.acknowledgements = acknowledgements
        self.on_aging: Callable[[], None] | None = None

    def end(self, queues: Iterable[str] | None = None) -> None:
        """Note that nothing more will be appended to *queues*, None for all. Their readers end after what is there.

        Called once every accepted append is stored or refused.
        """
        if queues is None:
            self.ended = True
        else:
            self.ended_queues.update(queues)
        self.wake_all()

    def end_readers(self) -> None:
        """Have every reader end after what it was handed already. Appends and acknowledgements continue."""
        self.handing_out = False
        self.wake_all()

    async def wait(self, queue_id: int) -> None:
        """Sleep until the queue changes or the log ends."""
        if asyncio.get_running_loop() is not self._loop:
            raise LogClosedError(ELSEWHERE)
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

    def applied(self, records: Sequence[LogRecord], moves: Sequence[ConsumerMove] = ()) -> None:
        """Tell all who wait for the queues of *records* that a batch has them; *moves*: what it did to consumers."""
        # A batch of a thousand queues pays for the set of their ids only if somebody waits.
        if moves or self._sleepers or self.acknowledgements.waits:
            changed = set(queue_ids(records))
            self.acknowledgements.applied(changed, moves)
            self.wake(changed)
        # The call that set a `max_age` cannot do this, because it may have been cancelled.
        if self.on_aging is not None and (self._queues.newly_aging or self._queues.stopped_aging):
            self.on_aging()

    def wake(self, queue_ids: Iterable[int]) -> None:
        """Wake all waiters of these queues."""
        for queue_id in self._sleepers.keys() & set(queue_ids):
            for future in self._sleepers.pop(queue_id):
                if not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        """Wake all waiters: the log ends."""
        self.wake(list(self._sleepers))
