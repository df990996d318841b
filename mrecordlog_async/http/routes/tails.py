"""Tails: the records of a queue as server-sent events, and the service's numbers as they move.

An event's id is the record's position, so a browser or client that lost the connection goes on behind the last one it
saw (`Last-Event-ID`). A tail ends with an event `end` when the queue is deleted or the service goes down, and without
one when its client does not read: events are made only as fast as they are taken.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from mrecordlog_async.http.answers import PIECE_BYTES, write
from mrecordlog_async.http.messages import RecordAnswer, StatsAnswer, TextRecordAnswer
from mrecordlog_async.http.planning import take
from mrecordlog_async.http.problems import bad_request
from mrecordlog_async.http.requests import as_text, check_query, number, queue_of
from mrecordlog_async.http.routes.route import Route, encode_json
from mrecordlog_async.http.service import Service, Woken
from mrecordlog_async.http.stats import stats_of
from mrecordlog_async.model import Run

EVENTS = "text/event-stream"
STATS_SECONDS = 1.0

TAIL_PARAMETERS = (
    ("start", "first position wanted, or `next` for what comes from now on; the first retained one if not given"),
    ("as", "text: payloads as UTF-8 text instead of base64"),
)


async def tail(service: Service, request: web.Request) -> web.StreamResponse:
    """Send records as they come, until the queue is deleted, the service goes down or the client leaves."""
    check_query(request, ("start", "as"))
    queue = queue_of(request)
    queue_id = service.log.queue_summary(queue).id
    position = _start(service, request, queue)
    text = as_text(request)
    service.enter_tail()
    try:
        response = await _begin(request)
        end = await _follow(service, request, response, queue, queue_id, position, text)
        await write(request, response, b"event: end\ndata: %s\n\n" % end.encode(), service.options.write_seconds)
        await response.write_eof()
        return response
    finally:
        service.leave_tail()


async def stats_stream(service: Service, request: web.Request) -> web.StreamResponse:
    """Send the numbers of `/v1/stats` every second."""
    check_query(request, ())
    service.enter_tail()
    try:
        response = await _begin(request)
        while not service.draining:
            body = encode_json(stats_of(service))
            await write(request, response, b"data: %s\n\n" % body, service.options.write_seconds)
            await service.wait_for_drain(STATS_SECONDS)
        await response.write_eof()
        return response
    finally:
        service.leave_tail()


async def _begin(request: web.Request) -> web.StreamResponse:
    # no-transform and the header keep proxies from holding events back.
    headers = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    response.content_type = EVENTS
    response.force_close()
    await response.prepare(request)
    return response


async def _follow(
    service: Service,
    request: web.Request,
    response: web.StreamResponse,
    queue: str,
    queue_id: int,
    position: int,
    text: bool,
) -> str:
    """Write events until there is a reason to end, and return it."""
    log, options = service.log, service.options
    while True:
        woken = await service.wait_for(queue, position, options.heartbeat_seconds)
        if service.draining:
            return "closing"
        if woken is Woken.ENDED or not log.queue_exists(queue) or log.queue_summary(queue).id != queue_id:
            return "deleted"
        if woken is Woken.TIMEOUT:
            await write(request, response, b": still here\n\n", options.write_seconds)
            continue
        for run in take(log.runs(queue, position), 10_000, PIECE_BYTES):
            await write(request, response, _events(run, text), options.write_seconds)
            position = run.next_position
        await asyncio.sleep(0)  # one tail that has much to send lets the others in


def _events(run: Run, text: bool) -> bytes:
    parts = []
    for position, payload in run.each():
        record: RecordAnswer | TextRecordAnswer
        if text:
            record = TextRecordAnswer(position, payload.decode(errors="replace"))
        else:
            record = RecordAnswer(position, payload)
        parts.append(b"id: %d\ndata: %s\n\n" % (position, encode_json(record)))
    return b"".join(parts)


def _start(service: Service, request: web.Request, queue: str) -> int:
    """Return the position to begin with; a resumed tail goes on behind the last event that was seen."""
    last_seen = request.headers.get("Last-Event-ID")
    if last_seen:
        if not (last_seen.isascii() and last_seen.isdigit() and len(last_seen) <= 19):
            raise bad_request("Last-Event-ID is the position of the last event seen", "parameter")
        return int(last_seen) + 1
    if request.query.get("start") == "next":
        return service.log.next_position(queue)
    start = number(request, "start")
    return service.log.first_position(queue) if start is None else start


ROUTES = (
    Route(
        "GET",
        "/v1/queues/{queue}/tail",
        tail,
        "Follow a queue (server-sent events)",
        formats=(EVENTS,),
        parameters=TAIL_PARAMETERS,
        problems=(404, 429),
    ),
    Route(
        "GET",
        "/v1/stats/stream",
        stats_stream,
        "Follow the numbers (server-sent events)",
        answers=StatsAnswer,
        formats=(EVENTS,),
        problems=(429,),
    ),
)
