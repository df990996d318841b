"""Queues: list, show, create, delete, truncate."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.memory.searches import RANKS
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.consumer_schemas import QueueOptionsRequest
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.protocol.schemas import (
    AtResponse,
    CreateResponse,
    QueueResponse,
    QueuesResponse,
    TruncateRequest,
    TruncateResponse,
    response_of,
)
from mrecordlog_async.service.http import JSON, HttpRequest, HttpResponse, Stream
from mrecordlog_async.service.reading.parameters import check_query, flag, number, queue_of
from mrecordlog_async.service.reading.queue_checks import check_assigned, check_id, summary_of
from mrecordlog_async.service.routes.queue_options import decode_options
from mrecordlog_async.service.routes.route import Route, decode_control, encode_json, json_response
from mrecordlog_async.service.service import Service

LIST_PARAMETERS = (
    ("prefix", "only queues whose names begin with this prefix"),
    ("limit", "at most this many queues; `next` of the response is the `after` of the next page"),
    ("after", "only queues after this name: the `next` of the previous page"),
    (
        "order",
        "bytes, records, segment or age: the queues that hold most, or the oldest records, come first; needs limit",
    ),
    (
        "changed_since",
        "ETag of an earlier list, without quotes: list only the queues that have changed since, and name those that "
        "were deleted. If the service does not know that list any more, or has more queues than a page, the response "
        "has no `changed_since`, and all queues or the first page. The first list is requested with an empty value",
    ),
)
QUEUES_AT_ONCE = 250


async def list_queues(service: Service, request: HttpRequest) -> HttpResponse:
    """List all queues, a page of them, or what changed; 304 if `If-None-Match` has the ETag of the current list."""
    check_query(request, ("prefix", "limit", "after", "order", "changed_since"))
    log, since = service.log, request.query.get("changed_since")
    if since is not None and not request.query.keys().isdisjoint(("prefix", "after", "order")):
        raise bad_request("changed_since goes with limit only", "parameter")
    version = log.inspection.version  # before the names: what changes while they are found is in the next version
    names, next_name = await page_of_names(service, request)
    # An order by size is found again only now and then, so it may change when nothing else does.
    order = f"-{_digest(encode_json(names))}" if request.query.get("order", "name") != "name" else ""
    tag = f"{service.opening}-{version}{order}"
    etag = f'"{tag}"'
    if _has(request, etag):
        return HttpResponse(status=304, headers={"ETag": etag})
    stated: dict[str, object] = {"log": log.inspection.public_id, "opening": service.opening, "next": next_name}
    if since is not None and next_name is None:
        changes = service.earlier_lists.changes(log, names, tag, version, since)
        if changes is not None:
            names = changes.names
            stated |= {"changed_since": since, "deleted": changes.deleted}
    head = encode_json(stated)[:-1] + b',"queues":['
    if len(names) <= QUEUES_AT_ONCE:
        body = b"".join([head, *_encode_queues(service, names), *_encode_at(log)])
        return HttpResponse(body, headers={"ETag": etag})
    pieces = chain([head], _encode_queues(service, names), _encode_at(log))
    return Stream(pieces, service.sending.enter(), JSON, {"ETag": etag})


def _encode_at(log: MultiRecordLog) -> Iterator[bytes]:
    """Yield the end of a list of queues. The state is taken after them: it covers every position above it."""
    yield b'],"at":%s}' % encode_json(at_of(log))


async def page_of_names(service: Service, request: HttpRequest) -> tuple[Sequence[str], str | None]:
    """Return the names to list, and the last of them if more follow."""
    prefix, after = request.query.get("prefix", ""), request.query.get("after")
    limit, order = number(request, "limit", minimum=1), request.query.get("order", "name")
    if order != "name":
        return await _first_page(service, order, prefix, after, limit), None
    names = await service.names.sorted(service.log)
    # Names are sorted by code point, so all that begin with the prefix are adjacent.
    first = max(bisect_left(names, prefix), 0 if after is None else bisect_right(names, after))
    last = bisect_right(names, prefix, key=lambda name: name[: len(prefix)])
    most = last - first if limit is None else min(limit, service.options.list_queues)
    # The whole list is shared, not copied: many clients ask for it at once.
    page = names if (first, first + most) == (0, len(names)) else names[first : min(first + most, last)]
    return page, page[-1] if page and first + most < last else None


async def _first_page(service: Service, order: str, prefix: str, after: str | None, limit: int | None) -> list[str]:
    """Return the names that come first in an order by size, which has no further pages: it changes all the time."""
    if order not in RANKS:
        raise bad_request(f"order must be name, {', '.join(RANKS)}, not {order!r}", "parameter")
    if limit is None or after is not None:
        raise bad_request(f"order={order} lists the first queues only: give limit, and no after", "parameter")
    return await service.names.ranked(service.log, order, prefix, min(limit, service.options.list_queues))


def _encode_queues(service: Service, names: Sequence[str]) -> Iterator[bytes]:
    """Yield the queues as the inside of a JSON list, some at a time; those that were deleted meanwhile are left out."""
    log, begun = service.log, False
    for at in range(0, len(names), QUEUES_AT_ONCE):
        some = [summary_of(log, name) for name in names[at : at + QUEUES_AT_ONCE]]
        found = [queue_response(service, summary) for summary in some if summary is not None]
        if found:
            yield (b"," if begun else b"") + encode_json(found)[1:-1]
            begun = True


async def show_queue(service: Service, request: HttpRequest) -> HttpResponse:
    """Show one queue."""
    check_query(request, ())
    return _with_etag(request, encode_json(queue_response(service, service.log.queue_summary(queue_of(request)))))


async def create_queue(service: Service, request: HttpRequest) -> HttpResponse:
    """Create a queue; responds 200 instead of 201 if it exists and `exist_ok` allows that. The body has its options."""
    check_query(request, ("exist_ok",))
    queue = queue_of(request)
    with service.bodies.budget.charge() as charge:
        options = await decode_options(await service.bodies.receive_control(request, charge))
    created = await service.log.create_queue(queue, exist_ok=flag(request, "exist_ok"), options=options)
    return json_response(CreateResponse(queue, created), 201 if created else 200)


async def delete_queue(service: Service, request: HttpRequest) -> HttpResponse:
    """Delete a queue and all its records; with `id`, only if it is still that incarnation."""
    check_query(request, ("id", "past_consumers"))
    queue, queue_id = queue_of(request), number(request, "id")
    check_id(service.log.queue_summary(queue), queue_id)
    past_consumers = flag(request, "past_consumers")
    await service.log.delete_queue(queue, queue_id=queue_id, past_consumers=past_consumers)
    return HttpResponse(status=204)


async def truncate_queue(service: Service, request: HttpRequest) -> HttpResponse:
    """Drop records up to and including a position, which must have been assigned."""
    check_query(request, ())
    queue = queue_of(request)
    log = service.log
    log.queue_summary(queue)  # 404 before the body is read
    with service.bodies.budget.charge() as charge:
        body = await service.bodies.receive_control(request, charge)
    requested = await decode_control(_truncate_decoder, body, 1)
    summary = log.queue_summary(queue)
    check_id(summary, requested.id)
    check_assigned(summary, requested.position)
    # With the id: the queue may be deleted and recreated while the truncate waits for the writer.
    dropped = await log.truncate(
        queue, requested.position, queue_id=summary.id, past_consumers=requested.past_consumers
    )
    first = max(summary.first_position, requested.position + 1)
    return json_response(TruncateResponse(queue, dropped, first, summary.next_position))


def queue_response(service: Service, summary: QueueSummary) -> QueueResponse:
    """Return what responses say about one queue."""
    return response_of(summary, service.opened.get(summary.id, 0))


def at_of(log: MultiRecordLog) -> AtResponse | None:
    """Return the state that the log's positions show."""
    nonce, batch = log.inspection.at
    return AtResponse(hex_of(nonce), batch) if nonce else None


