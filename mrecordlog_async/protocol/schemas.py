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


def says(meaning: str) -> Meta:
    """Return what a member means, for the document of the API."""
    return Meta(description=meaning)


class Request(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Base of all received bodies. A sender leaves out what has its default: an earlier service may not know it."""


class Response(Struct, frozen=True):
    """Base of all sent bodies."""


# Queues.


class QueueResponse(Response, frozen=True, gc=False):
    """One queue: its id, positions and sizes."""

    queue: Annotated[str, says("Name of the queue.")]
    id: Annotated[int, says("Id of this incarnation.")]
    first_position: Annotated[
        int, says("Lowest position that is not truncated; equals next_position if the queue is empty.")
    ]
    next_position: Annotated[int, says("Position of the next record.")]
    records: Annotated[int, says("Number of retained records.")]
    bytes: Annotated[int, says("Payload bytes of the retained records.")]
    first_segment: Annotated[
        int | None, says("Oldest segment that its records keep on the disk; null if it keeps none.")
    ] = None
    began: Annotated[int, says("The queue never had a record below this position; 0 if unknown.")] = 0
    opened_next: Annotated[int, says("Its next_position when the log was opened; 0 for a queue created since.")] = 0
    sealed: Annotated[bool, says("The queue accepts no more records.")] = False
    oldest_time: Annotated[
        datetime | None, says("When its oldest record was stored, in UTC, to 0.1 s; null if it is empty.")
    ] = None


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
    """

    nonce: Annotated[str, says("The newest opening, as in `openings` of `/v1/log`.")]
    batch: Annotated[int, says("Number of the last batch that changed something and was acknowledged.")]


class QueuesResponse(Response, frozen=True):
    """All queues, or a page of them, sorted by name. Each is shown as it is when its part of the response is built.

    A reader that stores positions stores `log` and `opening` with them: if `opening` has changed, a position above
    `opened_next` was lost, because the log went back.
    """

    queues: Annotated[list[QueueResponse], says("The queues.")]
    log: Annotated[str, says("Identifies the log, even after it was moved or restored.")] = ""
    opening: Annotated[str, says("Identifies this opening of the log; it is new whenever the log is opened.")] = ""
    next: Annotated[
        str | None,
        says("If a page was requested and more queues follow, the `after` of the next page; otherwise null."),
    ] = None
    at: Annotated[
        AtResponse | None,
        says("State of the log when the response ended; positions may be earlier. Null if nothing was ever stored."),
    ] = None
    changed_since: Annotated[
        str | None, says("The request's, if only the queues that have changed since then are listed; otherwise absent.")
    ] = None
    deleted: Annotated[list[str], says("With `changed_since`, the queues of that list that were deleted since.")] = []


class CreateResponse(Response, frozen=True):
    """Result of creating a queue."""

    queue: Annotated[str, says("Name of the queue.")]
    created: Annotated[bool, says("False if the queue existed and `exist_ok` was given.")]


class AppendRequest(Request, frozen=True):
    """Records to append."""

    records: Annotated[list[bytes], says("The payloads, each as base64.")]


class AppendResponse(Response, frozen=True):
    """Result of an append."""

    position: Annotated[
        int | None, says("Position of the last record, even for a repeat; null if the request had no records.")
    ]
    records: Annotated[int, says("Number of records in the request.")]
    duplicate: Annotated[bool, says("True if the records were already stored at these positions.")]
    acknowledged: Annotated[
        bool | None,
        says(
            "With `wait_consumer`: True if the consumer has acknowledged the records, False if it has not, or if "
            "that is not known. The records are stored in both cases. Otherwise left out."
        ),
    ] = None


class RecordResponse(Response, frozen=True):
    """A record: one line of a read as NDJSON, or the data of an event."""

    position: Annotated[int, says("Position of the record.")]
    time: Annotated[str, says("When it was stored, in UTC, to 0.1 s.")]
    payload: Annotated[bytes, says("The payload as base64.")]


class PositionResponse(Response, frozen=True):
    """First position of a queue whose record was stored at a time or later."""

    queue: Annotated[str, says("Name of the queue.")]
    id: Annotated[int, says("Id of this incarnation.")]
    position: Annotated[int, says("Position of the first of them; the next position if every record is older.")]


class TextRecordResponse(Response, frozen=True):
    """A record with `?as=text`."""

    position: Annotated[int, says("Position of the record.")]
    time: Annotated[str, says("When it was stored, in UTC, to 0.1 s.")]
    payload: Annotated[str, says("The payload as text; U+FFFD replaces what is not UTF-8.")]


class TruncateRequest(Request, frozen=True):
    """Drop the records of one queue up to a position."""

    position: Annotated[Position, says("Last position to drop.")]
    id: Annotated[QueueId | None, says("If given, truncate only this incarnation of the queue.")] = None
    past_consumers: Annotated[bool, says("Truncate even what a consumer has not acknowledged.")] = False


class TruncateResponse(Response, frozen=True):
    """Result of a truncate."""

    queue: Annotated[str, says("Name of the queue.")]
    dropped: Annotated[int, says("Number of records dropped.")]
    first_position: Annotated[int, says("Lowest position that is not truncated.")]
    next_position: Annotated[int, says("Position of the next record.")]


# Errors and health.


class Problem(Response, frozen=True, omit_defaults=True):
    """An error (RFC 9457). The facts of an error are further members of the document."""

    type: Annotated[str, says("The code as a URN.")]
    title: Annotated[str, says("Phrase of the status.")]
    status: Annotated[int, says("HTTP status.")]
    code: Annotated[str, says("The kind of error, for programs.")]
    detail: Annotated[str, says("What happened, for people.")]


class HealthResponse(Response, frozen=True):
    """The process is alive."""

    status: Annotated[str, says('Always "alive".')]


class ReadyResponse(Response, frozen=True):
    """State of the service: whether it accepts records."""

    state: Annotated[str, says("State of the log.")]
    fraction: Annotated[float, says("Fraction of the log that recovery has read; 1 afterwards.")]
    cause: Annotated[str | None, says("Why the service is not ready; null if it is.")] = None


# Numbers.


class TimesResponse(Response, frozen=True):
    """Durations in seconds."""

    count: Annotated[int, says("How many were measured.")] = 0
    sum: Annotated[float, says("Their sum.")] = 0.0
    p50: Annotated[
        float | None,
        says("Upper bound of the histogram bucket that holds the median; null if it is above the last bound, 52 s."),
    ] = 0.0
    p90: Annotated[float | None, says("Same for the 90 % quantile.")] = 0.0
    p99: Annotated[float | None, says("Same for the 99 % quantile.")] = 0.0


class RecentTimesResponse(Response, frozen=True):
    """Times of the last minute."""

    append_seconds: Annotated[TimesResponse, says("From the call of an append to its return.")] = TimesResponse()
    commit_seconds: Annotated[TimesResponse, says("Writing and syncing a batch.")] = TimesResponse()
    sync_seconds: Annotated[TimesResponse, says("A sync of a segment.")] = TimesResponse()


class UsageResponse(Response, frozen=True):
    """Resources in use and their limits."""

    memory_bytes: Annotated[int, says("Memory of retained records.")] = 0
    memory_limit_bytes: Annotated[int, says("Limit of memory_bytes.")] = 0
    disk_bytes: Annotated[int, says("Disk space of all files of the log.")] = 0
    disk_written_bytes: Annotated[int, says("Part of disk_bytes that holds data.")] = 0
    disk_limit_bytes: Annotated[int, says("Limit of disk_bytes.")] = 0
    pending_bytes: Annotated[int, says("Bytes of calls that wait for the writer.")] = 0
    pending_limit_bytes: Annotated[int, says("Limit of pending_bytes.")] = 0
    queues: Annotated[int, says("Number of queues.")] = 0
    queues_limit: Annotated[int, says("Limit of the number of queues.")] = 0
    segments: Annotated[int, says("Number of segments.")] = 0
    disk_only_bytes: Annotated[int, says("Payload bytes of records that left memory: they are read from the disk.")] = 0
    places_bytes: Annotated[int, says("Part of memory_bytes that says where on the disk these are.")] = 0
    gathered_bytes: Annotated[int, says("Part of disk_bytes that gathered files take, from which they are read.")] = 0


class PinResponse(Response, frozen=True):
    """The queue that keeps the oldest segment on the disk."""

    queue: Annotated[str, says("Name of the queue.")]
    segments: Annotated[
        int, says("How many segments it keeps: all from the oldest one up to, but not including, the current one.")
    ]
    alone: Annotated[int, says("How many of them no other queue needs.")]


class SegmentsResponse(Response, frozen=True):
    """The segments on the disk."""

    first: Annotated[int, says("Number of the oldest one.")] = 0
    last: Annotated[int, says("Number of the one being written.")] = 0
    live: Annotated[
        list[tuple[int, int]],
        says("Those that hold retained records, oldest first, each with the number of queues that have some in it."),
    ] = []


class StatsResponse(Struct):
    """Statistics of the service and its log."""

    state: Annotated[str, says("State of the log.")]
    fraction: Annotated[float, says("Fraction of the log that recovery has read; 1 afterwards.")]
    tails: Annotated[int, says("Clients that wait for records.")]
    receiving_bytes: Annotated[int, says("Request bodies, from their arrival to the response.")]
    requests: Annotated[int, says("Requests so far.")]
    problems: Annotated[dict[str, int], says("Responses other than success so far, by status.")]
    receiving_limit_bytes: Annotated[int, says("Limit of receiving_bytes.")] = 0
    sending_bytes: Annotated[
        int, says("Bytes held by responses being sent, with the truncated records that they keep.")
    ] = 0
    sending_limit_bytes: Annotated[int, says("Limit of sending_bytes.")] = 0
    dropped_readers: Annotated[int, says("Clients dropped because they read their responses too slowly.")] = 0
    version: Annotated[str, says("Version of the package.")] = ""
    name: Annotated[str, says("Name of the service, for people: `serve --name`, otherwise its host name.")] = ""
    uptime_seconds: Annotated[float, says("How long the service has had the log open; 0 before.")] = 0.0
    policy: Annotated[str, says("The log's persist policy: always, never, or the seconds of an interval.")] = ""
    usage: Annotated[UsageResponse, says("Resources in use.")] = UsageResponse()
    beyond_memory: Annotated[
        str,
        says(
            'What happens when memory is full: appends are refused ("refuse"), or the oldest records leave memory '
            '("disk").'
        ),
    ] = "refuse"
    segments: Annotated[SegmentsResponse, says("The segments on the disk.")] = SegmentsResponse()
    pending_records: Annotated[int, says("Records that wait to be stored.")] = 0
    pin: Annotated[
        PinResponse | None, says("The queue that keeps the oldest segment; null if only the current segment is needed.")
    ] = None
    counters: Annotated[dict[str, int], says("What the log has counted since it was opened.")] = {}
    refused: Annotated[dict[str, int], says("Appends refused since then, by reason.")] = {}
    damaged: Annotated[
        dict[str, int],
        says('Reads since then that found a file damaged: a "segment", or a "gathered" file, which was made again.'),
    ] = {}
    append_seconds: Annotated[TimesResponse, says("From the call of an append to its return.")] = TimesResponse()
    commit_seconds: Annotated[TimesResponse, says("Writing and syncing a batch.")] = TimesResponse()
    sync_seconds: Annotated[TimesResponse, says("A sync of a segment; where one call writes and syncs, both.")] = (
        TimesResponse()
    )
    last_minute: Annotated[RecentTimesResponse, says("The same three, of the last minute alone.")] = (
        RecentTimesResponse()
    )
    under_way_seconds: Annotated[
        float, says("How long the commit under way, or other work on the disk, has taken; 0 without one.")
    ] = 0.0
    waiting_seconds: Annotated[float, says("How long the oldest call that is not finished has waited.")] = 0.0
    workers: Annotated[dict[str, int], says("Workers of the application that holds the log, by state.")] = {}
    failure: Annotated[str | None, says("Why the log stores nothing more; null unless it has failed.")] = None
