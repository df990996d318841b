"""Consumers of one queue: list, create, delete, attach, read, acknowledge, seek; `protocol/consumer_schemas` explains.

A queue that contains `*` is a pattern where consumers are created and deleted: it stands for all queues that match.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from mrecordlog_async.errors import ConsumerNotFoundError
from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.protocol.consumer_schemas import (
    AcknowledgeRequest,
    AttachRequest,
    AttachResponse,
    ConsumerCreateRequest,
    ConsumerCreateResponse,
    ConsumerPositionResponse,
    ConsumerResponse,
    ConsumersResponse,
    RuleResponse,
    SeekRequest,
)
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.protocol.schemas import RecordResponse
from mrecordlog_async.service.parameters import check_query, consumer_of, flag, number, queue_of
from mrecordlog_async.service.queue_checks import check_assigned, check_id
from mrecordlog_async.service.routes.queues import page_of_names
from mrecordlog_async.service.routes.records import FORMATS, READ_BYTES, respond, wait_for_records
from mrecordlog_async.service.routes.route import Route, encode_list, json_response, receive_small, send_json
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.turns import Turns

READ_PARAMETERS = (
    ("epoch", "as `attach` returned it"),
    ("start", "first position to read (default: the first one that is not acknowledged)"),
    ("max_records", "at most this many records"),
    ("max_bytes", "at most about this many payload bytes (default 8 MiB), but at least one record"),
    ("wait", "seconds to wait if there is no record yet (long poll); at most 60"),
    ("as", "text: payloads as UTF-8 text instead of base64"),
)
_READ_NAMES = frozenset(name for name, _ in READ_PARAMETERS)

COMPLETE = "X-Queue-Complete"
"""Header of a read after which no more records will come: the queue is sealed, and this was its end."""


async def list_consumers(service: Service, request: web.Request) -> web.StreamResponse:
    """List the consumers of one queue."""
    check_query(request, ())
    found = service.log.consumers(queue_of(request)).values()
    return json_response(ConsumersResponse([consumer_response(one) for one in found]))


async def list_all_consumers(service: Service, request: web.Request) -> web.StreamResponse:
    """List the consumers of all queues, or of a page of them, and the rules that give new queues a consumer."""
    check_query(request, ("prefix", "limit", "after"))
    log, turns = service.log, Turns()
    names, next_name = await page_of_names(service, request)
    found: list[ConsumerResponse] = []
    for name in names:
        if log.queue_exists(name):
            found += [consumer_response(one) for one in log.consumers(name).values()]
        await turns.rest()
    rules = msgspec.json.encode([RuleResponse(*rule) for rule in log.consumer_rules()])
    tail = b'],"rules":%s,"next":%s}' % (rules, msgspec.json.encode(next_name))
    return await send_json(service, request, [b'{"consumers":[', *await encode_list(found), tail])


async def show_consumer(service: Service, request: web.Request) -> web.StreamResponse:
    """Show where a consumer stands."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    found = service.log.consumers(queue).get(consumer)
    if found is None:
        raise ConsumerNotFoundError(queue, consumer)
    return json_response(consumer_response(found))


async def create_consumer(service: Service, request: web.Request) -> web.StreamResponse:
    """Create a consumer, or with a pattern the rule that gives one to every queue; 200 if it exists and may."""
    check_query(request, ("exist_ok",))
    queue, consumer, exist_ok = queue_of(request), consumer_of(request), flag(request, "exist_ok")
    requested = await receive_small(service, request, _create_decoder)
    created = await service.log.create_consumer(queue, consumer, start=requested.start, exist_ok=exist_ok)
    return json_response(ConsumerCreateResponse(queue, consumer, created), 201 if created else 200)


async def delete_consumer(service: Service, request: web.Request) -> web.StreamResponse:
    """Delete a consumer, or with a pattern the rule and the consumer of every queue that matches."""
    check_query(request, ())
    await service.log.delete_consumer(queue_of(request), consumer_of(request))
    return web.Response(status=204)