def hex_of(nonce: int) -> str:
    """Return the random number of an opening as text: JSON numbers of this size lose digits in many readers."""
    return f"{nonce:016x}"


def _with_etag(request: HttpRequest, body: bytes) -> HttpResponse:
    etag = f'"{_digest(body)}"'
    if _has(request, etag):
        return HttpResponse(status=304, headers={"ETag": etag})
    return HttpResponse(body, headers={"ETag": etag})


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=12).hexdigest()


def _has(request: HttpRequest, etag: str) -> bool:
    """Return whether `If-None-Match` names *etag*, even as the weak one that a compressing proxy makes of it."""
    known = [one.strip().removeprefix("W/") for one in (request.header(b"if-none-match") or "").split(",")]
    return etag in known or "*" in known


_truncate_decoder = msgspec.json.Decoder(TruncateRequest)

_EXIST_OK = ("exist_ok", "1: accept a queue that exists")

ROUTES = (
    Route(
        "GET",
        "/v1/queues",
        list_queues,
        "List all queues",
        returns=QueuesResponse,
        parameters=LIST_PARAMETERS,
        problems=(304, 429),
        head=True,
    ),
    Route(
        "GET", "/v1/queues/{queue}", show_queue, "Show a queue", returns=QueueResponse, problems=(304, 404), head=True
    ),
    Route(
        "PUT",
        "/v1/queues/{queue}",
        create_queue,
        "Create a queue",
        status=201,
        takes=QueueOptionsRequest,
        returns=CreateResponse,
        parameters=(_EXIST_OK,),
        problems=(200, 409, 429, 507),
    ),
    Route(
        "DELETE",
        "/v1/queues/{queue}",
        delete_queue,
        "Delete a queue",
        status=204,
        parameters=(
            ("id", "only if the queue still has this id, else 404"),
            ("past_consumers", "1: even if a consumer has not acknowledged all records"),
        ),
        problems=(404, 409, 507),
    ),
    Route(
        "POST",
        "/v1/queues/{queue}/truncate",
        truncate_queue,
        "Drop records up to and including a position",
        takes=TruncateRequest,
        returns=TruncateResponse,
        problems=(404, 409, 413, 507),
    ),
)
