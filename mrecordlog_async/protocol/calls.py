"""Every operation of the API on one queue or one consumer, once: its request, its response, its errors. Pure.

A client sends a `ServiceCall` and knows nothing else of the operation. What may be done after a lost response is in
`repeat`, and what an error means that ends the call is in `after_error`. The operations on many queues are in
`bulk_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import ceil
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from mrecordlog_async.errors import PositionInPastError, QueueNotFoundError, RecordLogError
from mrecordlog_async.model import POSITION_MAX, ConsumerSummary, QueueSummary, Run, Times, check_position
from mrecordlog_async.names import check_consumer_name, check_name
from mrecordlog_async.options import QUEUE_OPTIONS, QueueOptions, check_type
from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.protocol.attempts import OutcomeUnknownError, Repeat
from mrecordlog_async.protocol.consumer_schemas import (
    AcknowledgedResponse,
    AcknowledgeRequest,
    AttachRequest,
    AttachResponse,
    ConsumerCreateRequest,
    ConsumerCreateResponse,
    ConsumerPositionResponse,
    ConsumerResponse,
    ConsumersResponse,
    SealRequest,
    SealResponse,
    SeekRequest,
)
from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.protocol.problems import error_in
from mrecordlog_async.protocol.responses import Reply, ServiceError, decoded
from mrecordlog_async.protocol.schemas import (
    AppendResponse,
    PositionResponse,
    QueueResponse,
    QueuesResponse,
    StatsResponse,
    TruncateRequest,
    TruncateResponse,
    summary_of,
)

T = TypeVar("T")

Payload = bytes | bytearray | memoryview
Order = Literal["bytes", "records", "segment", "age"]

JSON = "application/json"
OCTET_STREAM = "application/octet-stream"

QUEUES_AT_ONCE = 1_000
"""Queues or ranges that one request names; services limit them."""

PAGE_BYTES = 8 * 1024 * 1024

TWICE = "another producer wrote there, or a proxy sent the request twice"


def _raised(error: RecordLogError) -> NoReturn:
    raise error


class ServiceCall(NamedTuple, Generic[T]):
    """One request, and what its response means."""

    method: str  # HTTP method
    path: str  # path below the URL of the service, percent-encoded
    # Returns the result in a response with a status below 300; raises ServiceError if it has none
    read: Callable[[Reply], T]
    query: Mapping[str, str] = {}  # query parameters, not encoded
    body: bytes | None = None  # body of the request
    content_type: str | None = None  # content type of *body*
    accept: str | None = None  # content type to request
    repeat: Repeat = Repeat.FREELY  # what is allowed after a lost response
    wait_seconds: int = 0  # how long the service may wait for records before it responds (a long poll)
    more: Mapping[str, str] = {}  # further headers
    lost: str = ""  # why an earlier attempt may have been carried out; "" for none
    # When the caller gets TimeoutError, by the clock of the transport
    end: float | None = None
    # Returns the result if the error that ends the call settles it; otherwise raises what it means
    after_error: Callable[[RecordLogError], T] = _raised

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say of what type the body is, and which type to respond with; and `more`."""
        given = {"Content-Type": self.content_type, "Accept": self.accept, **self.more}
        return {name: text for name, text in given.items() if text is not None}

    @property
    def target(self) -> str:
        """The path with the query, percent-encoded."""
        return f"{self.path}?{urlencode(self.query, quote_via=quote, safe='')}" if self.query else self.path

    def until(self, end: float | None) -> ServiceCall[T]:
        """Return the same call with another `end`."""
        return self if end is None else self._replace(end=end)

    def without_waiting(self) -> ServiceCall[T]:
        """Return the same call for a service that has no place to wait for records."""
        return self._replace(
            query={name: value for name, value in self.query.items() if name != "wait"}, wait_seconds=0
        )


class Page(NamedTuple):
    """Runs of one queue. next_position: where the next page starts. queue_id: the incarnation that was read.

    complete: the queue is sealed, and there are no records after these. times: when the records were stored.
    """

    runs: list[Run]
    next_position: int
    queue_id: int
    complete: bool = False
    times: Times = Times.none()


