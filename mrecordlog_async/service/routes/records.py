"""Records of one queue: append and read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from aiohttp import web

from mrecordlog_async.errors import QueueNotFoundError, RecordLogError
from mrecordlog_async.memory.cutting import take_head
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.runs import runs_of
from mrecordlog_async.model import QueueSummary, Run
from mrecordlog_async.names import check_consumer_name
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.problems import ProblemError, bad_request
from mrecordlog_async.protocol.schemas import AppendRequest, AppendResponse, PositionResponse, RecordResponse
from mrecordlog_async.service.reading.fetch import HeldRuns, pinned_bytes
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
from mrecordlog_async.service.routes.route import JSON, PIECE_BYTES, Route, json_response
from mrecordlog_async.service.service import DISK_READS, Service, WakeReason
from mrecordlog_async.service.wire.formats import TEXT, SmallResponse, format_of, send, take_runs
from mrecordlog_async.service.wire.receive import NDJSON, OCTET_STREAM
from mrecordlog_async.service.wire.send import PIECE_CHARGE_BYTES

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

LOOK_SECONDS = 1.0
"""Seconds between the looks of a request that waits inside another application whether its client is still there."""

READ_RUNS = 10_000
"""Runs in one response; if positions have gaps, each may hold a single record."""


async def append(service: Service, request: web.Request) -> web.StreamResponse:
    """Append one record or many, all or none; responds when they are as durable as the log's policy says."""
    log = service.log
    queue = queue_of(request)
    position, create, json_records, wait_consumer, wait = _wanted_of(request) if "?" in request.raw_path else _PLAIN
    # Before the body: nothing is received for a queue that does not exist.
    if not create and not log.queue_exists(queue):
        raise log.inspection.refuse_unknown_queue(queue)
    if wait_consumer is not None and log.queue_exists(queue):
        log.inspection.consumer_position(queue, wait_consumer)  # raises if it does not exist
    with service.bodies.budget.charge() as charge:  # until the response, including the wait for the writer
        body = service.bodies.at_hand(request, charge)
        if body is None:
            service.check_room(service.bodies.check(request) or 0)
            body = await service.bodies.receive(request, charge)
        if json_records:
            records = await service.splitter.split_json(body, charge)
        else:
            records = await service.splitter.split(body, request.headers.get("Content-Type"), charge)
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
    if wait_consumer is None or last is None:
        return _appended(service, last, count, duplicate)
    del records  # not kept while the consumer reads them
    done = await _reaches(service, request, (queue, last, wait_consumer), wait or 0.0)
    return json_response(AppendResponse(last, count, duplicate, done))


async def _reaches(service: Service, request: web.Request, record: tuple[str, int, str], at_most: float) -> bool:
    """Wait until the record, which is stored, is acknowledged; False if that does not happen, for any reason.

    An error would have clients send the record again.
    """
    try:
        return await is_acknowledged(service, request, record, at_most)
    except (RecordLogError, ProblemError):
        return False


async def is_acknowledged(service: Service, request: web.Request, record: tuple[str, int, str], at_most: float) -> bool:
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


def _wanted_of(request: web.Request) -> _Wanted:
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


def _appended(service: Service, last: int | None, records: int, duplicate: bool) -> web.Response:
    body = b'{"position":%s,"records":%d,"duplicate":%s}' % (
        b"null" if last is None else b"%d" % last,
        records,
        b"true" if duplicate else b"false",
    )
    if service.standalone:
        return SmallResponse(body, service.small_head, service.log_id)
    return web.Response(body=body, content_type=JSON)


