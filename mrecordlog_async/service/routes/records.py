"""Records of one queue: append and read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from mrecordlog_async.errors import QueueNotFoundError, RecordLogError
from mrecordlog_async.memory.cutting import take_head
from mrecordlog_async.memory.runs import runs_of
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.names import check_consumer_name
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.problems import ProblemError, bad_request
from mrecordlog_async.protocol.schemas import AppendRequest, AppendResponse, PositionResponse, RecordResponse
from mrecordlog_async.service.formats import format_of
from mrecordlog_async.service.http import (
    NDJSON,
    OCTET_STREAM,
    PIECE_BYTES,
    TEXT,
    HttpRequest,
    HttpResponse,
    Stream,
)
from mrecordlog_async.service.reading.parameters import (
    POSITION_LIMIT,
    SINCE_PARAMETER,
    as_text,
    check_query,
    flag,
    moment,
    number,
    queue_of,
    seconds,
    start_of,
)
from mrecordlog_async.service.reading.queue_checks import check_start
from mrecordlog_async.service.routes.route import Route, encode_json, json_response
from mrecordlog_async.service.sending import HELD_BYTES
from mrecordlog_async.service.service import READS, Service, WakeReason

READ_PARAMETERS = (
    ("start", "first position to read (default: the first retained one)"),
    SINCE_PARAMETER,
    ("stop", "position after the last one to read"),
    ("limit", "at most this many records"),
    ("max_bytes", "at most about this many payload bytes (default 8 MiB), but at least one record"),
    ("wait", "seconds to wait if there is no record yet (long poll); at most 60"),
    ("as", "text: payloads as UTF-8 text instead of base64"),
)
_READ_NAMES = frozenset(name for name, _ in READ_PARAMETERS)

APPEND_PARAMETERS = (
    ("position", "position of the first record; if they are sent again, the same records are stored once"),
    ("create", "1: create the queue if it does not exist"),
    ("wait_consumer", "respond once this consumer has acknowledged the records, or once `wait` is over"),
    ("wait", "seconds to wait for that; at most 60"),
    ("json", "records: the body is a JSON value; each element of an array is a record, stored as the bytes that came"),
)
_APPEND_NAMES = frozenset(name for name, _ in APPEND_PARAMETERS)

READ_BYTES = 8 * 1024 * 1024
"""Default payload bytes of a response: enough to be fast, few enough to encode without delaying other requests."""

READ_AT_ONCE_BYTES = 48 * 1024
"""A smaller response needs no deadline: it fits into the connection's buffer, even in base64."""

LINE_BYTES = 64
"""Bytes that a record takes in a response besides its payload."""

READ_RUNS = 10_000
"""Runs in one response; if positions have gaps, each may hold a single record."""


async def append(service: Service, request: HttpRequest) -> HttpResponse:
    """Append one record or many, all or none; responds when they are as durable as the log's policy says."""
    log = service.log
    queue = queue_of(request)
    position, create, json_records, wait_consumer, wait = _wanted_of(request) if request.query else _PLAIN
    # Before the body: nothing is received for a queue that does not exist.
    if not create and not log.queue_exists(queue):
        raise log.inspection.refuse_unknown_queue(queue)
    if wait_consumer is not None and log.queue_exists(queue):
        log.inspection.consumer_position(queue, wait_consumer)  # raises if it does not exist
    with service.bodies.budget.charge() as charge:  # until the response, including the wait for the writer
        service.check_room(request.length or 0)
        body = await service.bodies.receive(request, charge)
        if json_records:
            records = await service.splitter.split_json(body, charge)
        else:
            records = await service.splitter.split(body, request.header(b"content-type"), charge)
        del body  # not kept next to the records while they wait for the writer
        if position is not None and position + len(records) >= POSITION_LIMIT:
            raise bad_request(f"position must leave room for {len(records)} records below 2^63", "parameter")
        count = len(records)
        if count == 1:
            last = await log.append_record(queue, position, records[0], create=create)
        else:
            last = await log.append_records(queue, position, records, create=create)
    duplicate = last is None and count > 0
    if last is None and position is not None and count:
        last = position + count - 1
    done = None
    if wait_consumer is not None and last is not None:
        del records  # not kept while the consumer reads them
        done = await _reaches(service, request, (queue, last, wait_consumer), wait or 0.0)
    if done is not None:
        return json_response(AppendResponse(last, count, duplicate, done))
    known = b"true" if duplicate else b"false"
    return HttpResponse(b'{"position":%s,"records":%d,"duplicate":%s}' % (encode_json(last), count, known))


