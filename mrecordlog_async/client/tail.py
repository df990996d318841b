"""`ClientTail`: the records of one queue of a service from a position on, as they arrive, one by one or in batches.

Nothing is awaited between a response and the moment at which the position moves, and nothing moves before: a call that
is cancelled, even by `wait_for`, loses no record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import chain
from math import ceil, inf

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS, AvailableBatches, Batches, BatchLimits
from mrecordlog_async.client.interrupts import has_failed
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.model import Batch, QueueSummary, Record, Run, Times
from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.calls import PAGE_BYTES, Page, PageRequest
from mrecordlog_async.protocol.responses import ServiceError

WAIT_SECONDS = 30
"""Seconds that one request of a tail waits for records before it is repeated."""

PAUSE_SECONDS = 1.0
"""Pause after a response without records that came early: the queue is sealed, or the service ends."""

Begin = Callable[[float | None], Awaitable[QueueSummary]]
"""Returns where the queue begins, and whether it is sealed. Its argument is the `end` of a `ServiceCall`."""
Fetch = Callable[[PageRequest], Awaitable[Page]]


class ClientTail(AsyncIterator[Record]):
    """Result of `RecordLogClient.tail`: iterate over it, or take batches. Both continue where the other stopped.

    Cancelling a call, even by `asyncio.wait_for` or `asyncio.timeout`, loses nothing and does not end the tail. It ends
    when the queue is deleted, and after the last record of a queue that is sealed.
    """

    def __init__(
        self,
        sender: Sender,
        queue: str,
        start: int | None,
        begin: Begin | None,
        fetch: Fetch,
        *,
        queue_id: int | None = None,
    ) -> None:
        """Use `RecordLogClient.tail`."""
        self.queue = queue
        self._position = start
        self._begin = begin  # shows where the queue begins, and that it is sealed; None for a consumer: it knows both
        self._fetch = fetch  # reads a page
        self._sender = sender
        self._transport = sender.transport
        self.check = sender.transport.usage_check()  # raises LogClosedError where the tail may not be used
        self._queue_id = queue_id  # None as long as it is not known
        self._records: Iterator[Record] = iter(())
        self._reached = 0  # the queue's next position was there, or further
        self._ended = False
        # Tasks that share the tail read one after the other, each from another position.
        self._turn = self._transport.lock()

    @property
    def position(self) -> int | None:
        """The lowest position that may be handed out next; None before the first call of a tail without *start*."""
        return self._position

    def __aiter__(self) -> ClientTail:
        return self

    async def __anext__(self) -> Record:
        record = self._next_at_hand()  # tasks take no turns for what is at hand, threads do
        return await self.next_in_turn() if record is None else record

    async def next_in_turn(self) -> Record:
        """Return the next record; other readers wait."""
        self.check()
        async with self._turn:
            start = await self._begun()
            try:
                return await self._next()
            except BaseException:
                self.hand_out_again(start)
                raise

    async def _next(self) -> Record:
        record = self._next_at_hand()  # another call may have read while this one waited
        while record is None:
            page = await self._page(None, PAGE_BYTES, None)
            if page is None:
                raise StopAsyncIteration
            self._records = chain.from_iterable(run.records() for run in page.runs)
            record = self._next_at_hand()
        return record

    def _next_at_hand(self) -> Record | None:
        for record in self._records:
            self._position = record.position + 1
            return record
        return None

    async def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
        timeout: float | None = None,
    ) -> Batch | None:
        """Return the next records together, as soon as a limit is reached or *max_wait* after the first one.

        Cancelling the call loses nothing: the next one returns the same records. The arguments are those of
        `Tail.batch`. The time of one request comes on top of *timeout*.

        Returns:
            At least one record, or after *timeout* an empty batch; None once the tail has ended.

        Raises:
            ServiceError: The log was restored to an older state than what this tail has read (code `ahead`).
            ValueError: A limit is below 1, or a time is negative.
        """
        limits = BatchLimits.checked(max_records, max_bytes, max_wait, timeout)
        self.check()
        async with self._turn:
            start = await self._begun()
            try:
                return await self._batch(limits)
            except BaseException:
                self.hand_out_again(start)
                raise

    async def _batch(self, limits: BatchLimits) -> Batch | None:
        self._records = iter(())  # they are read again from the position after the last one that was handed out
        clock = self._transport.clock
        end = None if limits.timeout is None else clock() + limits.timeout
        page = await self._page(limits.records, limits.bytes, end)
        if page is None:
            return None
        if not page.runs:
            return Batch.empty(self.queue, page.queue_id, page.next_position)
        runs, after, times = list(page.runs), page.next_position, [page.times]
        deadline = end if limits.seconds is None else min(clock() + limits.seconds, inf if end is None else end)
        try:
            while (more := await self._more(limits, runs, after, deadline)) is not None:
                runs += more.runs
                after = more.next_position
                times.append(more.times)
        except TimeoutError as error:
            if not has_failed(error):
                raise
        self._position = after
        return Batch(self.queue, page.queue_id, tuple(runs), times=times[0] if len(times) == 1 else Times.joined(times))

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> AsyncIterator[Batch]:
        """Iterate over batches until the tail ends; the arguments are those of `batch`."""
        return Batches(self.batch, BatchLimits.checked(max_records, max_bytes, max_wait))

    def available(self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES) -> AsyncIterator[Batch]:
        """Iterate over batches of the records that are there when the first is asked for; see `Tail.available`."""
        return AvailableBatches(self.batch, BatchLimits.checked(max_records, max_bytes, 0), self._end)

    async def aclose(self) -> None:
        """End the tail. Not needed for one that is no longer used: it keeps nothing open."""
        self._ended = True
        self._records = iter(())

    async def _end(self) -> int:
        """Return the next position of the queue, 0 if it does not exist."""
        try:
            return (await self._sender.send(calls.queue_summary(self.queue))).next_position
        except QueueNotFoundError:
            return 0

    async def _begun(self) -> int:
        """Return the position to continue at; at the first call, find out where the queue begins."""
        if self._queue_id is None:
            assert self._begin is not None, "a consumer knows its queue"
            summary = await self._begin(None)
            self._reached = summary.next_position
            self._position = summary.first_position if self._position is None else self._position
            self._queue_id = summary.id  # last: the other two are set once it is known
        assert self._position is not None
        return self._position

    def hand_out_again(self, position: int) -> None:
        """Begin the next call at *position*: an exception ended this one, and its caller received nothing.

        A signal handler, for one, may raise between the moment at which the position moves and the `return`.
        """
        self._records = iter(())
        if self._position != position:
            self._position = position
            self._ended = False  # the end is found again

    async def _page(self, records: int | None, size: int, end: float | None) -> Page | None:
        """Return the next page with records, or at *end* one without; None once the tail has ended."""
        if end is None:
            page = await self._look(records, size, WAIT_SECONDS, None)
        else:  # the first request waits for nothing and is not cut short: a timeout below its time would get no record
            page = await self._look(records, size, 0, None)
        try:
            while page is not None and not page.runs:
                left = inf if end is None else end - self._transport.clock()
                if left <= 0:
                    break
                page = await self._look(records, size, ceil(min(left, WAIT_SECONDS)), end)
        except TimeoutError as error:
            if not has_failed(error):
                raise
        return page

    async def _look(self, records: int | None, size: int, wait_seconds: int, end: float | None) -> Page | None:
        """Return what comes within *wait_seconds*, maybe a page without records; None once the tail has ended.

        end: the `end` of a `ServiceCall`.
        """
        if self._ended:
            return None
        assert self._position is not None
        begun = self._transport.clock()
        page = await self._read(PageRequest(self._position, records, size, wait_seconds, end=end))
        if page is None or page.runs:
            return page
        self._position = page.next_position
        early = self._transport.clock() - begun < wait_seconds / 2
        self._ended = await self._is_complete(page, end)
        if self._ended:
            return None
        if early:
            await self._transport.sleep(self._pause_until(end))
        return page

    async def _is_complete(self, page: Page, end: float | None) -> bool:
        """Return whether the queue is sealed at the end of *page*, which has no records."""
        if page.complete or self._begin is None:  # the responses to a consumer say so
            return page.complete
        with suppress(QueueNotFoundError):
            summary = await self._begin(end)
            check_reached(summary, self._queue_id, page.next_position, self._reached)
            return summary.sealed and page.next_position >= summary.next_position
        return False

    async def _more(self, limits: BatchLimits, runs: list[Run], after: int, deadline: float | None) -> Page | None:
        """Return what else fits into a batch; None if it is full, or nothing more comes."""
        records = limits.records - sum(run.record_count for run in runs)
        size = limits.bytes - sum(len(run.payload) for run in runs)
        if records <= 0 or size <= 0 or limits.seconds == 0:
            return None
        clock = self._transport.clock
        begun, end = clock(), inf if deadline is None else deadline
        if begun >= end:
            return None
        wait_seconds = min(max(ceil(min(end - begun, WAIT_SECONDS)), 1), WAIT_SECONDS)
        page = await self._read(PageRequest(after, records, size, wait_seconds, end=deadline))
        # A page has at least one record; a larger one than fits is left for the next batch.
        if page is None or sum(len(run.payload) for run in page.runs) > size:
            return None
        if not page.runs:
            try:
                if await self._is_complete(page, deadline):
                    return None
            except ServiceError as error:
                if error.code != "ahead":
                    raise
                return None  # the next call meets it again; what was read before is handed out
            if clock() - begun < wait_seconds / 2:
                await self._transport.sleep(self._pause_until(deadline))
        return page

    def _pause_until(self, end: float | None) -> float:
        """Return for how long to pause after a response without records that came early."""
        return PAUSE_SECONDS if end is None else max(min(PAUSE_SECONDS, end - self._transport.clock()), 0.0)

    async def _read(self, request: PageRequest) -> Page | None:
        try:
            page = await self._fetch(request)
        except QueueNotFoundError:
            page = None
        if page is None or page.queue_id != self._queue_id:
            self._ended = True
            return None
        if page.runs:
            self._reached = max(self._reached, page.next_position)
        return page


def check_reached(summary: QueueSummary, queue_id: int | None, position: int, reached: int) -> None:
    """Raise ServiceError if the queue does not have all positions below *position* any more. It had those to *reached*.

    New records would take the positions that were read before, and nobody would read them.
    """
    if summary.id == queue_id and summary.next_position < min(position, reached):
        raise ServiceError(
            409,
            "ahead",
            f"queue {summary.queue!r}: this reader is at position {position}, and the next one is "
            f"{summary.next_position}: the log was restored to an older state; read again from where that is",
        )
