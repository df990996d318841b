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

from msgspec import field

from mrecordlog_async.protocol.consumer_schemas import QueueOptionsRequest
from mrecordlog_async.protocol.schemas import Count, NextPosition, Position, QueueId, QueueName, Request, Response


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
    """A queue to search.

    Attributes:
        queue: Name of the queue.
        id: If given, search only this incarnation of the queue.
    """

    queue: QueueName
    id: QueueId | None = None


class PositionsRequest(Request, frozen=True):
    """A time to look for in many queues.

    Attributes:
        time: The time, with a zone, like 2026-11-22T09:30:00Z; rounded down to 0.1 s. It must not be in the future.
        queues: The queues; null searches all of them.
        opening: The opening from the list of queues; 409 "reopened" if the log was opened again since.
    """

    time: str
    queues: list[PositionOne] | None = None
    opening: str | None = None


class QueuePosition(Response, frozen=True, gc=False):
    """First position of one queue whose record was stored at the time or later.

    Attributes:
        queue: Name of the queue.
        status: "ok", "missing" or "recreated"; see `QueueStatus`.
        id: Id of the queue; 0 if it is missing.
        position: Position of the first of the records; the next position if every record is older. 0 if the status is
            not "ok".
    """

    queue: str
    status: QueueStatus
    id: int = 0
    position: int = 0


class PositionsResponse(Response, frozen=True):
    """First positions of many queues.

    Attributes:
        queues: One entry for each queue of the request, in its order; sorted by name if all queues were requested.
    """

    queues: list[QueuePosition]


# Plan.


class PlanStart(Request, frozen=True, gc=False):
    """Position to continue at in one queue.

    Attributes:
        queue: Name of the queue.
        start: First position to read; null starts at the first retained record.
        id: The incarnation that start belongs to; null allows any.
        stop: Read only positions below this one; null reads to the end.
    """

    queue: QueueName
    start: NextPosition | None = None
    id: QueueId | None = None
    stop: NextPosition | None = None


class PlanRequest(Request, frozen=True):
    """Request for a plan.

    The limits are split over the queues in proportion to what each holds, and each queue with records gets at least
    one. A plan exceeds its limits only by that one record per queue. A share is cut to whole records, and what that
    leaves is not split again.

    Attributes:
        queues: Where to start in each queue; null plans all queues from their first retained records.
        max_records: Limit for the records of the whole plan; null sets none.
        max_bytes: Limit for the payload bytes of the whole plan; null sets none.
        piece_records: Cut each range into pieces of about this many records, for readers that work in parallel.
        piece_bytes: Cut each range into pieces of about this many payload bytes.
        tails: Has no effect; 0.2.0 returned a digest of the last record of each range.
        times: Return when the first record of each range was stored.
        opening: The opening from the list of queues; 409 "reopened" if the log was opened again since.
    """

    queues: list[PlanStart] | None = None
    max_records: Count | None = None
    max_bytes: Count | None = None
    piece_records: Count | None = None
    piece_bytes: Count | None = None
    tails: bool = False
    times: bool = False
    opening: str | None = None


class Piece(Response, frozen=True, gc=False):
    """A part of a queue's range.

    Attributes:
        start: First position.
        stop: Position after the last one.
        records: Number of records.
        bytes: Their payload bytes.
    """

    start: int
    stop: int
    records: int
    bytes: int


class QueuePlan(Response, frozen=True, gc=False):
    """The plan for one queue. All its numbers are 0 if the status is "missing".

    Attributes:
        queue: Name of the queue.
        status: What was found; see `QueueStatus`.
        id: Id of the queue.
        first_position: Lowest position that is not truncated.
        next_position: Position of the next record.
        start: First position to fetch. With status "recreated" or "truncated" it is the first retained record's, with
            "ahead" it is next_position.
        stop: Position after the last one to fetch; equals start if there is nothing to fetch.
        records: Number of records in the range.
        bytes: Their payload bytes. Where the range begins among records that are on the disk alone, an estimate.
        pieces: Parts that cover exactly this range, if a piece size was requested.
        tail: Always null; see `tails` of the request.
        ended: Next position of the requested incarnation when it was deleted; null if it exists or if that is unknown.
        time: When the first record in the range was stored, in UTC, if requested; null if the range is empty, or was
            truncated or deleted while the plan was made.
    """

    queue: str
    status: QueueStatus
    id: int = 0
    first_position: int = 0
    next_position: int = 0
    start: int = 0
    stop: int = 0
    records: int = 0
    bytes: int = 0
    pieces: list[Piece] = field(default_factory=list)
    tail: int | None = None
    ended: int | None = None
    time: datetime | None = None


