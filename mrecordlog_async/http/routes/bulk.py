"""Routes for readers of many queues; see `messages` for what they promise."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.http import wire
from mrecordlog_async.http.answers import send
from mrecordlog_async.http.messages import (
    FetchRequest,
    PlanAnswer,
    PlanRequest,
    QueueStatus,
    QueueTruncated,
    TruncateManyAnswer,
    TruncateManyRequest,
    TruncateOne,
)
from mrecordlog_async.http.planning import fetch, plan, status_of, summary_of
from mrecordlog_async.http.requests import check_query
from mrecordlog_async.http.routes.route import JSON_BODY_BYTES, Route, json_answer
from mrecordlog_async.http.service import Service
from mrecordlog_async.log import MultiRecordLog


async def plan_many(service: Service, request: web.Request) -> web.StreamResponse:
    """From start positions and limits to ranges with counts and cut points."""
    check_query(request, ())
    body = await service.bodies.receive(request, JSON_BODY_BYTES)
    asked = _plan_decoder.decode(body or b"{}")
    log = service.log
    service.check_opening(asked.opening)
    return json_answer(plan(log, asked))


async def fetch_many(service: Service, request: web.Request) -> web.StreamResponse:
    """Many ranges in one stream of runs; all are checked before the first byte."""
    check_query(request, ())
    body = await service.bodies.receive(request, JSON_BODY_BYTES)
    asked = _fetch_decoder.decode(body)
    parts = fetch(service.log, asked.ranges)
    buffers = wire.encode(parts) if asked.payload else wire.encode_positions(parts)
    response = web.StreamResponse()
    response.content_type = wire.CONTENT_TYPE
    response.content_length = sum(map(len, buffers))
    return await send(request, response, buffers, service.options.write_seconds)


async def truncate_many(service: Service, request: web.Request) -> web.StreamResponse:
    """Truncate many queues; each is done, and durable, or refused on its own."""
    check_query(request, ())
    log = service.log
    asked = _truncate_decoder.decode(await service.bodies.receive(request, JSON_BODY_BYTES))
    service.check_opening(asked.opening)
    return json_answer(TruncateManyAnswer(await asyncio.gather(*(_truncate(log, one) for one in asked.queues))))


async def _truncate(log: MultiRecordLog, asked: TruncateOne) -> QueueTruncated:
    summary = summary_of(log, asked.queue)
    status = status_of(summary, asked.id)
    if summary is None:
        return QueueTruncated(asked.queue, status)
    first, following = summary.first_position, summary.next_position
    if status is QueueStatus.OK and asked.position >= following:
        status = QueueStatus.AHEAD
    if status is not QueueStatus.OK:
        return QueueTruncated(asked.queue, status, 0, first, following)
    try:
        dropped = await log.truncate(asked.queue, asked.position, queue_id=summary.id)
    except QueueNotFoundError:  # deleted meanwhile
        return QueueTruncated(asked.queue, QueueStatus.MISSING)
    return QueueTruncated(asked.queue, status, dropped, max(first, asked.position + 1), following)


_plan_decoder = msgspec.json.Decoder(PlanRequest)
_fetch_decoder = msgspec.json.Decoder(FetchRequest)
_truncate_decoder = msgspec.json.Decoder(TruncateManyRequest)

ROUTES = (
    Route(
        "POST",
        "/v1/plan",
        plan_many,
        "Plan what to read of many queues",
        takes=PlanRequest,
        answers=PlanAnswer,
        problems=(409, 413),
    ),
    Route(
        "POST",
        "/v1/fetch",
        fetch_many,
        "Read many ranges in one stream of runs",
        takes=FetchRequest,
        formats=(wire.CONTENT_TYPE,),
        problems=(404, 409, 410, 413),
    ),
    Route(
        "POST",
        "/v1/truncate",
        truncate_many,
        "Truncate many queues",
        takes=TruncateManyRequest,
        answers=TruncateManyAnswer,
        problems=(409, 413),
    ),
)