class PageRequest(NamedTuple):
    """The page to read."""

    position: int  # where it begins
    records: int | None = None  # at most this many records; None for no limit
    max_bytes: int = PAGE_BYTES  # at most this many payload bytes, but at least one record
    wait_seconds: int = 0  # how long to wait for the first record
    stop: int | None = None  # position after the last one wanted; None for the end of the queue
    end: float | None = None  # see `ServiceCall`

    def sendable(self) -> PageRequest:
        """Return the same request with limits that are numbers for the service."""
        records = None if self.records is None else min(self.records, POSITION_MAX)
        return self._replace(records=records, max_bytes=min(self.max_bytes, POSITION_MAX))


# The service and its log.


def log_info() -> ServiceCall[LogResponse]:
    """Read which log the service has."""
    return ServiceCall("GET", "/v1/log", partial(decoded, kind=LogResponse))


def stats() -> ServiceCall[StatsResponse]:
    """Read the statistics of the service and its log."""
    return ServiceCall("GET", "/v1/stats", partial(decoded, kind=StatsResponse))


def ready() -> ServiceCall[None]:
    """Succeed if the service stores records."""
    return ServiceCall("GET", "/readyz", _nothing)


# Queues.


def create_queue(queue: str, *, exist_ok: bool, options: QueueOptions | None) -> ServiceCall[bool]:
    """Create a queue; the result is whether it was created."""
    body = None if options is None else _encoded_options(options)
    return _created(path_of(queue), body, lambda reply: reply.status == 201, exist_ok=exist_ok)


def delete_queue(queue: str, *, queue_id: int | None, past_consumers: bool) -> ServiceCall[None]:
    """Delete a queue. Only a request for one incarnation may be repeated: it spares a queue that was created since."""
    query = {"past_consumers": "1"} if past_consumers else {}
    if queue_id is None:
        return ServiceCall("DELETE", path_of(queue), _nothing, query, repeat=Repeat.NEVER)
    query["id"] = str(_id(queue, queue_id))

    def after_error(error: RecordLogError) -> None:
        # After a lost response: the queue of this id does not exist, which is what was asked for.
        if not (isinstance(error, OutcomeUnknownError) and isinstance(error.__cause__, QueueNotFoundError)):
            raise error

    return ServiceCall("DELETE", path_of(queue), _nothing, query, repeat=Repeat.RECOGNIZED, after_error=after_error)


def queue_summary(queue: str) -> ServiceCall[QueueSummary]:
    """Read the positions and sizes of one queue."""
    return ServiceCall("GET", path_of(queue), lambda reply: summary_of(decoded(reply, QueueResponse)))


def summary(
    *, order: Order | None = None, limit: int | None = None, prefix: str | None = None
) -> ServiceCall[dict[str, QueueSummary]]:
    """Read positions and sizes of all queues, of the first ones in an order, or of those that begin with *prefix*."""

    def read(reply: Reply) -> dict[str, QueueSummary]:
        return {one.queue: summary_of(one) for one in decoded(reply, QueuesResponse).queues}

    given = {"order": order, "limit": limit, "prefix": prefix}
    return ServiceCall("GET", "/v1/queues", read, _texts(given))


def queue_options(queue: str) -> ServiceCall[QueueOptions]:
    """Read the options of one queue."""
    return ServiceCall("GET", path_of(queue, "options"), partial(decoded, kind=QueueOptions))


def configure_queue(queue: str, options: QueueOptions) -> ServiceCall[None]:
    """Replace the options of one queue."""
    return ServiceCall("PUT", path_of(queue, "options"), _nothing, {}, _encoded_options(options), JSON)


def seal_queue(queue: str, *, queue_id: int | None) -> ServiceCall[int]:
    """Seal a queue; the result is its next position."""
    return posted(
        path_of(queue, "seal"),
        SealRequest(_id(queue, queue_id)),
        lambda reply: decoded(reply, SealResponse).next_position,
        repeat=Repeat.RECOGNIZED,
    )


def truncate(queue: str, position: int, *, queue_id: int | None, past_consumers: bool) -> ServiceCall[int]:
    """Drop records up to a position; the result is how many."""
    request = TruncateRequest(check_position(position), _id(queue, queue_id), past_consumers)
    return posted(path_of(queue, "truncate"), request, lambda reply: decoded(reply, TruncateResponse).dropped)


# Appends.


def append(queue: str, position: int | None, records: Sequence[bytes], *, create: bool) -> ServiceCall[AppendResponse]:
    """Append *records*, all or none. With a position the service recognizes a repeat."""
    read = partial(_appended, position=position, count=len(records))
    return _append(queue, position, _body_of(queue, records), read, create=create)