async def _reaches(service: Service, request: HttpRequest, record: tuple[str, int, str], at_most: float) -> bool:
    """Wait until the record, which is stored, is acknowledged; False if that does not happen, for any reason.

    An error would have clients send the record again.
    """
    try:
        return await is_acknowledged(service, request, record, at_most)
    except (RecordLogError, ProblemError):
        return False


async def is_acknowledged(service: Service, request: HttpRequest, record: tuple[str, int, str], at_most: float) -> bool:
    """Return whether a consumer acknowledges a record within *at_most* seconds, or those of the options.

    record: queue, position and consumer.
    """
    log = service.log

    async def reach() -> bool:
        await log.wait_acknowledged(*record)
        return True

    queue, position, consumer = record
    if log.inspection.consumer_position(queue, consumer) > position:
        return await reach()  # at once, or an error
    return bool(at_most) and await _wait_for(service, request, reach, at_most)


class _Wanted(NamedTuple):
    """The parameters of an append."""

    position: int | None = None
    create: bool = False
    json_records: bool = False  # the body is one JSON value, whose elements are the records
    wait_consumer: str | None = None
    wait: float | None = None


_PLAIN = _Wanted()


def _wanted_of(request: HttpRequest) -> _Wanted:
    """Return the parameters of an append that has some."""
    check_query(request, _APPEND_NAMES)
    consumer, wait = request.query.get("wait_consumer"), seconds(request, "wait")
    json = request.query.get("json")
    if json not in (None, "records"):
        raise bad_request(f"json must be records, not {json[:80]!r}", "parameter")
    if consumer is None and wait is not None:
        raise bad_request("wait needs wait_consumer, the consumer to wait for", "parameter")
    if consumer is not None:
        check_consumer_name(consumer)
    position = number(request, "position", limit=POSITION_LIMIT - 1)
    return _Wanted(position, flag(request, "create"), json is not None, consumer, wait)


async def read(service: Service, request: HttpRequest) -> HttpResponse:
    """Read records. The header X-Next-Position says where to continue; X-Queue-Id is the id of the queue."""
    check_query(request, _READ_NAMES)
    log, queue = service.log, queue_of(request)
    summary = log.queue_summary(queue)
    stop = number(request, "stop")
    limit = number(request, "limit", minimum=1)
    bytes_max = number(request, "max_bytes", minimum=1) or READ_BYTES
    start = await start_of(log, request, queue)
    check_start(summary, start)  # before the wait: what is truncated will not come
    await wait_for_records(service, request, queue, start, partial(log.wait_for, queue, start))
    if log.queue_summary(queue).id != summary.id:
        raise QueueNotFoundError(queue)  # deleted while we waited, and created again
    summary = log.queue_summary(queue)
    check_start(summary, start)

    def check() -> None:
        check_start(log.queue_summary(queue), start)

    return await respond(service, request, summary, WantedRange(start, stop, limit, bytes_max, check))


class WantedRange(NamedTuple):
    """The positions that a request wants to read, and its own limits; None means no limit.

    check: raises if they may not be read any more. Called after a wait for the disk.
    """

    start: int
    stop: int | None
    records_max: int | None
    bytes_max: int
    check: Callable[[], None]


