"""The client's methods that read: records, whole runs, and the state of queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from mrecordlog_async.batches import check_limit, check_start
from mrecordlog_async.client.tail import PAGE_BYTES, PAUSE_SECONDS, WAIT_SECONDS, Page, Tail, check_reached
from mrecordlog_async.client.transport import Transport, path_of
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.model import POSITION_MAX, QueueSummary, Record, Run, Start, Times
from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.protocol.responses import Reply, ServiceError, decoded
from mrecordlog_async.protocol.schemas import PositionResponse, QueueResponse, QueuesResponse, summary_of


class Reads:
    """The methods of `RecordLogClient` that read records and describe queues."""

    _transport: Transport

    async def range(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records of *queue* from *start* to *stop* - 1.

        Args:
            queue: Its name.
            start: First position, or a time (see `position_at`); None starts at the first retained record.
            stop: Position after the last one wanted; None ends at the last record that exists when the call starts.
            limit: At most this many records, the first ones; None for all.

        Yields:
            Records in the order of their positions.

        Raises:
            QueueNotFoundError: The queue does not exist, or was deleted and recreated during the read.
            ValueError: *limit* is negative.
        """
        async for run in self.runs(queue, start, stop, limit=limit):
            for record in run.records():
                yield record

    def iter_from(self, queue: str, position: int) -> AsyncIterator[Record]:
        """Yield the records of *queue* from *position* to the last one that exists when the call starts.

        Args:
            queue: Its name.
            position: First position.

        Returns:
            What `range(queue, position)` yields.
        """
        return self.range(queue, position)

    async def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Run]:
        """Yield the records that `range` yields as whole runs, which is faster for many small records.

        Args:
            queue: Its name.
            start: First position, or a time (see `position_at`); None starts at the first retained record.
            stop: Position after the last one wanted; None ends at the last record that exists when the call starts.
            limit: At most this many records, the first ones; None for all.

        Yields:
            Runs of consecutive positions, in their order.

        Raises:
            QueueNotFoundError: The queue does not exist, or was deleted and recreated during the read.
            ValueError: *limit* is negative, or a time has no time zone.
        """
        async for runs, _ in self.timed_runs(queue, start, stop, limit=limit):
            for run in runs:
                yield run

    async def timed_runs(
        self,
        queue: str,
        start: Start | None = None,
        stop: int | None = None,
        *,
        limit: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[tuple[list[Run], Times]]:
        """Yield what `runs` yields, page by page, together with the times when the records were stored.

        Args:
            queue: Its name.
            start: First position, or a time (see `position_at`); None starts at the first retained record.
            stop: Position after the last one wanted; None ends at the last record that exists when the call starts.
            limit: At most this many records, the first ones; None for all.
            follow: Wait for more, until the queue is deleted, or sealed and read; *stop* and *limit* are not used then.

        Yields:
            Runs, at least one, and their times.

        Raises:
            QueueNotFoundError: The queue does not exist, or was deleted and recreated during the read.
            ServiceError: The log was restored to an older state than what *follow* has read (code `ahead`).
            ValueError: *limit* is negative, or a time has no time zone.
        """
        if limit is not None:
            check_limit(limit)
        summary = await self.queue_summary(queue)
        position = await self._position_of(queue, summary.first_position if start is None else start)
        if follow:
            async for page in self._follow(summary, position):
                if page.runs:
                    yield page.runs, page.times
            return
        end = summary.next_position if stop is None else min(stop, summary.next_position)
        while position < end and limit != 0:
            page = await _read_page(self._transport, queue, position, end, limit=limit)
            runs, position = page.runs, page.next_position
            if page.queue_id != summary.id:
                raise QueueNotFoundError(queue)  # deleted and recreated during the read
            if not runs:
                return
            yield runs, page.times
            if limit is not None:
                limit -= sum(run.record_count for run in runs)

    def tail(self, queue: str, start: Start | None = None) -> Tail:
        """Follow *queue* from *start*: iterate over its records, or take batches, and wait for more.

        The tail survives restarts of the service, and calls that are cancelled. Records that are truncated before it
        reaches them are skipped. It ends when the queue is deleted, and after the last record of a sealed queue. If the
        log is restored to an older state than what the tail has read, it raises ServiceError with the code `ahead`. It
        looks every 30 s while no record comes: it misses records that have taken all those positions by then.

        Args:
            queue: Its name.
            start: First position, or a time (see `position_at`); None starts at the first retained record.

        Returns:
            An iterator over the records in the order of their positions. The first one raises QueueNotFoundError if the
            queue does not exist.
        """

        async def begin() -> QueueSummary:
            summary = await self.queue_summary(queue)
            if not isinstance(start, datetime) or tail.position is not None:
                return summary
            return replace(summary, first_position=await self.position_at(queue, start))

        async def fetch(position: int, records: int | None, size: int, wait_seconds: int) -> Page:
            return await _read_page(
                self._transport, queue, position, None, limit=records, max_bytes=size, wait_seconds=wait_seconds
            )

        first = None if start is None or isinstance(start, datetime) else check_start(start)
        tail = Tail(queue, first, begin, fetch)
        return tail

    async def _follow(self, known: QueueSummary, position: int) -> AsyncGenerator[Page, None]:
        """Yield pages from *position* on until this incarnation of the queue is deleted, or sealed and read.

        Some may be empty.
        """
        queue, reached, clock = known.queue, known.next_position, asyncio.get_running_loop().time
        while True:
            begun = clock()
            try:
                page = await _read_page(self._transport, queue, position, None, wait_seconds=WAIT_SECONDS)
                if page.queue_id != known.id:
                    return
                position = page.next_position
                yield page
                if page.runs:
                    reached = max(reached, position)
                    continue
                # Asked only after a wait in vain, which is short at the end of a sealed queue.
                summary = await self.queue_summary(queue)
            except QueueNotFoundError:
                return
            if summary.sealed and position >= summary.next_position:
                return
            check_reached(summary, known.id, position, reached)
            if clock() - begun < WAIT_SECONDS / 2:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _position_of(self, queue: str, start: Start) -> int:
        return await self.position_at(queue, start) if isinstance(start, datetime) else start

    async def position_at(self, queue: str, time: datetime) -> int:
        """Return the position of the first retained record of *queue* that was stored at *time* or later.

        Args:
            queue: Its name.
            time: A time with a time zone, not in the future; rounded down to 0.1 s.

        Returns:
            The position; the next position if every record is older.

        Raises:
            QueueNotFoundError: The queue does not exist.
            ValueError: *time* has no time zone.
            ServiceError: *time* is in the future.
        """
        if not isinstance(time, datetime):
            raise TypeError(f"a time must be a datetime with a time zone, not {type(time).__name__}")
        if time.utcoffset() is None:
            raise ValueError(f"time {time} has no time zone: use datetime.now(UTC) or moment.astimezone()")
        query = {"time": time.astimezone(UTC).isoformat()}
        reply = await self._transport.send("GET", path_of(queue, "position"), query=query)
        return decoded(reply, PositionResponse).position

    async def time_of(self, queue: str, position: int) -> datetime | None:
        """Return when the record of *queue* at *position* was stored, to 0.1 s.

        Args:
            queue: Its name.
            position: Position of the record.

        Returns:
            The time in UTC; None if no record is retained at this position.

        Raises:
            QueueNotFoundError: The queue does not exist.
        """
        async for runs, times in self.timed_runs(queue, position, position + 1):
            return times.time_at(position) if runs[0].first_position == position else None
        return None

    async def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*.

        Args:
            queue: Its name.
            position: The position to wait for; truncated records count.

        Returns:
            True once the queue's next position is past *position*; False if the queue was deleted, or sealed before.

        Raises:
            QueueNotFoundError: The queue does not exist when the call starts.
            ValueError: *position* is not one at which a tail can start.
        """
        check_start(position)
        summary = await self.queue_summary(queue)
        queue_id, clock, early = summary.id, asyncio.get_running_loop().time, False
        while summary.next_position <= position:
            if summary.sealed or summary.id != queue_id:
                return False
            await asyncio.sleep(PAUSE_SECONDS if early else 0)
            begun = clock()
            try:
                await self._wait_for_records(queue, position)
                summary = await self.queue_summary(queue)
            except QueueNotFoundError:
                return False
            early = clock() - begun < WAIT_SECONDS / 2
        return summary.id == queue_id

    async def _wait_for_records(self, queue: str, position: int) -> None:
        """Wait for a record at *position* or later, `WAIT_SECONDS` at most; or until its position is truncated."""
        query = {"start": str(position), "stop": str(position), "wait": str(WAIT_SECONDS)}  # the record is not sent
        path = path_of(queue, "records")
        try:
            await self._transport.send("GET", path, query=query, accept=wire.CONTENT_TYPE, wait_seconds=WAIT_SECONDS)
        except ServiceError as error:
            if error.code != "truncated":
                raise

    async def queue_exists(self, queue: str) -> bool:
        """Return whether *queue* exists.

        Args:
            queue: Its name.
        """
        try:
            await self.queue_summary(queue)
        except QueueNotFoundError:
            return False
        return True

    async def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return list(await self.summary())

    async def summary(
        self, *, order: Literal["bytes", "records", "segment", "age"] | None = None, limit: int | None = None
    ) -> dict[str, QueueSummary]:
        """Return positions and sizes of every queue, or of the first ones in an order.

        Args:
            order: "bytes" or "records" for the queues that hold most, "segment" for those that keep the oldest segment,
                "age" for those with the oldest records; needs a limit. None sorts by name.
            limit: At most this many queues.

        Returns:
            The summaries by name, in this order.
        """
        query = {name: str(value) for name, value in (("order", order), ("limit", limit)) if value is not None}
        reply = await self._transport.send("GET", "/v1/queues", query=query or None)
        return {one.queue: summary_of(one) for one in decoded(reply, QueuesResponse).queues}

    async def queue_summary(self, queue: str) -> QueueSummary:
        """Return positions and sizes of *queue*.

        Args:
            queue: Its name.

        Raises:
            QueueNotFoundError: The queue does not exist.
        """
        reply = await self._transport.send("GET", path_of(queue))
        return summary_of(decoded(reply, QueueResponse))

    async def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated.

        Args:
            queue: Its name.
        """
        return (await self.queue_summary(queue)).first_position

    async def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets.

        Args:
            queue: Its name.
        """
        return (await self.queue_summary(queue)).next_position

    async def last_position(self, queue: str) -> int | None:
        """Return the last position assigned in *queue*.

        Args:
            queue: Its name.

        Returns:
            The position, or None if the queue never had a record.
        """
        next_position = await self.next_position(queue)
        return next_position - 1 if next_position else None

    async def last_record(self, queue: str) -> Record | None:
        """Return the newest retained record of *queue*.

        Args:
            queue: Its name.

        Returns:
            The record, or None if the queue holds none.
        """
        summary = await self.queue_summary(queue)
        if not summary.records:
            return None
        async for record in self.range(queue, summary.next_position - 1):
            return record
        return None


async def _read_page(
    transport: Transport,
    queue: str,
    position: int,
    stop: int | None,
    *,
    limit: int | None = None,
    max_bytes: int = PAGE_BYTES,
    wait_seconds: int = 0,
) -> Page:
    """Return runs of *queue* from *position* on, or from the first retained record after it."""
    query = {"start": str(position), "max_bytes": str(max_bytes)}
    if stop is not None:
        query["stop"] = str(stop)
    if limit is not None:
        query["limit"] = str(min(limit, POSITION_MAX))
    if wait_seconds:
        query["wait"] = str(wait_seconds)
    while True:
        try:
            reply = await transport.send(
                "GET",
                path_of(queue, "records"),
                query=query,
                accept=wire.CONTENT_TYPE,
                wait_seconds=wait_seconds,
            )
            return page_of(reply)
        except ServiceError as error:
            first = error.problem.get("first_position")
            # Each refusal names a later position, so this loop ends when truncates pause.
            if error.code != "truncated" or type(first) is not int or first <= int(query["start"]):
                raise
            query["start"] = str(first)


def page_of(reply: Reply) -> Page:
    """Return the page in *reply*; ServiceError if the service did not write it."""
    try:
        blocks = list(wire_decoder.decode(reply.body))
        times = blocks[0].times if blocks else Times.none()  # of all blocks: they are of one queue
        runs = [block.run() for block in blocks]
        position, queue_id = int(reply.headers["X-Next-Position"]), int(reply.headers["X-Queue-Id"])
        return Page(runs, position, queue_id, "X-Queue-Complete" in reply.headers, times)
    except (ValueError, KeyError) as error:  # a WireError is a ValueError
        raise ServiceError(reply.status, "unreadable", f"not a response of this service: {error}") from None
