"""The calls of `load` that differ between a directory and a service: the summary of a queue, and a start position."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import QueueSummary

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

    Target: TypeAlias = MultiRecordLog | RecordLogClient

PLACEHOLDER = b""
"""The record that has a service assign the positions before those of a new queue. It is removed again."""


async def summary_of(target: Target, queue: str) -> QueueSummary:
    """Return the positions and the number of records of *queue*."""
    if isinstance(target, MultiRecordLog):
        return target.queue_summary(queue)
    return await target.queue_summary(queue)


async def records_of(target: Target, queue: str, start: int, stop: int) -> dict[int, bytes]:
    """Return the records of *queue* at positions *start* … *stop* - 1, by position."""
    if isinstance(target, MultiRecordLog):
        return dict(target.range(queue, start, stop))
    return {position: payload async for position, payload in target.range(queue, start, stop)}


async def begin_at(target: Target, queue: str, first_position: int, own_records: int = 0) -> None:
    """Advance *queue* to *first_position*, unless it holds other records than *own_records* ones, which are removed.

    If it is there already, only what an attempt that was killed has left of these steps is removed.
    """
    found = await summary_of(target, queue)
    if found.next_position < first_position:
        if found.records == own_records:
            await _advance(target, queue, first_position)
    elif await _has_placeholder(target, found, first_position - 1, own_records):
        await target.truncate(queue, first_position - 1, past_consumers=True)


async def _advance(target: Target, queue: str, next_position: int) -> None:
    if not isinstance(target, MultiRecordLog):
        # A service truncates only assigned positions.
        await target.append_record(queue, next_position - 1, PLACEHOLDER)
    # A rule of the target may have given the new queue a consumer, which misses nothing here.
    await target.truncate(queue, next_position - 1, past_consumers=True)


async def _has_placeholder(target: Target, found: QueueSummary, position: int, own_records: int) -> bool:
    """Return whether *position* holds the placeholder of a load that was killed before it removed it."""
    is_first = position == found.first_position == found.began
    is_last = position == found.next_position - 1 and found.records == own_records + 1
    if not found.records or not (is_first or is_last):
        return False
    return await records_of(target, found.queue, position, position + 1) == {position: PLACEHOLDER}