async def read(service: Service, request: web.Request) -> web.StreamResponse:
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
    request: web.Request,
    summary: QueueSummary,
    wanted: WantedRange,
    more_headers: dict[str, str] | None = None,
) -> web.StreamResponse:
    """Send the records of a queue that are wanted, within the limits, in the format that the request accepts."""
    log, options, queue, start = service.log, service.options, summary.queue, wanted.start
    content_type, format_ = format_of(request.headers.get("Accept"), as_text(request))
    records_max = min(wanted.records_max or POSITION_LIMIT, options.read_records)
    bytes_max = min(wanted.bytes_max, options.read_bytes)
    is_on_disk = max(start, summary.first_position) < log.memory_first(queue)
    async with service.disk_reads if is_on_disk else nullcontext():
        if is_on_disk:  # it is this response's alone, and charged to it once it is read
            bytes_max = min(bytes_max, max(service.sending.room // DISK_READS, READ_AT_ONCE_BYTES))
        loaded = await log.inspection.load(
            queue, start, wanted.stop, runs_max=READ_RUNS, records_max=records_max, bytes_max=bytes_max
        )
    if is_on_disk:
        if not log.inspection.is_there(queue, summary.id):
            raise QueueNotFoundError(queue)
        wanted.check()
    runs = take_head(islice(runs_of(loaded.held), READ_RUNS), records_max, bytes_max)
    next_position = runs[-1].next_position if runs else start
    if is_on_disk:
        log.inspection.read_ahead(queue, next_position, wanted.stop, min(loaded.bytes, bytes_max))
    times = loaded.times.until(next_position)
    headers = {"X-Next-Position": str(next_position), "X-Queue-Id": str(summary.id), **(more_headers or {})}
    if sum(len(run.payload) + LINE_BYTES * run.record_count for run in runs) <= READ_AT_ONCE_BYTES:
        body = b"".join(format_.encode(queue, summary.id, runs, times))
        return web.Response(body=body, content_type=content_type, headers=headers)
    response = web.StreamResponse(headers={**headers, LOG_ID: service.log_id})
    response.content_type = content_type
    if format_.size is not None:
        response.content_length = format_.size(queue, runs, times)
    size = PIECE_CHARGE_BYTES
    if loaded.is_copy or not all(isinstance(one, Run) for one in loaded.held):
        size += sum(len(run.payload) for run in runs)  # copies: from the disk, or where positions have gaps
    left: list[HeldRun] = [*runs]
    pinned = None if loaded.is_copy else partial(pinned_bytes, log, [HeldRuns(queue, summary.id, left)])
    del loaded, runs  # only `left` refers to the runs now, and loses each one that is sent
    out = service.sending.enter(request, size, pinned)
    pieces = wire.gather(format_.encode(queue, summary.id, take_runs(left), times), PIECE_BYTES)
    return await send(request, response, pieces, out)


async def position_at(service: Service, request: web.Request) -> web.StreamResponse:
    """Show the position of the first record that was stored at a time or later."""
    check_query(request, ("time",))
    log, queue, time = service.log, queue_of(request), moment(request, "time")
    if time is None:
        raise bad_request("send the time to look for: ?time=2026-11-22T09:30:00Z", "parameter")
    queue_id, position = log.queue_summary(queue).id, await log.inspection.position_at(queue, time)
    return json_response(PositionResponse(queue, queue_id, position))


async def wait_for_records(
    service: Service, request: web.Request, queue: str, start: int, reach: Callable[[], Coroutine[Any, Any, bool]]
) -> None:
    """Wait with *reach* as long as the parameter `wait` says, unless there is a record at or after *start*."""
    at_most = seconds(request, "wait")
    if at_most and service.log.next_position(queue) <= start:
        # The caller reports a deleted queue as 404; a service that shuts down responds with what it has.
        await _wait_for(service, request, reach, at_most)


async def _wait_for(
    service: Service, request: web.Request, reach: Callable[[], Coroutine[Any, Any, bool]], at_most: float
) -> bool:
    """Wait for what *reach* waits for, as long as the client is there; return whether it came.

    at_most: seconds, if the options allow as many.

    If a client leaves, `serve` cancels its request. The server of another application may not.
    """
    clock, seconds = asyncio.get_running_loop().time, min(at_most, service.options.wait_seconds)
    end, at_once = clock() + seconds, seconds if service.standalone else LOOK_SECONDS
    with service.waiting_client():
        while request.transport is not None and (left := end - clock()) > 0:
            reason = await service.wait_for(reach, min(left, at_once))
            if reason is not WakeReason.TIMEOUT:
                return reason is WakeReason.RECORDS
    return False


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