async def respond(
    service: Service,
    request: HttpRequest,
    summary: QueueSummary,
    wanted: WantedRange,
    more_headers: dict[str, str] | None = None,
) -> HttpResponse:
    """Send the records of a queue that are wanted, within the limits, in the format that the request accepts."""
    log, options, queue, start = service.log, service.options, summary.queue, wanted.start
    content_type, format_ = format_of(request.header(b"accept"), as_text(request))
    records_max = min(wanted.records_max or POSITION_LIMIT, options.read_records)
    async with service.reads:
        # While little room is left for responses, each is shorter: X-Next-Position says where to continue.
        bytes_max = max(service.sending.room // READS, READ_AT_ONCE_BYTES)
        bytes_max = min(wanted.bytes_max, options.read_bytes, bytes_max)
        loaded = await log.inspection.load(
            queue, start, wanted.stop, runs_max=READ_RUNS, records_max=records_max, bytes_max=bytes_max
        )
        if loaded.is_copy:  # it was read from the disk, and others ran meanwhile
            if not log.inspection.is_there(queue, summary.id):
                raise QueueNotFoundError(queue)
            wanted.check()
        runs = take_head(islice(runs_of(loaded.held), READ_RUNS), records_max, bytes_max)
        size = sum(len(run.payload) + LINE_BYTES * run.record_count for run in runs)
        out = service.sending.enter(size + HELD_BYTES) if size > READ_AT_ONCE_BYTES else None
    next_position = runs[-1].next_position if runs else start
    if loaded.is_copy:
        log.inspection.read_ahead(queue, next_position, wanted.stop, min(loaded.bytes, bytes_max))
    times = loaded.times.until(next_position)
    pieces = format_.encode(queue, summary.id, runs, times)
    headers = {"x-next-position": str(next_position), "x-queue-id": str(summary.id), **(more_headers or {})}
    if out is None:
        return HttpResponse(b"".join(pieces), 200, content_type, headers)
    length = None if format_.size is None else format_.size(queue, runs, times)
    return Stream(wire.gather(pieces, PIECE_BYTES), out, content_type, headers, length)


async def position_at(service: Service, request: HttpRequest) -> HttpResponse:
    """Show the position of the first record that was stored at a time or later."""
    check_query(request, ("time",))
    log, queue, time = service.log, queue_of(request), moment(request, "time")
    if time is None:
        raise bad_request("send the time to look for: ?time=2026-11-22T09:30:00Z", "parameter")
    queue_id, position = log.queue_summary(queue).id, await log.inspection.position_at(queue, time)
    return json_response(PositionResponse(queue, queue_id, position))


async def wait_for_records(
    service: Service, request: HttpRequest, queue: str, start: int, reach: Callable[[], Coroutine[Any, Any, bool]]
) -> None:
    """Wait with *reach* as long as the parameter `wait` says, unless there is a record at or after *start*."""
    at_most = seconds(request, "wait")
    if at_most and service.log.next_position(queue) <= start:
        # The caller reports a deleted queue as 404; a service that shuts down responds with what it has.
        await _wait_for(service, request, reach, at_most)


async def _wait_for(
    service: Service, request: HttpRequest, reach: Callable[[], Coroutine[Any, Any, bool]], at_most: float
) -> bool:
    """Wait for what *reach* waits for, as long as the client is there; return whether it came.

    at_most: seconds, if the options allow as many.
    """
    seconds = min(at_most, service.options.wait_seconds)
    with service.waiting_client():
        return await service.wait_for(request, reach, seconds) is WakeReason.RECORDS


FORMATS = (NDJSON, TEXT, OCTET_STREAM, wire.CONTENT_TYPE)

ROUTES = (
    Route(
        "POST",
        "/v1/queues/{queue}/records",
        append,
        "Append records, all or none",
        takes=AppendRequest,
        accepts=(OCTET_STREAM, NDJSON, wire.CONTENT_TYPE),
        returns=AppendResponse,
        parameters=APPEND_PARAMETERS,
        problems=(404, 408, 409, 413, 415, 429, 507),
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/records",
        read,
        "Read records",
        returns=RecordResponse,
        formats=FORMATS,
        parameters=READ_PARAMETERS,
        problems=(404, 406, 410, 429),
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/position",
        position_at,
        "Find the first record stored at a time or later",
        returns=PositionResponse,
        parameters=(("time", "the time, with a zone, like 2026-11-22T09:30:00Z; rounded down to 0.1 s"),),
        problems=(400, 404),
    ),
)