def append_runs(queue: str, position: int | None, runs: Sequence[Run], *, create: bool) -> ServiceCall[AppendResponse]:
    """Append consecutive *runs*, all or none."""
    return _append(queue, position, _as_runs(queue, runs), partial(decoded, kind=AppendResponse), create=create)


def append_new(queue: str, position: int, records: Sequence[bytes], *, lost: str = "") -> ServiceCall[int]:
    """Append *records* for a queue with this one writer; the result is the last position.

    Records that are already stored there count as a repeat only if an earlier response was lost. Otherwise the outcome
    is unknown: another producer stored them, or a proxy sent the request twice, and no response shows which.

    lost: why an earlier call for these records may have been carried out; "" if there was none.
    """
    action = f"POST {path_of(queue, 'records')}"
    count = len(records)

    def read(reply: Reply) -> int:
        if _appended(reply, position=position, count=count).duplicate and not reply.repeated:
            reason = f"exactly these records are already stored at position {position}: {TWICE}"
            raise OutcomeUnknownError(action, reason)
        return position + count - 1

    def after_error(error: RecordLogError) -> NoReturn:
        if isinstance(error, PositionInPastError) and error.outcome_unknown:
            raise OutcomeUnknownError(action, str(error)) from error
        raise error

    return _append(queue, position, _body_of(queue, records), read, after_error=after_error)._replace(lost=lost)


def _append(
    queue: str,
    position: int | None,
    records: tuple[bytes, str],
    read: Callable[[Reply], T],
    *,
    create: bool = False,
    after_error: Callable[[RecordLogError], T] = _raised,
) -> ServiceCall[T]:
    """Return the request. records: its body and content type."""
    query = _texts({"position": position, "create": 1 if create else None})
    repeat = Repeat.NEVER if position is None else Repeat.RECOGNIZED
    return ServiceCall("POST", path_of(queue, "records"), read, query, *records, repeat=repeat, after_error=after_error)


def _body_of(queue: str, records: Sequence[bytes]) -> tuple[bytes, str]:
    """Return *records* as a body, and its content type; a single record is the body itself."""
    if len(records) == 1:
        return records[0], OCTET_STREAM
    return _as_runs(queue, [Run.of(0, records)] if records else [])


def _as_runs(queue: str, runs: Sequence[Run]) -> tuple[bytes, str]:
    check_name(queue)  # before it is encoded
    return b"".join(wire.encode([wire.QueueRuns(queue, 0, runs)])), wire.CONTENT_TYPE


def _appended(reply: Reply, *, position: int | None, count: int) -> AppendResponse:
    response = decoded(reply, AppendResponse)
    # A proxy may mix up responses; a response to another request acknowledges nothing.
    if response.records != count or (position is not None and count and response.position != position + count - 1):
        got = f"{response.records} records up to position {response.position}"
        sent = f"{count} at position {position}" if position is not None else f"{count}"
        raise ServiceError(reply.status, "unreadable", f"the response reports {got}, but the request had {sent}")
    return response


# Reads.


def position_at(queue: str, time: datetime) -> ServiceCall[int]:
    """Read the position of the first retained record that was stored at *time* or later."""
    if not isinstance(time, datetime):
        raise TypeError(f"a time must be a datetime with a time zone, not {type(time).__name__}")
    if time.utcoffset() is None:
        raise ValueError(f"time {time} has no time zone: use datetime.now(UTC) or moment.astimezone()")
    query = {"time": time.astimezone(UTC).isoformat()}
    return ServiceCall(
        "GET", path_of(queue, "position"), lambda reply: decoded(reply, PositionResponse).position, query
    )


def read_page(queue: str, request: PageRequest) -> ServiceCall[Page]:
    """Read a page. Refused with the code "truncated" if the records begin later: see `first_retained`."""
    request = request.sendable()
    return _read(path_of(queue, "records"), request, {"stop": request.stop, "limit": request.records})


def first_retained(error: ServiceError, position: int) -> int:
    """Return where a page can be read that was refused because *position* is truncated; raise *error* otherwise."""
    first = error.problem.get("first_position")
    # Each refusal names a later position, so reading again ends when truncates pause.
    if error.code != "truncated" or type(first) is not int or first <= position:
        raise error
    return first


