"""Types of the JSON bodies that the service receives and sends: they encode, check and document them.

The routes for many queues have theirs in `bulk_schemas`.

An id names one incarnation of a queue: a queue that was deleted and created again has a new id, and requests with the
old id are refused. Positions are inclusive in truncates; `stop` is exclusive everywhere. Unknown members are errors
(400): a misspelt limit must not be ignored.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Annotated

from msgspec import Meta, Struct

from mrecordlog_async.model import QueueSummary

Position = Annotated[int, Meta(ge=0, le=2**63 - 2)]
"""The position of a record."""
NextPosition = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A bound of a range: it may be the position after the last possible one."""
QueueId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
QueueName = Annotated[str, Meta(max_length=65_535)]
"""A queue in a bulk request; responses repeat the name. It may be longer than names that the service creates."""
Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Request(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Base of all received bodies. A sender leaves out what has its default: an earlier service may not know it."""


class Response(Struct, frozen=True):
    """Base of all sent bodies."""


# Queues.


class QueueResponse(Response, frozen=True, gc=False):
    """One queue: its id, positions and sizes.

    Attributes:
        queue: Name of the queue.
        id: Id of this incarnation.
        first_position: Lowest position that is not truncated; equals next_position if the queue is empty.
        next_position: Position of the next record.
        records: Number of retained records.
        bytes: Payload bytes of the retained records.
        first_segment: Oldest segment that its records keep on the disk; null if it keeps none.
        began: The queue never had a record below this position; 0 if unknown.
        opened_next: Its next_position when the log was opened; 0 for a queue created since.
        sealed: The queue accepts no more records.
        oldest_time: When its oldest record was stored, in UTC, to 0.1 s; null if it is empty.
    """

    queue: str
    id: int
    first_position: int
    next_position: int
    records: int
    bytes: int
    first_segment: int | None = None
    began: int = 0
    opened_next: int = 0
    sealed: bool = False
    oldest_time: datetime | None = None


_summary_values = attrgetter(*(one.name for one in fields(QueueSummary)))

_OPENED_NEXT_AT = QueueResponse.__struct_fields__.index("opened_next")
_response_values = attrgetter(*(name for name in QueueResponse.__struct_fields__ if name != "opened_next"))


def summary_of(response: QueueResponse) -> QueueSummary:
    """Return what *response* says about a queue, as the log itself reports it."""
    return QueueSummary(*_summary_values(response))


def response_of(summary: QueueSummary, opened_next: int) -> QueueResponse:
    """Return *summary* as responses show it. opened_next: see `QueueResponse`."""
    values = list(_response_values(summary))
    values.insert(_OPENED_NEXT_AT, opened_next)
    return QueueResponse(*values)


class AtResponse(Response, frozen=True):
    """A state of the log: an opening, and a batch.

    It changes when queues, positions or consumers do, and with the first batch after an opening.

    Attributes:
        nonce: The newest opening, as in `openings` of `/v1/log`.
        batch: Number of the last batch that changed something and was acknowledged.
    """

    nonce: str
    batch: int


class QueuesResponse(Response, frozen=True):
    """All queues, or a page of them, sorted by name. Each is shown as it is when its part of the response is built.

    A reader that stores positions stores `log` and `opening` with them: if `opening` has changed, a position above
    `opened_next` was lost, because the log went back.

    Attributes:
        queues: The queues.
        log: Identifies the log, even after it was moved or restored.
        opening: Identifies this opening of the log; it is new whenever the log is opened.
        next: If a page was requested and more queues follow, the `after` of the next page; otherwise null.
        at: State of the log when the response ended; positions may be earlier. Null if nothing was ever stored.
        changed_since: The request's, if only the queues that have changed since then are listed; otherwise absent.
        deleted: With `changed_since`, the queues of that list that were deleted since.
    """

    queues: list[QueueResponse]
    log: str = ""
    opening: str = ""
    next: str | None = None
    at: AtResponse | None = None
    changed_since: str | None = None
    deleted: list[str] = []


class CreateResponse(Response, frozen=True):
    """Result of creating a queue.

    Attributes:
        queue: Name of the queue.
        created: False if the queue existed and `exist_ok` was given.
    """

    queue: str
    created: bool


class AppendRequest(Request, frozen=True):
    """Records to append.

    Attributes:
        records: The payloads, each as base64.
    """

    records: list[bytes]


class AppendResponse(Response, frozen=True):
    """Result of an append.

    Attributes:
        position: Position of the last record, even for a repeat; null if the request had no records.
        records: Number of records in the request.
        duplicate: True if the records were already stored at these positions.
        acknowledged: With `wait_consumer`: True if the consumer has acknowledged the records, False if it has not, or
            if that is not known. The records are stored in both cases. Otherwise left out.
    """

    position: int | None
    records: int
    duplicate: bool
    acknowledged: bool | None = None


class RecordResponse(Response, frozen=True):
    """A record: one line of a read as NDJSON, or the data of an event.

    Attributes:
        position: Position of the record.
        time: When it was stored, in UTC, to 0.1 s.
        payload: The payload as base64.
    """

    position: int
    time: str
    payload: bytes


class PositionResponse(Response, frozen=True):
    """First position of a queue whose record was stored at a time or later.

    Attributes:
        queue: Name of the queue.
        id: Id of this incarnation.
        position: Position of the first of them; the next position if every record is older.
    """

    queue: str
    id: int
    position: int


class TextRecordResponse(Response, frozen=True):
    """A record with `?as=text`.

    Attributes:
        position: Position of the record.
        time: When it was stored, in UTC, to 0.1 s.
        payload: The payload as text; U+FFFD replaces what is not UTF-8.
    """

    position: int
    time: str
    payload: str


class TruncateRequest(Request, frozen=True):
    """Drop the records of one queue up to a position.

    Attributes:
        position: Last position to drop.
        id: If given, truncate only this incarnation of the queue.
        past_consumers: Truncate even what a consumer has not acknowledged.
    """

    position: Position
    id: QueueId | None = None
    past_consumers: bool = False


class TruncateResponse(Response, frozen=True):
    """Result of a truncate.

    Attributes:
        queue: Name of the queue.
        dropped: Number of records dropped.
        first_position: Lowest position that is not truncated.
        next_position: Position of the next record.
    """

    queue: str
    dropped: int
    first_position: int
    next_position: int


# Errors and health.


class Problem(Response, frozen=True, omit_defaults=True):
    """An error (RFC 9457). The facts of an error are further members of the document.

    Attributes:
        type: The code as a URN.
        title: Phrase of the status.
        status: HTTP status.
        code: The kind of error, for programs.
        detail: What happened, for people.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str


class HealthResponse(Response, frozen=True):
    """The process is alive.

    Attributes:
        status: Always "alive".
    """

    status: str


class ReadyResponse(Response, frozen=True):
    """State of the service: whether it accepts records.

    Attributes:
        state: State of the log.
        fraction: Fraction of the log that recovery has read; 1 afterwards.
        cause: Why the service is not ready; null if it is.
    """

    state: str
    fraction: float
    cause: str | None = None


# Numbers.


class TimesResponse(Response, frozen=True):
    """Durations in seconds.

    Attributes:
        count: How many were measured.
        sum: Their sum.
        p50: Upper bound of the histogram bucket that holds the median; null if it is above the last bound, 52 s.
        p90: Same for the 90 % quantile.
        p99: Same for the 99 % quantile.
    """

    count: int = 0
    sum: float = 0.0
    p50: float | None = 0.0
    p90: float | None = 0.0
    p99: float | None = 0.0


class RecentTimesResponse(Response, frozen=True):
    """Times of the last minute.

    Attributes:
        append_seconds: From the call of an append to its return.
        commit_seconds: Writing and syncing a batch.
        sync_seconds: A sync of a segment.
    """

    append_seconds: TimesResponse = TimesResponse()
    commit_seconds: TimesResponse = TimesResponse()
    sync_seconds: TimesResponse = TimesResponse()


class UsageResponse(Response, frozen=True):
    """Resources in use and their limits.

    Attributes:
        memory_bytes: Memory of retained records.
        memory_limit_bytes: Limit of memory_bytes.
        disk_bytes: Disk space of all files of the log.
        disk_written_bytes: Part of disk_bytes that holds data.
        disk_limit_bytes: Limit of disk_bytes.
        pending_bytes: Bytes of calls that wait for the writer.
        pending_limit_bytes: Limit of pending_bytes.
        queues: Number of queues.
        queues_limit: Limit of the number of queues.
        segments: Number of segments.
        disk_only_bytes: Payload bytes of records that left memory: they are read from the disk.
        places_bytes: Part of memory_bytes that says where on the disk these are.
        gathered_bytes: Part of disk_bytes that gathered files take, from which they are read.
    """

    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    disk_bytes: int = 0
    disk_written_bytes: int = 0
    disk_limit_bytes: int = 0
    pending_bytes: int = 0
    pending_limit_bytes: int = 0
    queues: int = 0
    queues_limit: int = 0
    segments: int = 0
    disk_only_bytes: int = 0
    places_bytes: int = 0
    gathered_bytes: int = 0


class PinResponse(Response, frozen=True):
    """The queue that keeps the oldest segment on the disk.

    Attributes:
        queue: Name of the queue.
        segments: How many segments it keeps: all from the oldest one up to, but not including, the current one.
        alone: How many of them no other queue needs.
    """

    queue: str
    segments: int
    alone: int


class SegmentsResponse(Response, frozen=True):
    """The segments on the disk.

    Attributes:
        first: Number of the oldest one.
        last: Number of the one being written.
        live: Those that hold retained records, oldest first, each with the number of queues that have some in it.
    """

    first: int = 0
    last: int = 0
    live: list[tuple[int, int]] = []


class StatsResponse(Struct):
    """Statistics of the service and its log.

    Attributes:
        state: State of the log.
        fraction: Fraction of the log that recovery has read; 1 afterwards.
        tails: Clients that wait for records.
        receiving_bytes: Request bodies, from their arrival to the response.
        requests: Requests so far.
        problems: Responses other than success so far, by status.
        receiving_limit_bytes: Limit of receiving_bytes.
        sending_bytes: Bytes held by responses being sent, with the truncated records that they keep.
        sending_limit_bytes: Limit of sending_bytes.
        dropped_readers: Clients dropped because they read their responses too slowly.
        version: Version of the package.
        name: Name of the service, for people: `serve --name`, otherwise its host name.
        uptime_seconds: How long the service has had the log open; 0 before.
        policy: The log's persist policy: always, never, or the seconds of an interval.
        usage: Resources in use.
        beyond_memory: What happens when memory is full: appends are refused ("refuse"), or the oldest records leave
            memory ("disk").
        segments: The segments on the disk.
        pending_records: Records that wait to be stored.
        pin: The queue that keeps the oldest segment; null if only the current segment is needed.
        counters: What the log has counted since it was opened.
        refused: Appends refused since then, by reason.
        damaged: Reads since then that found a file damaged: a "segment", or a "gathered" file, which was made again.
        append_seconds: From the call of an append to its return.
        commit_seconds: Writing and syncing a batch.
        sync_seconds: A sync of a segment; where one call writes and syncs, both.
        last_minute: The same three, of the last minute alone.
        under_way_seconds: How long the commit under way, or other work on the disk, has taken; 0 without one.
        waiting_seconds: How long the oldest call that is not finished has waited.
        workers: Workers of the application that holds the log, by state.
        failure: Why the log stores nothing more; null unless it has failed.
    """

    state: str
    fraction: float
    tails: int
    receiving_bytes: int
    requests: int
    problems: dict[str, int]
    receiving_limit_bytes: int = 0
    sending_bytes: int = 0
    sending_limit_bytes: int = 0
    dropped_readers: int = 0
    version: str = ""
    name: str = ""
    uptime_seconds: float = 0.0
    policy: str = ""
    usage: UsageResponse = UsageResponse()
    beyond_memory: str = "refuse"
    segments: SegmentsResponse = SegmentsResponse()
    pending_records: int = 0
    pin: PinResponse | None = None
    counters: dict[str, int] = {}
    refused: dict[str, int] = {}
    damaged: dict[str, int] = {}
    append_seconds: TimesResponse = TimesResponse()
    commit_seconds: TimesResponse = TimesResponse()
    sync_seconds: TimesResponse = TimesResponse()
    last_minute: RecentTimesResponse = RecentTimesResponse()
    under_way_seconds: float = 0.0
    waiting_seconds: float = 0.0
    workers: dict[str, int] = {}
    failure: str | None = None