class PlanResponse(Response, frozen=True):
    """The plans, and their sums.

    Attributes:
        queues: One plan for each queue of the request, in its order; sorted by name if all queues were requested.
        records: Number of records in all ranges.
        bytes: Their payload bytes.
    """

    queues: list[QueuePlan]
    records: int
    bytes: int


# Fetch.


class FetchRange(Request, frozen=True, gc=False):
    """A range of one queue.

    Attributes:
        queue: Name of the queue.
        start: First position.
        stop: Position after the last one.
        id: If given, read only this incarnation of the queue.
    """

    queue: QueueName
    start: NextPosition
    stop: NextPosition
    id: QueueId | None = None


class FetchRequest(Request, frozen=True):
    """Request for records. The response has a QUEUE entry and BLOCKs for each range, in this order (see `wire`).

    It is refused as a whole with 404 if a queue is missing or was recreated, with 410 and first_position if records of
    a range are truncated, and with 409 and next_position if a range ends after the last assigned position.

    Attributes:
        ranges: The ranges; they must not overlap.
        payload: False returns only positions: POSITIONS entries instead of BLOCKs.
    """

    ranges: list[FetchRange]
    payload: bool = True


# Truncate.


class TruncateOne(Request, frozen=True, gc=False):
    """A truncate of one queue.

    Attributes:
        queue: Name of the queue.
        position: Last position to drop.
        id: If given, truncate only this incarnation of the queue.
    """

    queue: QueueName
    position: Position
    id: QueueId | None = None


class CreateManyRequest(Request, frozen=True):
    """Queues to create, all or none.

    Attributes:
        queues: Their names. One that is given twice counts once.
        exist_ok: Leave queues that already exist as they are; otherwise they are a 409 "queue_exists".
        options: The options of those that are created.
    """

    queues: list[QueueName]
    exist_ok: bool = False
    options: QueueOptionsRequest | None = None  # type: ignore[valid-type]  # made by `defstruct`


class CreateManyResponse(Response, frozen=True):
    """Result of creating queues.

    Attributes:
        created: The number of queues that were created.
    """

    created: int


class TruncateManyRequest(Request, frozen=True):
    """Truncates of many queues; each is carried out or refused independently.

    Attributes:
        queues: The truncates.
        opening: The opening from the list of queues; 409 "reopened" for all if the log was opened again since.
        up_to_consumers: Drop the records that all consumers have acknowledged of a queue whose consumer is behind.
            Otherwise nothing is dropped of such a queue. Its status is "consumer_behind" either way.
    """

    queues: list[TruncateOne]
    opening: str | None = None
    up_to_consumers: bool = False


class QueueTruncated(Response, frozen=True, gc=False):
    """Result of one truncate.

    Attributes:
        queue: Name of the queue.
        status: "ok" if it is carried out and durable, even if there was nothing to drop; see `QueueStatus`.
        dropped: Number of records dropped.
        first_position: Lowest position that is not truncated.
        next_position: Position of the next record.
        detail: What happened, for people, if the status is "consumer_behind"; otherwise null.
    """

    queue: str
    status: QueueStatus
    dropped: int = 0
    first_position: int = 0
    next_position: int = 0
    detail: str | None = None


class TruncateManyResponse(Response, frozen=True):
    """Results of many truncates.

    Attributes:
        queues: One result for each truncate, in the order of the request.
    """

    queues: list[QueueTruncated]
