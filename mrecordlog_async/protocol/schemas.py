"""Every JSON body that the service receives and returns, as a type: one place that encodes, checks and documents them.

Those of the routes for many queues are in `bulk_schemas`.

Ids are queue incarnations: a queue that was deleted and created again has another one, and a request with the id of the
old one is refused instead of touching the new. Positions are inclusive in truncates; `stop` is excluded everywhere.
Unknown members are errors (400): a misspelt limit must not be ignored.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Position = Annotated[int, Meta(ge=0, le=2**63 - 2)]
"""The position of a record."""
NextPosition = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A bound of a range: it may be the position after the last possible one."""
QueueId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
QueueName = Annotated[str, Meta(max_length=65_535)]
"""A queue in a request for many; responses repeat it. May be longer than the service's own names."""
Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Request(Struct, forbid_unknown_fields=True, frozen=True):
    """The root of what is received."""


class Response(Struct, frozen=True):
    """The root of what is sent."""


# Queues.


class QueueResponse(Response, frozen=True, gc=False):
    """One queue. first_position: lowest not truncated. next_position: what the next record gets; equal when empty.

    first_segment: the oldest segment that its records keep on the disk, null where it keeps none. began: no record
    ever stood below this position (0: not known). opened_next: its next_position when the log was opened; 0 for a
    queue created since.
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


class QueuesResponse(Response, frozen=True):
    """All queues, or a page of them, sorted by name. Each is shown as it is when its part of the response is made.

    next: where a page was asked for and more follow, the name that the next page comes after.
    log: names the log, also after it moved or was restored. opening: another one whenever the log is opened. A reader
    that keeps positions keeps both with them: under another opening, a position above opened_next went back.
    """

    queues: list[QueueResponse]
    log: str = ""
    opening: str = ""
    next: str | None = None


class CreateResponse(Response, frozen=True):
    """created: False where the queue was there and that was allowed."""

    queue: str
    created: bool


class AppendRequest(Request, frozen=True):
    """Records as base64."""

    records: list[bytes]


class AppendResponse(Response, frozen=True):
    """position: of the last record stored, also when it was a repeat; null when there were none to store."""

    position: int | None
    records: int
    duplicate: bool


class RecordResponse(Response, frozen=True):
    """A line of a read as NDJSON; the payload is base64."""

    position: int
    payload: bytes


class TextRecordResponse(Response, frozen=True):
    """The same with `?as=text`: UTF-8, with U+FFFD for what is not."""

    position: int
    payload: str


class TruncateRequest(Request, frozen=True):
    """Drop up to and including *position*; of this incarnation only, where *id* is given."""

    position: Position
    id: QueueId | None = None


class TruncateResponse(Response, frozen=True):
    """dropped: how many records were dropped."""

    queue: str
    dropped: int
    first_position: int
    next_position: int


# Errors and health.


class Problem(Response, frozen=True, omit_defaults=True):
    """An error (RFC 9457). `code` is for programs; the facts that belong to it are members of their own."""

    type: str
    title: str
    status: int
    code: str
    detail: str


class HealthResponse(Response, frozen=True):
    """The process is alive."""

    status: str


class ReadyResponse(Response, frozen=True):
    """state: of the log. fraction: how much of it is read while it recovers, 1 afterwards. cause: why not ready."""

    state: str
    fraction: float
    cause: str | None = None


# Numbers.


class TimesResponse(Response, frozen=True):
    """Durations: how many, their sum, and the upper bounds of the buckets that hold the quantiles."""

    count: int = 0
    sum: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


class UsageResponse(Response, frozen=True):
    """What is in use, next to its limits."""

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


class PinResponse(Response, frozen=True):
    """The queue that keeps the oldest segment on the disk.

    segments: how many, from that one up to the one being written. alone: how many of them no other queue needs.
    """

    queue: str
    segments: int
    alone: int


class StatsResponse(Struct):
    """Numbers of the service and its log. counters: everything counted since it was opened.

    receiving_bytes: request bodies, until their responses. sending_bytes: what responses being sent hold, and truncated
    records that they keep. dropped_readers: clients that read their responses too slowly. pending_records: how many
    wait to be stored. pin: null where no queue keeps an older segment than the current one.
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
    usage: UsageResponse = UsageResponse()
    pending_records: int = 0
    pin: PinResponse | None = None
    counters: dict[str, int] = {}
    append_seconds: TimesResponse = TimesResponse()
    commit_seconds: TimesResponse = TimesResponse()
    sync_seconds: TimesResponse = TimesResponse()
