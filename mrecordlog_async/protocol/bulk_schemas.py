"""JSON bodies of the routes that search, read and truncate many queues.

With them a reader of ten thousand queues needs one request per step:

* `POST /v1/positions` (`PositionsRequest` → `PositionsResponse`): returns where the records begin that were stored at a
  time or later.
* `POST /v1/plan` (`PlanRequest` → `PlanResponse`): returns stop positions, counts and cut points for start positions
  and limits. Positions may have gaps, so stop - start says nothing about size; only the service knows it.
* `POST /v1/fetch` (`FetchRequest` → a stream of runs, see `wire`): returns many ranges in one response, in the order of
  the request. All are checked before the first byte, and the stream ends with a trailer, so an incomplete response is
  always detected.
* `POST /v1/truncate` (`TruncateManyRequest` → `TruncateManyResponse`): truncates many queues, durable on return. A
  position that has not been assigned is refused: truncating there would move the next position forward.

For ids, positions and unknown members see `schemas`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import field

from mrecordlog_async.protocol.consumer_schemas import QueueOptionsRequest
from mrecordlog_async.protocol.schemas import Count, NextPosition, Position, QueueId, QueueName, Request, Response, says


class QueueStatus(StrEnum):
    """Finding of a bulk route about one queue of the request."""

    OK = "ok"
    """The queue is as the request expects it, and what was requested is done."""
    MISSING = "missing"
    """The queue does not exist."""
    RECREATED = "recreated"
    """The queue exists with another id: the requested incarnation was deleted with its records."""
    TRUNCATED = "truncated"
    """Records from the start position on are truncated; the plan starts at the first retained record."""
    AHEAD = "ahead"
    """The queue has not assigned the position yet: the log is older, or the position belongs to another queue."""
    BEHIND = "consumer_behind"
    """A consumer has not acknowledged all of the records, so not all of them were truncated."""


# Positions of a time.


class PositionOne(Request, frozen=True, gc=False):
    """A queue to search."""

    queue: Annotated[QueueName, says("Name of the queue.")]
    id: Annotated[QueueId | None, says("If given, search only this incarnation of the queue.")] = None


class PositionsRequest(Request, frozen=True):
    """A time to look for in many queues."""

    time: Annotated[
        str,
        says("The time, with a zone, like 2026-11-22T09:30:00Z; rounded down to 0.1 s. It must not be in the future."),
    ]
    queues: Annotated[list[PositionOne] | None, says("The queues; null searches all of them.")] = None
    opening: Annotated[
        str | None, says('The opening from the list of queues; 409 "reopened" if the log was opened again since.')
    ] = None


class QueuePosition(Response, frozen=True, gc=False):
    """First position of one queue whose record was stored at the time or later."""

    queue: Annotated[str, says("Name of the queue.")]
    status: Annotated[QueueStatus, says('"ok", "missing" or "recreated"; see `QueueStatus`.')]
    id: Annotated[int, says("Id of the queue; 0 if it is missing.")] = 0
    position: Annotated[
        int,
        says(
            "Position of the first of the records; the next position if every record is older. 0 if the status is "
            'not "ok".'
        ),
    ] = 0


class PositionsResponse(Response, frozen=True):
    """First positions of many queues."""

    queues: Annotated[
        list[QueuePosition],
        says("One entry for each queue of the request, in its order; sorted by name if all queues were requested."),
    ]


# Plan.


class PlanStart(Request, frozen=True, gc=False):
    """Position to continue at in one queue."""

    queue: Annotated[QueueName, says("Name of the queue.")]
    start: Annotated[NextPosition | None, says("First position to read; null starts at the first retained record.")] = (
        None
    )
    id: Annotated[QueueId | None, says("The incarnation that start belongs to; null allows any.")] = None
    stop: Annotated[NextPosition | None, says("Read only positions below this one; null reads to the end.")] = None


class PlanRequest(Request, frozen=True):
    """Request for a plan.

    The limits are split over the queues in proportion to what each holds, and each queue with records gets at least
    one. A plan exceeds its limits only by that one record per queue. A share is cut to whole records, and what that
    leaves is not split again.
    """

    queues: Annotated[
        list[PlanStart] | None,
        says("Where to start in each queue; null plans all queues from their first retained records."),
    ] = None
    max_records: Annotated[Count | None, says("Limit for the records of the whole plan; null sets none.")] = None
    max_bytes: Annotated[Count | None, says("Limit for the payload bytes of the whole plan; null sets none.")] = None
    piece_records: Annotated[
        Count | None, says("Cut each range into pieces of about this many records, for readers that work in parallel.")
    ] = None
    piece_bytes: Annotated[Count | None, says("Cut each range into pieces of about this many payload bytes.")] = None
    tails: Annotated[bool, says("Has no effect; 0.2.0 returned a digest of the last record of each range.")] = False
    times: Annotated[bool, says("Return when the first record of each range was stored.")] = False
    opening: Annotated[
        str | None, says('The opening from the list of queues; 409 "reopened" if the log was opened again since.')
    ] = None


class Piece(Response, frozen=True, gc=False):
    """A part of a queue's range."""

    start: Annotated[int, says("First position.")]
    stop: Annotated[int, says("Position after the last one.")]
    records: Annotated[int, says("Number of records.")]
    bytes: Annotated[int, says("Their payload bytes.")]


