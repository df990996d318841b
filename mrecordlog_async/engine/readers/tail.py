"""`Tail`: the records of one queue from a position on, as they arrive, one by one or in batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS, Batches, BatchLimits
from mrecordlog_async.engine.readers.collecting import Collector
from mrecordlog_async.engine.readers.subscribers import QueueWatch
from mrecordlog_async.memory.pieces import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import Batch, Record


class Tail(AsyncIterator[Record]):
    """Result of `log.tail`: iterate over it, or take batches. Both continue where the other one stopped.

    Cancelling a call, even by `asyncio.wait_for` or `asyncio.timeout`, loses nothing and does not end the tail. It ends
    when the queue is deleted or the log closes, and after the last record of a queue that is sealed or of a log that is
    drained. Records that are truncated before they are handed out are skipped.
    """

    def __init__(self, watch: QueueWatch, position: int) -> None:
        """Use `log.tail`."""
        self._watch = watch
        self._collector = Collector(watch, position)
        self._records: Iterator[Record] = iter(())
        self._queue: Queue  # of `_records`
        self._closed = False

    @property
    def position(self) -> int:
        """The lowest position that may be handed out next."""
        return self._collector.position

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Record:
        collector = self._collector
        while True:
            for record in self._records:
                position = record[0]
                # Otherwise it was truncated or deleted since, or another task took it.
                if position >= self._queue.first_position and position >= collector.position:
                    if self._watch.is_closing():
                        break
                    collector.position = position + 1
                    return record
            self._records = iter(())
            queue = None if self._closed else await collector.wait()
            if queue is None:
                raise StopAsyncIteration
            # A run at a time: records truncated meanwhile are not handed out, and not kept in memory for long.
            self._queue, self._records = queue, chain.from_iterable(map(_records, queue.head(collector.position)))

    async def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
    ) -> Batch | None:
        """Return the next records together, as soon as a limit is reached or *max_wait* after the first one.

        Cancelling the call loses nothing: the next one returns the same records.

        Args:
            max_records: At most this many records.
            max_bytes: At most this many payload bytes, but at least one record.
            max_wait: Seconds to wait for more records after the first one; 0 returns what is there, None waits until
                another limit is reached.

        Returns:
            At least one record; None once the tail has ended.

        Raises:
            ValueError: A limit is below 1, or the time is negative.
            LogFailedError: The log failed.
        """
        limits = BatchLimits.checked(max_records, max_bytes, max_wait)
        if self._closed:
            return None
        self._records = iter(())  # the collector stands after the last one that was handed out
        # A full batch at hand needs none of the coroutines that wait: 3 of 8 µs.
        batch = self._collector.take_full(limits)
        return batch if batch is not None else await self._collector.collect(limits)

    def batches(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
    ) -> AsyncIterator[Batch]:
        """Iterate over batches until the tail ends; the arguments are those of `batch`."""
        return Batches(self.batch, BatchLimits.checked(max_records, max_bytes, max_wait))

    async def aclose(self) -> None:
        """End the tail. Not needed for one that is no longer used: it keeps nothing open."""
        self._closed = True
        self._records = iter(())


def _records(run: HeldRun) -> Iterator[Record]:
    return run.records()