def wait_for_records(queue: str, position: int, wait_seconds: int) -> ServiceCall[None]:
    """Wait for a record at *position* or later; or until its position is truncated."""

    def after_error(error: RecordLogError) -> None:
        if not isinstance(error, ServiceError) or error.code != "truncated":
            raise error

    query = {"start": str(position), "stop": str(position), "wait": str(wait_seconds)}  # the record is not sent
    return ServiceCall(
        "GET",
        path_of(queue, "records"),
        _nothing,
        query,
        accept=wire.CONTENT_TYPE,
        wait_seconds=wait_seconds,
        after_error=after_error,
    )


def _read(path: str, request: PageRequest, more: Mapping[str, Any]) -> ServiceCall[Page]:
    """Return the request for a page. more: query parameters; None is left out."""
    position, _, max_bytes, wait_seconds, _, end = request
    query = _texts({"start": position, "max_bytes": max_bytes, **more, "wait": wait_seconds or None})
    return ServiceCall("GET", path, page_of, query, accept=wire.CONTENT_TYPE, wait_seconds=wait_seconds, end=end)


def page_of(reply: Reply) -> Page:
    """Return the page in *reply*; ServiceError if the service did not write it."""
    try:
        blocks = list(wire_decoder.decode(reply.body))
        times = blocks[0].times if blocks else Times.none()  # of all blocks: they are of one queue
        runs = [block.run() for block in blocks]
        position, queue_id = int(reply.headers["X-Next-Position"]), int(reply.headers["X-Queue-Id"])
        return Page(runs, position, queue_id, "X-Queue-Complete" in reply.headers, times)
    except (ValueError, KeyError, TypeError) as error:  # a WireError is a ValueError; a header may be None
        raise ServiceError(reply.status, "unreadable", f"not a response of this service: {error}") from None


# Consumers.


def create_consumer(queue: str, consumer: str, *, start: int | None, exist_ok: bool) -> ServiceCall[bool]:
    """Create a consumer, or the rule of a pattern; the result is whether it was created."""
    body = msgspec.json.encode(ConsumerCreateRequest(start))
    read: Callable[[Reply], bool] = lambda reply: decoded(reply, ConsumerCreateResponse).created  # noqa: E731
    return _created(consumer_path(queue, consumer), body, read, exist_ok=exist_ok)


def delete_consumer(queue: str, consumer: str) -> ServiceCall[None]:
    """Delete a consumer, or the rule of a pattern."""
    return ServiceCall("DELETE", consumer_path(queue, consumer), _nothing, repeat=Repeat.NEVER)


def consumers(queue: str) -> ServiceCall[dict[str, ConsumerSummary]]:
    """Read where the consumers of one queue are, by name."""

    def read(reply: Reply) -> dict[str, ConsumerSummary]:
        return {one.consumer: consumer_summary_of(one) for one in decoded(reply, ConsumersResponse).consumers}

    return ServiceCall("GET", path_of(queue, "consumers"), read)


def all_consumers(after: str | None = None, *, limit: int = QUEUES_AT_ONCE) -> ServiceCall[ConsumersResponse]:
    """Read the consumers of the next *limit* queues, and on the first page the rules."""
    query = _texts({"limit": limit, "after": after})
    return ServiceCall("GET", "/v1/consumers", partial(decoded, kind=ConsumersResponse), query)


def attach(queue: str, consumer: str, request: AttachRequest) -> ServiceCall[AttachResponse]:
    """Become the holder of a consumer. Sent again, it fences off the holder of the first attempt, if there was one."""
    return posted(f"{consumer_path(queue, consumer)}/attach", request, partial(decoded, kind=AttachResponse))


def read_as_holder(holder: AttachResponse, request: PageRequest) -> ServiceCall[Page]:
    """Read a page as the holder of a consumer."""
    request = request.sendable()
    path = f"{consumer_path(holder.queue, holder.consumer)}/records"
    call = _read(path, request, {"epoch": holder.epoch, "max_records": request.records})
    return call._replace(after_error=partial(_raise_of_position, holder.queue, request.position))


def acknowledge(holder: AttachResponse, position: int) -> ServiceCall[int]:
    """Acknowledge everything up to *position*; the result is the consumer's position."""
    return _moved(
        f"{consumer_path(holder.queue, holder.consumer)}/acknowledge",
        AcknowledgeRequest(check_position(position), holder.epoch, holder.id),
        holder.queue,
        position,
    )


