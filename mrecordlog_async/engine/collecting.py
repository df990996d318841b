"""Waiting for the records of one queue and collecting them into batches: the core of tails and consumers.

A `Collector` is a place in a queue:

1. Wait until a record at or after its position is retained. Gaps and truncated records are passed over.
2. Collect until a limit is reached, or until some time after the first record.
3. Take the records and move the position.

Nothing is awaited between 3 and the return, and nothing is moved before: a call that is cancelled, also by `wait_for`,
loses no record. Every call gives the event loop a turn, even if it never has to wait.
"""

from __future__ import annotations

import asyncio

from mrecordlog_async.batches import BatchLimits
from mrecordlog_async.engine.subscribers import QueueWatch
from mrecordlog_async.errors import LogFailedError
from mrecordlog_async.memory.cutting import first_runs
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import Batch, Run


class Collector:
    """A place in one incarnation of a queue. position: everything before it was handed out, or is skipped."""

    def __init__(self, watch: QueueWatch, position: int) -> None:
        self.position = position
        self._watch = watch

    @property
    def queue_id(self) -> int:
        """Incarnation of the queue."""
        return self._watch.queue_id

    async def wait(self) -> Queue | None:
        """Wait for a record at or after the position; return its queue, or None if no such record will come.

        Raises:
            LogFailedError: The log failed, and every record is handed out.
        """
        rested = False
        while (queue := self._watch.queue()) is not None:
            end = queue.held_end()
            if end is not None and end > self.position:
                if rested:
                    return queue
                await asyncio.sleep(0)  # others get a turn, however much there is to read
            elif self._watch.is_complete(queue):
                return None
            else:
                await self._watch.change()
            rested = True
        return None

    async def collect(self, limits: BatchLimits) -> Batch | None:
        """Wait for records, collect them until one of *limits* is reached, and move past them; None at the end.

        Raises:
            LogFailedError: The log failed, and every record is handed out.
        """
        while (queue := await self.wait()) is not None:
            runs = first_runs(queue, self.position, limits.records, limits.bytes)
            counted = _Counted(self.position, runs)
            if not counted.is_full(queue, limits) and not self._watch.is_complete(queue):
                await self._wait_until_full(counted, limits)
                runs = self._still_there(limits)
            if runs:
                self.position = runs[-1].next_position
                return Batch(queue.name, queue.id, tuple(runs))
            # Everything was truncated while it was collected, or the queue was deleted.
        return None

    async def _wait_until_full(self, counted: _Counted, limits: BatchLimits) -> None:
        """Wait until a limit is reached, no more can come, or the time is up."""
        try:
            async with asyncio.timeout(limits.seconds):
                while True:
                    await self._watch.change()
                    queue = self._watch.queue()
                    if queue is None or self._watch.is_complete(queue) or counted.is_full(queue, limits):
                        return
        except TimeoutError:
            return
        except LogFailedError:  # the next call raises it: what is stored comes first
            return

    def _still_there(self, limits: BatchLimits) -> list[Run]:
        queue = self._watch.queue()
        return first_runs(queue, self.position, limits.records, limits.bytes) if queue is not None else []


class _Counted:
    """Counts what a batch would hold: each record once, however often the queue changes meanwhile."""

    def __init__(self, position: int, runs: list[Run]) -> None:
        self._start = self._position = position
        self._records = self._bytes = 0
        self._count(runs)

    def is_full(self, queue: Queue, limits: BatchLimits) -> bool:
        """Count what was added to *queue*; return whether a limit is reached."""
        if queue.first_position > self._start:  # some of what was counted may be truncated
            self._start = self._position = queue.first_position
            self._records = self._bytes = 0
        end = queue.held_end()
        if end is not None and end > self._position:
            records, size = limits.records - self._records, limits.bytes - self._bytes
            if records > 0 and size > 0:
                self._count(first_runs(queue, self._position, records, size))
            if end > self._position:  # the next record does not fit
                return True
        return self._records >= limits.records or self._bytes >= limits.bytes

    def _count(self, runs: list[Run]) -> None:
        if runs:
            self._records += sum(run.record_count for run in runs)
            self._bytes += sum(len(run.payload) for run in runs)
            self._position = runs[-1].next_position
