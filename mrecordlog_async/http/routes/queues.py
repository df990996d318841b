"""Queues: list, look at, create, delete, truncate."""

from __future__ import annotations

import hashlib

import msgspec
from aiohttp import web

from mrecordlog_async.http.messages import (
    CreateAnswer,
    QueueAnswer,
    QueuesAnswer,
    QueueStatus,
    TruncateAnswer,
    TruncateRequest,
)
from mrecordlog_async.http.planning import status_of
from mrecordlog_async.http.problems import ProblemError
from mrecordlog_async.http.requests import check_query, flag, number, queue_of
from mrecordlog_async.http.routes.route import JSON_BODY_BYTES, Route, encode_json, json_answer
from mrecordlog_async.http.service import Service
from mrecordlog_async.model import QueueSummary


async def list_queues(service: Service, request: web.Request) -> web.StreamResponse:
    """All queues in one answer; an unchanged list is 304 for who names its ETag."""
    check_query(request, ("prefix",))
    prefix = request.query.get("prefix", "")
    found = [summary for summary in service.log.summary().values() if summary.queue.startswith(prefix)]
    queues = [answer_of(service, summary) for summary in found]
    return _with_etag(request, encode_json(QueuesAnswer(queues, service.log.public_id, service.opening)))


async def show_queue(service: Service, request: web.Request) -> web.StreamResponse:
    """One queue."""
    check_query(request, ())
    return _with_etag(request, encode_json(answer_of(service, service.log.queue_summary(queue_of(request)))))


async def create_queue(service: Service, request: web.Request) -> web.StreamResponse:
    """Make a queue; 200 instead of 201 where it was there and `exist_ok` allows it."""
    check_query(request, ("exist_ok",))
    queue = queue_of(request)
    created = await service.log.create_queue(queue, exist_ok=flag(request, "exist_ok"))
    return json_answer(CreateAnswer(queue, created), 201 if created else 200)


async def delete_queue(service: Service, request: web.Request) -> web.StreamResponse:
    """Delete a queue and all it holds; with `id` only if it is still that incarnation."""
    check_query(request, ("id",))
    queue, queue_id = queue_of(request), number(request, "id")
    _check_id(service.log.queue_summary(queue), queue_id)
    await service.log.delete_queue(queue, queue_id=queue_id)
    return web.Response(status=204)


async def truncate_queue(service: Service, request: web.Request) -> web.StreamResponse:
    """Drop records up to and including a position, which must have been given away."""
    check_query(request, ())
    queue = queue_of(request)
    log = service.log
    log.queue_summary(queue)  # 404 before the body is looked at
    asked = _truncate_decoder.decode(await service.bodies.receive(request, JSON_BODY_BYTES))
    summary = log.queue_summary(queue)
    _check_id(summary, asked.id)
    if asked.position >= summary.next_position:
        detail = f"queue {queue!r}: position {asked.position} was never given away, the next one is "
        following = summary.next_position
        raise ProblemError(409, "ahead", f"{detail}{following}", queue=queue, next_position=following)
    dropped = await log.truncate(queue, asked.position, queue_id=summary.id)
    first = max(summary.first_position, asked.position + 1)
    return json_answer(TruncateAnswer(queue, dropped, first, summary.next_position))


def _check_id(summary: QueueSummary, queue_id: int | None) -> None:
    if status_of(summary, queue_id) is not QueueStatus.OK:
        detail = f"queue {summary.queue!r} was deleted and created again: its id is {summary.id}, not {queue_id}"
        raise ProblemError(404, "queue_recreated", detail, queue=summary.queue, id=summary.id)


def answer_of(service: Service, summary: QueueSummary) -> QueueAnswer:
    """Return what is told about a queue."""
    return QueueAnswer(
        summary.queue,
        summary.id,
        summary.first_position,
        summary.next_position,
        summary.records,
        summary.bytes,
        summary.first_segment,
        summary.began,
        service.opened.get(summary.id, 0),
    )


def _with_etag(request: web.Request, body: bytes) -> web.Response:
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("If-None-Match") == etag:
        return web.Response(status=304, headers={"ETag": etag})
    return web.Response(body=body, content_type="application/json", headers={"ETag": etag})


_truncate_decoder = msgspec.json.Decoder(TruncateRequest)

_EXIST_OK = ("exist_ok", "1: a queue that is there is fine")

ROUTES = (
    Route(
        "GET",
        "/v1/queues",
        list_queues,
        "List all queues",
        answers=QueuesAnswer,
        parameters=(("prefix", "only queues whose names begin so"),),
        problems=(304,),
        head=True,
    ),
    Route("GET", "/v1/queues/{queue}", show_queue, "Show a queue", answers=QueueAnswer, problems=(304, 404), head=True),
    Route(
        "PUT",
        "/v1/queues/{queue}",
        create_queue,
        "Create a queue",
        status=201,
        answers=CreateAnswer,
        parameters=(_EXIST_OK,),
        problems=(200, 409, 429, 507),
    ),
    Route(
        "DELETE",
        "/v1/queues/{queue}",
        delete_queue,
        "Delete a queue",
        status=204,
        parameters=(("id", "only if the queue still has this id, else 404"),),
        problems=(404,),
    ),
    Route(
        "POST",
        "/v1/queues/{queue}/truncate",
        truncate_queue,
        "Drop records up to and including a position",
        takes=TruncateRequest,
        answers=TruncateAnswer,
        problems=(404, 409, 413),
    ),
)