async def attach_consumer(service: Service, request: web.Request) -> web.StreamResponse:
    """Become the holder of a consumer; every earlier holder is fenced off."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    wanted = await receive_small(service, request, _attach_decoder)
    attached = await service.log.attach_consumer(
        queue,
        consumer,
        create=wanted.create,
        start=wanted.start,
        owner=checked_owner(wanted.owner),
        take_over=wanted.take_over,
    )
    return json_response(AttachResponse(queue, consumer, attached.queue_id, attached.epoch, attached.position))


async def read_as_consumer(service: Service, request: web.Request) -> web.StreamResponse:
    """Read records as the holder. The header X-Next-Position says where to continue.

    X-Queue-Complete is set once the queue is sealed and read to its end.
    """
    check_query(request, _READ_NAMES)
    log, queue, consumer = service.log, queue_of(request), consumer_of(request)
    epoch, start = number(request, "epoch"), number(request, "start")
    if epoch is None:
        raise bad_request("epoch is missing: attach, and send the epoch of the response", "parameter")
    records_max = number(request, "max_records", minimum=1)
    bytes_max = number(request, "max_bytes", minimum=1) or READ_BYTES
    queue_id = log.queue_summary(queue).id
    log.check_holder(queue, consumer, queue_id=queue_id, epoch=epoch)
    if start is None:
        start = log.consumers(queue)[consumer].position
    # A holder that is past the end read what a restored log does not have: new records would take those positions.
    check_assigned(log.queue_summary(queue), start - 1)
    start = max(start, log.first_position(queue))  # what was truncated past the consumer is skipped
    await wait_for_records(service, request, queue, start)
    log.check_holder(queue, consumer, queue_id=queue_id, epoch=epoch)  # another one may have attached meanwhile
    summary = log.queue_summary(queue)
    start = max(start, summary.first_position)
    complete = {COMPLETE: "1"} if summary.sealed and start >= summary.next_position else {}
    return await respond(service, request, summary, start, None, records_max, bytes_max, complete)


async def acknowledge(service: Service, request: web.Request) -> web.StreamResponse:
    """Acknowledge everything up to a position; a lower one than before changes nothing."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    wanted = await receive_small(service, request, _acknowledge_decoder)
    summary = service.log.queue_summary(queue)
    check_id(summary, wanted.id)
    position = await service.log.acknowledge(queue, consumer, wanted.position, queue_id=summary.id, epoch=wanted.epoch)
    return json_response(ConsumerPositionResponse(queue, consumer, position))


async def seek(service: Service, request: web.Request) -> web.StreamResponse:
    """Move a consumer forward or back; without an epoch its holder is fenced off."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    wanted = await receive_small(service, request, _seek_decoder)
    summary = service.log.queue_summary(queue)
    check_id(summary, wanted.id)
    position = await service.log.seek_consumer(
        queue, consumer, wanted.position, queue_id=summary.id, epoch=wanted.epoch
    )
    return json_response(ConsumerPositionResponse(queue, consumer, position))


def consumer_response(summary: ConsumerSummary) -> ConsumerResponse:
    """Return what responses say about one consumer."""
    return ConsumerResponse(**{name: getattr(summary, name) for name in ConsumerResponse.__struct_fields__})


def checked_owner(owner: str | None) -> str | None:
    """Return *owner*; raise the 400 problem unless it is a UUID."""
    if owner is not None and not _is_uuid(owner):
        raise bad_request("owner must be a UUID other than the one of zeros", "bad_body")
    return owner


def _is_uuid(text: str) -> bool:
    digits = text.replace("-", "")
    return len(digits) == 32 and set(digits.lower()) <= set("0123456789abcdef") and set(digits) != {"0"}


_create_decoder = msgspec.json.Decoder(ConsumerCreateRequest)
_attach_decoder = msgspec.json.Decoder(AttachRequest)
_acknowledge_decoder = msgspec.json.Decoder(AcknowledgeRequest)
_seek_decoder = msgspec.json.Decoder(SeekRequest)

_OF_QUEUE = "/v1/queues/{queue}/consumers"
_ONE = _OF_QUEUE + "/{consumer}"
LIST_PARAMETERS = (
    ("prefix", "only queues whose names begin with this prefix"),
    ("limit", "consumers of at most this many queues; `next` of the response is the `after` of the next page"),
    ("after", "only queues after this name: the `next` of the previous page"),
)

ROUTES = (
    Route(
        "GET", _OF_QUEUE, list_consumers, "List the consumers of a queue", returns=ConsumersResponse, problems=(404,)
    ),
    Route(
        "GET",
        "/v1/consumers",
        list_all_consumers,
        "List the consumers of all queues",
        returns=ConsumersResponse,
        parameters=LIST_PARAMETERS,
        problems=(429,),
    ),
    Route("GET", _ONE, show_consumer, "Show a consumer", returns=ConsumerResponse, problems=(404,)),
    Route(
        "PUT",
        _ONE,
        create_consumer,
        "Create a consumer",
        status=201,
        takes=ConsumerCreateRequest,
        returns=ConsumerCreateResponse,
        parameters=(("exist_ok", "1: accept a consumer that exists"),),
        problems=(200, 404, 409, 429, 507),
    ),
    Route("DELETE", _ONE, delete_consumer, "Delete a consumer", status=204, problems=(404, 507)),
    Route(
        "POST",
        _ONE + "/attach",
        attach_consumer,
        "Become the holder of a consumer",
        takes=AttachRequest,
        returns=AttachResponse,
        problems=(404, 409, 429, 507),
    ),
    Route(
        "GET",
        _ONE + "/records",
        read_as_consumer,
        "Read records as the holder of a consumer",
        returns=RecordResponse,
        formats=FORMATS,
        parameters=READ_PARAMETERS,
        problems=(404, 406, 409, 429),
    ),
    Route(
        "POST",
        _ONE + "/acknowledge",
        acknowledge,
        "Acknowledge records",
        takes=AcknowledgeRequest,
        returns=ConsumerPositionResponse,
        problems=(404, 409, 507),
    ),
    Route(
        "POST",
        _ONE + "/seek",
        seek,
        "Move a consumer",
        takes=SeekRequest,
        returns=ConsumerPositionResponse,
        problems=(404, 409, 410, 507),
    ),
)
