"""JSON bodies of the routes that read and truncate many queues: `/v1/plan`, `/v1/fetch` and `/v1/truncate`.

They exist so that a reader of ten thousand queues needs one request a step:

* `POST /v1/plan` (`PlanRequest` → `PlanResponse`): from start positions and limits to stop positions, with counts and
  cut points. Positions may have gaps, so stop - start says nothing about size; the service knows, the reader does not.
* `POST /v1/fetch` (`FetchRequest` → a stream of runs, see `wire`): many ranges in one response, in the order asked. All
  are checked before the first byte, and the stream ends in a trailer, so a response is whole or is seen not to be.
* `POST /v1/truncate` (`TruncateManyRequest` → `TruncateManyResponse`): many truncates, each durable on return.
  A position that has not been assigned is refused: truncating there would move the next position forward.

For ids, positions and unknown members see `schemas`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from mrecordlog_async.protocol.schemas import Count, NextPosition, Position, QueueId, QueueName, Request, Response


class QueueStatus(StrEnum):
    """What a bulk route found about one queue of the request."""

    OK = "ok"
    MISSING = "missing"
    """The queue does not exist."""
    RECREATED = "recreated"
    """It exists with another id: the queue that was meant was deleted, with its records."""
    TRUNCATED = "truncated"
    """Records from the start position on are truncated; the plan starts at the first retained record."""
    AHEAD = "ahead"
    """The queue has not assigned the position yet: the log is an older copy, or the position is another queue's."""


# Plan.


class PlanStart(Request, frozen=True, gc=False):
    """Where to continue in one queue: at *start*, or at the first retained record if it is null.

    id: the incarnation that *start* belongs to. stop: read no further than this (excluded).
    """

    queue: QueueName
    start: NextPosition | None = None
    id: QueueId | None = None
    stop: NextPosition | None = None


class PlanRequest(Request, frozen=True):
    """What to plan. queues: null for all, from their first records.

    max_records and max_bytes bound the whole plan; each queue gets a share in proportion to what it has to give, at
    least one record. They are reached as closely as the records allow and passed only by that one record a queue.
    piece_records and piece_bytes ask for cut points: pieces of about that size, for readers that work side by side.
    tails asks for a digest of each range's last record. opening: 409 "reopened" unless it is the listing's.
    """

    queues: list[PlanStart] | None = None
    max_records: Count | None = None
    max_bytes: Count | None = None
    piece_records: Count | None = None
    piece_bytes: Count | None = None
    tails: bool = False
    opening: str | None = None


class Piece(Response, frozen=True, gc=False):
    """A part of a queue's range."""

    start: int
    stop: int
    records: int
    bytes: int


class QueuePlan(Response, frozen=True, gc=False):
    """The plan for one queue; all numbers but *status* are 0 where it is "missing".

    start and stop: the range to fetch, which holds *records* with *bytes* of payload; empty where start == stop. Where
    a piece size was asked for, *pieces* cut exactly this range. For "recreated" and "truncated" the range begins at the
    first record that is there, for "ahead" it is empty at next_position. tail: CRC-32C of position (u64, little endian)
    and payload of the last record in the range, where it was asked for and there is one. ended: the next position that
    the incarnation asked for had when it was deleted; null if it exists, or if that is not known.
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


class PlanResponse(Response, frozen=True):
    """One plan for each queue of the request, in its order (all of them: sorted by name), and their sums."""

    queues: list[QueuePlan]
    records: int
    bytes: int


# Fetch.


class FetchRange(Request, frozen=True, gc=False):
    """Records of *queue* at *start* … *stop* - 1, of the incarnation *id* where it is given."""

    queue: QueueName
    start: NextPosition
    stop: NextPosition
    id: QueueId | None = None


class FetchRequest(Request, frozen=True):
    """Answered with a QUEUE entry and BLOCKs for each range, in this order (see `wire`).

    404 where a queue is missing or re-created, 410 with first_position where records of a range are truncated, 409 with
    next_position where a range ends after the last position that the queue has assigned; then nothing is sent. payload:
    false for positions alone, POSITIONS entries in place of the BLOCKs.
    """

    ranges: list[FetchRange]
    payload: bool = True


# Truncate.


class TruncateOne(Request, frozen=True, gc=False):
    """Drop the records of *queue* up to and including *position*, of the incarnation *id* where it is given."""

    queue: QueueName
    position: Position
    id: QueueId | None = None


class TruncateManyRequest(Request, frozen=True):
    """Each is done or refused on its own. opening: 409 "reopened" for all, unless it is the listing's."""

    queues: list[TruncateOne]
    opening: str | None = None


class QueueTruncated(Response, frozen=True, gc=False):
    """How one truncate ended: done and durable where *status* is "ok" (also if nothing was left to drop)."""

    queue: str
    status: QueueStatus
    dropped: int = 0
    first_position: int = 0
    next_position: int = 0


class TruncateManyResponse(Response, frozen=True):
    """In the order of the request."""

    queues: list[QueueTruncated]