def seek(queue: str, consumer: str, position: int, holder: AttachResponse | None) -> ServiceCall[int]:
    """Have a consumer continue at *position*, as its holder or as an operator; the result is the position."""
    request = SeekRequest(position, holder.epoch, holder.id) if holder is not None else SeekRequest(position)
    return _moved(f"{consumer_path(queue, consumer)}/seek", request, queue, position)


def wait_acknowledged(queue: str, consumer: str, position: int, wait_seconds: float) -> ServiceCall[bool]:
    """Wait until a consumer has acknowledged a position; the result is whether it has."""
    query = {"position": str(check_position(position)), "wait": f"{wait_seconds:.3f}"}
    return ServiceCall(
        "GET",
        f"{consumer_path(queue, consumer)}/acknowledged",
        lambda reply: decoded(reply, AcknowledgedResponse).acknowledged,
        query,
        wait_seconds=ceil(wait_seconds),
    )


def _moved(path: str, request: msgspec.Struct, queue: str, position: int) -> ServiceCall[int]:
    read: Callable[[Reply], int] = lambda reply: decoded(reply, ConsumerPositionResponse).position  # noqa: E731
    return posted(path, request, read, after_error=partial(_raise_of_position, queue, position))


def _raise_of_position(queue: str, position: int, error: RecordLogError) -> NoReturn:
    """Raise what the log raises for a position that is not there."""
    if isinstance(error, ServiceError):
        raise error_in(error.problem, queue=queue, position=position) or error from None
    raise error


# Parts of requests and responses.


def path_of(queue: str, *more: str) -> str:
    """Return the path of *queue*, followed by *more*. Raises QueueNameError for what cannot be the name of a queue."""
    check_name(queue)  # a path without the name, say, would be another one
    return "/".join(("/v1/queues", _segment(queue), *more))


def consumer_path(queue: str, consumer: str) -> str:
    """Return the path of *consumer* of *queue*. Raises as `path_of`, and ConsumerNameError."""
    check_consumer_name(consumer)
    return path_of(queue, "consumers", _segment(consumer))


def _segment(name: str) -> str:
    text = quote(name, safe="")
    return text.replace(".", "%2E") if text in (".", "..") else text  # or the path would be normalized


def consumer_summary_of(one: ConsumerResponse) -> ConsumerSummary:
    """Return where one consumer is."""
    return ConsumerSummary(**msgspec.structs.asdict(one))


def _created(path: str, body: bytes | None, read: Callable[[Reply], bool], *, exist_ok: bool) -> ServiceCall[bool]:
    """Return a PUT that creates something; the result is whether it did."""
    query, repeat = ({"exist_ok": "1"}, Repeat.FREELY) if exist_ok else ({}, Repeat.NEVER)
    return ServiceCall("PUT", path, read, query, body, None if body is None else JSON, repeat=repeat)


def posted(
    path: str,
    request: msgspec.Struct,
    read: Callable[[Reply], T],
    *,
    repeat: Repeat = Repeat.FREELY,
    after_error: Callable[[RecordLogError], T] = _raised,
) -> ServiceCall[T]:
    """Return a POST of *request*, as JSON."""
    body = msgspec.json.encode(request)
    return ServiceCall("POST", path, read, {}, body, JSON, repeat=repeat, after_error=after_error)


def _id(queue: str, queue_id: int | None) -> int | None:
    """Return *queue_id*; raise QueueNotFoundError for what no queue has as its id. JSON has NaN as null: any queue."""
    if queue_id is not None and not (isinstance(queue_id, int) and 0 <= queue_id <= POSITION_MAX):
        raise QueueNotFoundError(queue)
    return queue_id


def _encoded_options(options: QueueOptions) -> bytes:
    """Return *options* as a JSON body; raise TypeError for anything else.

    Those with their defaults are left out, so that a service that does not know the newest options takes the others.
    """
    check_type("options", options, QueueOptions)
    default = QueueOptions()
    given = {name: value for name in QUEUE_OPTIONS if (value := getattr(options, name)) != getattr(default, name)}
    return msgspec.json.encode(given)


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the query parameters that are given."""
    return {name: str(value) for name, value in given.items() if value is not None}


def _nothing(_: Reply) -> None:
    """Return nothing: the status says all."""
