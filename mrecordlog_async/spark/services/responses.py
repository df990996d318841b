"""Responses of a service as values, and their decoding from JSON. Pure.

The decoders raise ValueError, KeyError, TypeError or AttributeError for anything else: `connection` then retries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.positions.history import Opening
from mrecordlog_async.spark.positions.partitions import Range
from mrecordlog_async.spark.settings.offset import At


@dataclass(frozen=True, slots=True)
class ServiceListing:
    """Listing of a service.

    Attributes:
        queues: all queues by name, sorted.
        log: identifies the log; "" if the service does not state it.
        opening: identifies the log's current opening.
        opened: queue id → the next position when the log was opened.
        at: the log's state, no older than *queues*; None if nothing was ever stored in it.
    """

    queues: Mapping[str, QueueSummary]
    log: str = ""
    opening: str = ""
    opened: Mapping[int, int] | None = None
    at: At | None = None


class LogHistory(NamedTuple):
    """Identity of a service's log.

    Attributes:
        log: the log's public id.
        opening: identifies the log's current opening.
        openings: (random number, first batch) of the openings that stored a batch, oldest first.
        name: what the service calls itself.
    """

    log: str
    opening: str
    openings: list[Opening]
    name: str = ""


class ListingPage(NamedTuple):
    """One page of a listing.

    after: the next page starts after this name; None for the last page. since: the ETag of the listing that this one
    changes; None if it has all queues. deleted: the queues of that listing that were deleted since.
    """

    listing: ServiceListing
    after: str | None
    etag: str
    since: str | None = None
    deleted: Sequence[str] = ()


class QueuePlan(NamedTuple):
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


class FoundPosition(NamedTuple):
    """First position of one queue whose record was stored at a time or later. status: ok, missing or recreated."""

    queue: str
    status: str
    position: int


class Truncated(NamedTuple):
    """The outcome of truncating one queue. status: ok, missing, recreated, ahead or consumer_behind.

    dropped: how many records. detail: which consumer is behind; then only what all consumers have acknowledged was
    dropped. first_position: the lowest position that is not truncated.
    """

    queue: str
    status: str
    dropped: int
    detail: str = ""
    first_position: int = 0


def decode_page(body: bytes, etag: str) -> ListingPage:
    """Decode one page of a listing."""
    found = json.loads(body)
    listed = found["queues"]
    opened = {queue["id"]: queue.get("opened_next", 0) for queue in listed}
    queues = {summary.queue: summary for summary in map(decode_summary, listed)}
    listing = ServiceListing(queues, found.get("log", ""), found.get("opening", ""), opened, _decode_at(found))
    return ListingPage(listing, found.get("next"), etag, found.get("changed_since"), found.get("deleted", ()))


def join_pages(pages: Sequence[ListingPage]) -> ServiceListing:
    """Return the listing that *pages*, of one opening, make up."""
    first = pages[0].listing
    if len(pages) == 1:
        return first
    opened = {queue_id: at for page in pages for queue_id, at in (page.listing.opened or {}).items()}
    queues = {queue: summary for page in pages for queue, summary in page.listing.queues.items()}
    return ServiceListing(queues, first.log, first.opening, opened, pages[-1].listing.at)


def changed(known: ServiceListing, page: ListingPage) -> ServiceListing:
    """Return *known* with the changes on *page*."""
    now = page.listing
    queues, opened = dict(known.queues), dict(known.opened or {})
    for queue in (*page.deleted, *now.queues):
        before = queues.get(queue)
        if before is not None:
            opened.pop(before.id, None)
    for queue in page.deleted:
        queues.pop(queue, None)
    queues |= now.queues
    opened |= now.opened or {}
    if not now.queues.keys() <= known.queues.keys():
        queues = dict(sorted(queues.items()))
    return ServiceListing(queues, now.log, now.opening, opened, now.at)


def _decode_at(found: Mapping[str, Any]) -> At | None:
    at = found.get("at")
    return None if at is None else At(at["nonce"], at["batch"])


def decode_history(body: bytes) -> LogHistory:
    """Decode which log a service has, and its openings."""
    found = json.loads(body)
    openings = [Opening(each["nonce"], each["first_batch"]) for each in found["openings"]]
    return LogHistory(found["id"], found["opening"], openings, found.get("name", ""))


def decode_summary(queue: Mapping[str, Any]) -> QueueSummary:
    """Decode the state of one queue."""
    # By position: a listing has thousands, and names take a third longer.
    return QueueSummary(
        queue["queue"],
        queue["id"],
        queue["first_position"],
        queue["next_position"],
        queue["records"],
        queue["bytes"],
        None,
        queue.get("began", 0),
        False,
        None if (oldest := queue.get("oldest_time")) is None else datetime.fromisoformat(oldest),
    )


def decode_plans(found: Mapping[str, Any]) -> list[QueuePlan]:
    """Decode the plans of many queues."""
    return [_decode_plan(each) for each in found["queues"]]


def _decode_plan(found: Mapping[str, Any]) -> QueuePlan:
    queue, queue_id = found["queue"], found.get("id", 0)
    pieces = [
        Range(queue, queue_id, piece["start"], piece["stop"], piece["records"], piece["bytes"])
        for piece in found.get("pieces", ())
    ]
    start, stop, records = found["start"], found["stop"], found["records"]
    ended, size, time = (found.get(name) for name in ("ended", "bytes", "time"))
    status = found["status"]
    return QueuePlan(queue, status, queue_id, start, stop, records, pieces, ended, size or 0, _time(time))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def decode_positions(found: Mapping[str, Any]) -> list[FoundPosition]:
    """Decode where a time is in many queues."""
    return [FoundPosition(each["queue"], each["status"], each["position"]) for each in found["queues"]]


def decode_truncated(found: Mapping[str, Any]) -> list[Truncated]:
    """Decode the outcome of truncating many queues."""
    return [
        Truncated(
            each["queue"], each["status"], each["dropped"], each.get("detail") or "", each.get("first_position", 0)
        )
        for each in found["queues"]
    ]