class QueuePlan(Response, frozen=True, gc=False):
    """The plan for one queue. All its numbers are 0 if the status is "missing"."""

    queue: Annotated[str, says("Name of the queue.")]
    status: Annotated[QueueStatus, says("What was found; see `QueueStatus`.")]
    id: Annotated[int, says("Id of the queue.")] = 0
    first_position: Annotated[int, says("Lowest position that is not truncated.")] = 0
    next_position: Annotated[int, says("Position of the next record.")] = 0
    start: Annotated[
        int,
        says(
            'First position to fetch. With status "recreated" or "truncated" it is the first retained '
            'record\'s, with "ahead" it is next_position.'
        ),
    ] = 0
    stop: Annotated[int, says("Position after the last one to fetch; equals start if there is nothing to fetch.")] = 0
    records: Annotated[int, says("Number of records in the range.")] = 0
    bytes: Annotated[
        int, says("Their payload bytes. Where the range begins among records that are on the disk alone, an estimate.")
    ] = 0
    pieces: Annotated[list[Piece], says("Parts that cover exactly this range, if a piece size was requested.")] = field(
        default_factory=list
    )
    tail: Annotated[int | None, says("Always null; see `tails` of the request.")] = None
    ended: Annotated[
        int | None,
        says(
            "Next position of the requested incarnation when it was deleted; null if it exists or if that is unknown."
        ),
    ] = None
    time: Annotated[
        datetime | None,
        says(
            "When the first record in the range was stored, in UTC, if requested; null if the range is empty, or "
            "was truncated or deleted while the plan was made."
        ),
    ] = None


class PlanResponse(Response, frozen=True):
    """The plans, and their sums."""

    queues: Annotated[
        list[QueuePlan],
        says("One plan for each queue of the request, in its order; sorted by name if all queues were requested."),
    ]
    records: Annotated[int, says("Number of records in all ranges.")]
    bytes: Annotated[int, says("Their payload bytes.")]


# Fetch.


class FetchRange(Request, frozen=True, gc=False):
    """A range of one queue."""

    queue: Annotated[QueueName, says("Name of the queue.")]
    start: Annotated[NextPosition, says("First position.")]
    stop: Annotated[NextPosition, says("Position after the last one.")]
    id: Annotated[QueueId | None, says("If given, read only this incarnation of the queue.")] = None


class FetchRequest(Request, frozen=True):
    """Request for records. The response has a QUEUE entry and BLOCKs for each range, in this order (see `wire`).

    It is refused as a whole with 404 if a queue is missing or was recreated, with 410 and first_position if records of
    a range are truncated, and with 409 and next_position if a range ends after the last assigned position.
    """

    ranges: Annotated[list[FetchRange], says("The ranges; they must not overlap.")]
    payload: Annotated[bool, says("False returns only positions: POSITIONS entries instead of BLOCKs.")] = True


# Truncate.


class TruncateOne(Request, frozen=True, gc=False):
    """A truncate of one queue."""

    queue: Annotated[QueueName, says("Name of the queue.")]
    position: Annotated[Position, says("Last position to drop.")]
    id: Annotated[QueueId | None, says("If given, truncate only this incarnation of the queue.")] = None


class CreateManyRequest(Request, frozen=True):
    """Queues to create, all or none."""

    queues: Annotated[list[QueueName], says("Their names. One that is given twice counts once.")]
    exist_ok: Annotated[
        bool, says('Leave queues that already exist as they are; otherwise they are a 409 "queue_exists".')
    ] = False
    options: Annotated[QueueOptionsRequest | None, says("The options of those that are created.")] = None  # type: ignore[valid-type]  # made by `defstruct`


class CreateManyResponse(Response, frozen=True):
    """Result of creating queues."""

    created: Annotated[int, says("The number of queues that were created.")]


class TruncateManyRequest(Request, frozen=True):
    """Truncates of many queues; each is carried out or refused independently."""

    queues: Annotated[list[TruncateOne], says("The truncates.")]
    opening: Annotated[
        str | None,
        says('The opening from the list of queues; 409 "reopened" for all if the log was opened again since.'),
    ] = None
    up_to_consumers: Annotated[
        bool,
        says(
            "Drop the records that all consumers have acknowledged of a queue whose consumer is behind. Otherwise "
            'nothing is dropped of such a queue. Its status is "consumer_behind" either way.'
        ),
    ] = False


class QueueTruncated(Response, frozen=True, gc=False):
    """Result of one truncate."""

    queue: Annotated[str, says("Name of the queue.")]
    status: Annotated[
        QueueStatus,
        says('"ok" if it is carried out and durable, even if there was nothing to drop; see `QueueStatus`.'),
    ]
    dropped: Annotated[int, says("Number of records dropped.")] = 0
    first_position: Annotated[int, says("Lowest position that is not truncated.")] = 0
    next_position: Annotated[int, says("Position of the next record.")] = 0
    detail: Annotated[
        str | None, says('What happened, for people, if the status is "consumer_behind"; otherwise null.')
    ] = None


class TruncateManyResponse(Response, frozen=True):
    """Results of many truncates."""

    queues: Annotated[list[QueueTruncated], says("One result for each truncate, in the order of the request.")]
