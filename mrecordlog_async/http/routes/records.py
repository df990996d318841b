"""Records of one queue: append and read."""

from __future__ import annotations

from aiohttp import web

from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.http import arrow, wire
from mrecordlog_async.http.answers import TEXT, SmallAnswer, encoder_of, send
from mrecordlog_async.http.bodies import NDJSON, OCTET_STREAM, records_of
from mrecordlog_async.http.messages import AppendAnswer, AppendRequest, RecordAnswer
from mrecordlog_async.http.planning import check_start, take
from mrecordlog_async.http.problems import bad_request
from mrecordlog_async.http.requests import POSITION_LIMIT, as_text, check_query, flag, number, queue_of
from mrecordlog_async.http.routes.route import JSON, Route
from mrecordlog_async.http.service import Service

READ_PARAMETERS = (
    ("start", "first position wanted; the first retained one where it is not given"),
    ("stop", "position behind the last one wanted"),
    ("limit", "at most so many records"),
    ("max_bytes", "at most about so many payload bytes (default 8 MiB), but at least one record"),
    ("wait", "seconds to wait for a record where there is none yet (long poll)"),
    ("as", "text: payloads as UTF-8 text instead of base64"),
)
_READ_NAMES = frozenset(name for name, _ in READ_PARAMETERS)

APPEND_PARAMETERS = (
    ("position", "of the first record; sent again, the same records are stored once"),
    ("create", "1: make the queue if it is not there"),
)
_APPEND_NAMES = frozenset(name for name, _ in APPEND_PARAMETERS)

READ_BYTES = 8 * 1024 * 1024
"""What an answer holds unless more was asked for: enough to be fast, and encoded without holding others up."""

READ_AT_ONCE_BYTES = 64 * 1024
"""A smaller answer needs no deadline: it fits into the connection's buffer."""


async def append(service: Service, request: web.Request) -> web.StreamResponse:
    """Append one record or many, all or none; answered when they are as safe as the log's policy says."""
    log = service.log
    queue = queue_of(request)
    position, create = None, False
    if "?" in request.raw_path:
        check_query(request, _APPEND_NAMES)
        position = number(request, "position", limit=POSITION_LIMIT - 1)
        create = flag(request, "create")
    if not create and not log.queue_exists(queue):
        raise QueueNotFoundError(queue)
    body = service.bodies.at_hand(request)
    if body is None:
        service.check_room(service.bodies.check(request) or 0)
        body = await service.bodies.receive(request)
    content_type = request.headers.get("Content-Type")
    if content_type == arrow.CONTENT_TYPE:
        await arrow.ready(415)
    records = records_of(body, content_type, service.options.body_records)
    if position is not None and position + len(records) >= POSITION_LIMIT:
        raise bad_request(f"position is a whole number that leaves room for {len(records)} records", "parameter")
    if create and not log.queue_exists(queue):
        await log.create_queue(queue, exist_ok=True)
    if len(records) == 1:
        last = await log.append_record(queue, position, records[0])
    else:
        last = await log.append_records(queue, position, records)
    return _appended(service, last, position, len(records))


def _appended(service: Service, last: int | None, position: int | None, records: int) -> web.Response:
    duplicate = last is None and records > 0
    if last is None and position is not None and records:
        last = position + records - 1
    answer = b'{"position":%s,"records":%d,"duplicate":%s}' % (
        b"null" if last is None else b"%d" % last,
        records,
        b"true" if duplicate else b"false",
    )
    if service.alone:
        return SmallAnswer(body=answer)
    return web.Response(body=answer, content_type=JSON)


async def read(service: Service, request: web.Request) -> web.StreamResponse:
    """Read records; the header X-Next-Position says where to go on, also when there were none."""
    check_query(request, _READ_NAMES)
    log, options, queue = service.log, service.options, queue_of(request)
    summary = log.queue_summary(queue)
    start, stop = number(request, "start"), number(request, "stop")
    limit = number(request, "limit", minimum=1)
    bytes_max = min(number(request, "max_bytes", minimum=1) or READ_BYTES, options.read_bytes)
    content_type, encode = encoder_of(request.headers.get("Accept"), as_text(request))
    if content_type == arrow.CONTENT_TYPE:
        await arrow.ready(406)
    if start is None:
        start = summary.first_position
    check_start(summary, start)
    await _wait(service, request, queue, start)
    if log.queue_summary(queue).id != summary.id:
        raise QueueNotFoundError(queue)  # deleted while we waited, and created again
    check_start(log.queue_summary(queue), start)
    runs = take(log.runs(queue, start, stop), limit or POSITION_LIMIT, bytes_max)
    headers = {"X-Next-Position": str(runs[-1].next_position if runs else start), "X-Queue-Id": str(summary.id)}
    buffers = encode(queue, summary.id, runs)
    size = sum(map(len, buffers))
    if size <= READ_AT_ONCE_BYTES:
        return web.Response(body=b"".join(buffers), content_type=content_type, headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_type = content_type
    response.content_length = size
    return await send(request, response, buffers, options.write_seconds)


async def _wait(service: Service, request: web.Request, queue: str, start: int) -> None:
    seconds = number(request, "wait")
    if not seconds or service.log.next_position(queue) > start:
        return
    service.enter_tail()
    try:
        # A deleted queue is told as 404 by what follows; a service on its way down answers with what there is.
        await service.wait_for(queue, start, min(seconds, service.options.wait_seconds))
    finally:
        service.leave_tail()


_FORMATS = (NDJSON, TEXT, OCTET_STREAM, wire.CONTENT_TYPE, arrow.CONTENT_TYPE)

ROUTES = (
    Route(
        "POST",
        "/v1/queues/{queue}/records",
        append,
        "Append records, all or none",
        takes=AppendRequest,
        accepts=(OCTET_STREAM, NDJSON, wire.CONTENT_TYPE, arrow.CONTENT_TYPE),
        answers=AppendAnswer,
        parameters=APPEND_PARAMETERS,
        problems=(404, 408, 409, 413, 415, 429, 507),
    ),
    Route(
        "GET",
        "/v1/queues/{queue}/records",
        read,
        "Read records",
        answers=RecordAnswer,
        formats=_FORMATS,
        parameters=READ_PARAMETERS,
        problems=(404, 406, 410, 429),
    ),
)
