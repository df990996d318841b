"""Reads of one queue that take several calls: page by page, following, and waiting for a position."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from math import inf

from mrecordlog_async.batches import check_bounds, check_limit, check_seconds, not_acknowledged
from mrecordlog_async.client.sender import Sender
from mrecordlog_async.client.tail import PAUSE_SECONDS, WAIT_SECONDS, ClientTail
from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.model import POSITION_MAX, Run, Start, Times, check_start
from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.calls import PAGE_BYTES, Page, PageRequest
from mrecordlog_async.protocol.responses import ServiceError


async def position_of(sender: Sender, queue: str, start: Start) -> int:
    """Return the position of *start*; one that is a time is requested."""
    return await sender.send(calls.position_at(queue, start)) if isinstance(start, datetime) else start


async def read_page(sender: Sender, queue: str, request: PageRequest) -> Page:
    """Return runs of *queue* from a position on, or from the first retained record after it."""
    while True:
        try:
            return await sender.send(calls.read_page(queue, request))
        except ServiceError as error:
            request = request._replace(position=calls.first_retained(error, request.position))


async def timed_runs(
    sender: Sender, queue: str, start: Start | None, stop: int | None, *, limit: int | None
) -> AsyncIterator[tuple[list[Run], Times]]:
    """Yield what `RecordLogClient.timed_runs` yields without *follow*."""
    if limit is not None:
        check_limit(limit)
    summary = await sender.send(calls.queue_summary(queue))
    position = await position_of(sender, queue, summary.first_position if start is None else start)
    check_bounds(position, stop)
    position = max(int(position), 0)
    end = summary.next_position if stop is None else min(int(stop), summary.next_position)
    while position < end and limit != 0:
        page = await read_page(sender, queue, PageRequest(position, limit, stop=end))
        runs, position = page.runs, page.next_position
        if page.queue_id != summary.id:
            raise QueueNotFoundError(queue)  # deleted and recreated during the read
        if not runs:
            return
        yield runs, page.times
        if limit is not None:
            limit -= sum(run.record_count for run in runs)


async def followed(tail: ClientTail) -> AsyncIterator[tuple[list[Run], Times]]:
    """Yield what `RecordLogClient.timed_runs` yields with *follow*."""
    async for batch in tail.batches(max_records=POSITION_MAX, max_bytes=PAGE_BYTES, max_wait=0):
        yield list(batch.runs), batch.times_between(batch.first_position, batch.next_position)


async def wait_for(sender: Sender, queue: str, position: int) -> bool:
    """Wait until *position* has been assigned; see `RecordLogClient.wait_for`."""
    check_start(position)
    summary = await sender.send(calls.queue_summary(queue))
    queue_id, early = summary.id, False
    while summary.next_position <= position:
        if summary.sealed or summary.id != queue_id:
            return False
        await sender.transport.sleep(PAUSE_SECONDS if early else 0)
        begun = sender.transport.clock()
        try:
            await sender.send(calls.wait_for_records(queue, position, WAIT_SECONDS))
            summary = await sender.send(calls.queue_summary(queue))
        except QueueNotFoundError:
            return False
        early = sender.transport.clock() - begun < WAIT_SECONDS / 2
    return summary.id == queue_id


async def wait_acknowledged(sender: Sender, queue: str, position: int, consumer: str, seconds: float | None) -> None:
    """Wait until *consumer* has acknowledged *position*; see `RecordLogClient.wait_acknowledged`."""
    check_seconds("timeout", seconds, "the consumer")
    end = inf if seconds is None else sender.transport.clock() + seconds
    while True:
        begun = sender.transport.clock()
        wait = max(min(WAIT_SECONDS, end - begun), 0.0)
        if await sender.send(calls.wait_acknowledged(queue, consumer, position, wait)):
            return
        now = sender.transport.clock()
        if now >= end:
            raise not_acknowledged(queue, position, consumer)
        if now - begun < wait / 2:  # the service is shutting down, say
            await sender.transport.sleep(min(PAUSE_SECONDS, end - now))
