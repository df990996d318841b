"""Responses of a service as values of Spark: a listing that changes keep up to date, its log, and plans. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.bulk_schemas import QueuePlan
from mrecordlog_async.protocol.schemas import QueueResponse, QueuesResponse
from mrecordlog_async.spark.positions.partitions import Range
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.settings.offset import At


class ListingPage(NamedTuple):
    """One page of a listing.

    after: the next page starts after this name; None for the last page. since: the ETag of the listing that this one
    changes; None if it has all queues. deleted: the queues of that listing that were deleted since.
    """

    listing: Listed
    after: str | None
    etag: str
    since: str | None = None
    deleted: Sequence[str] = ()


class PlannedQueue(NamedTuple):
    """Plan of a service for one queue. status: ok, missing, recreated, truncated or ahead.

    ended: where the incarnation that was requested
    ended, if the queue was deleted since and the service knows. bytes: payload bytes. time: when the first record was
    stored, if requested.
    """

    queue: str
    status: str
    id: int
    start: int
    stop: int
    records: int
    pieces: list[Range]
    ended: int | None = None
    bytes: int = 0
    time: datetime | None = None


def page_of(found: QueuesResponse, etag: str) -> ListingPage:
    """Return one page of a listing."""
    opened = {one.id: one.opened_next for one in found.queues}
    queues = {one.queue: _summary(one) for one in found.queues}
    at = None if found.at is None else At(found.at.nonce, found.at.batch)
    listing = Listed(queues, found.log, found.opening, opened, at)
    return ListingPage(listing, found.next, etag, found.changed_since, found.deleted)


def _summary(one: QueueResponse) -> QueueSummary:
    """Return the state of one queue, without what changes while its positions stay."""
    # By position: a listing has thousands, and names take a third longer.
    return QueueSummary(
        one.queue,
        one.id,
        one.first_position,
        one.next_position,
        one.records,
        one.bytes,
        None,
        one.began,
        False,
        one.oldest_time,
    )


def planned(found: QueuePlan) -> PlannedQueue:
    """Return the plan for one queue, with its pieces as ranges to read."""
    queue, queue_id = found.queue, found.id
    pieces = [Range(queue, queue_id, *msgspec.structs.astuple(piece)) for piece in found.pieces]
    start, stop, records = found.start, found.stop, found.records
    return PlannedQueue(
        queue, found.status, queue_id, start, stop, records, pieces, found.ended, found.bytes, found.time
    )


def join_pages(pages: Sequence[ListingPage]) -> Listed:
    """Return the listing that *pages*, of one opening, make up."""
    first = pages[0].listing
    if len(pages) == 1:
        return first
    opened = {queue_id: at for page in pages for queue_id, at in page.listing.opened.items()}
    queues = {queue: summary for page in pages for queue, summary in page.listing.queues.items()}
    return Listed(queues, first.log, first.opening, opened, pages[-1].listing.at)


def changed(known: Listed, page: ListingPage) -> Listed:
    """Return *known* with the changes on *page*."""
    now = page.listing
    queues, opened = dict(known.queues), dict(known.opened)
    for queue in (*page.deleted, *now.queues):
        before = queues.get(queue)
        if before is not None:
            opened.pop(before.id, None)
    for queue in page.deleted:
        queues.pop(queue, None)
    queues |= now.queues
    opened |= now.opened
    if not now.queues.keys() <= known.queues.keys():
        queues = dict(sorted(queues.items()))
    return Listed(queues, now.log, now.opening, opened, now.at)
