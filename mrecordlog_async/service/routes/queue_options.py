"""Options and seal of one queue."""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol.consumer_schemas import (
    QueueOptionsRequest,
    QueueOptionsResponse,
    SealRequest,
    SealResponse,
)
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.service.http import HttpRequest, HttpResponse
from mrecordlog_async.service.reading.parameters import check_query, queue_of
from mrecordlog_async.service.reading.queue_checks import check_id
from mrecordlog_async.service.routes.route import Route, decode_control, json_response, receive_small
from mrecordlog_async.service.service import Service


async def show_options(service: Service, request: HttpRequest) -> HttpResponse:
    """Show the options of a queue, and whether it is sealed."""
    check_query(request, ())
    return json_response(_response(service, queue_of(request)))


async def configure_queue(service: Service, request: HttpRequest) -> HttpResponse:
    """Replace all options of a queue; a sealed queue stays sealed."""
    check_query(request, ())
    queue = queue_of(request)
    with service.bodies.budget.charge() as charge:
        options = await decode_options(await service.bodies.receive_control(request, charge))
    await service.log.configure_queue(queue, options or QueueOptions())
    return json_response(_response(service, queue))


async def seal_queue(service: Service, request: HttpRequest) -> HttpResponse:
    """Seal a queue for good: it accepts no more records, and readers end after its last one."""
    check_query(request, ())
    queue = queue_of(request)
    wanted = await receive_small(service, request, _seal_decoder)
    check_id(service.log.queue_summary(queue), wanted.id)
    return json_response(SealResponse(queue, await service.log.seal_queue(queue, queue_id=wanted.id)))


async def decode_options(body: bytes) -> QueueOptions | None:
    """Return the options in *body*, None if it is empty; raise the 400 problem for options that contradict."""
    if not body:
        return None
    return options_of_request(await decode_control(_options_decoder, body, 1))


def options_of_request(wanted: msgspec.Struct) -> QueueOptions:
    """Return the options that a request has; raise the 400 problem for options that contradict."""
    try:
        return QueueOptions(**msgspec.structs.asdict(wanted))
    except ValueError as error:
        raise bad_request(str(error), "queue_options") from None


def _response(service: Service, queue: str) -> msgspec.Struct:
    options, sealed = service.log.queue_options(queue), service.log.queue_summary(queue).sealed
    return QueueOptionsResponse(queue=queue, **asdict(options), sealed=sealed)


_options_decoder = msgspec.json.Decoder(QueueOptionsRequest)
_seal_decoder = msgspec.json.Decoder(SealRequest)

_OPTIONS = "/v1/queues/{queue}/options"

ROUTES = (
    Route("GET", _OPTIONS, show_options, "Show the options of a queue", returns=QueueOptionsResponse, problems=(404,)),
    Route(
        "PUT",
        _OPTIONS,
        configure_queue,
        "Replace the options of a queue",
        takes=QueueOptionsRequest,
        returns=QueueOptionsResponse,
        problems=(404, 409, 507),
    ),
    Route(
        "POST",
        "/v1/queues/{queue}/seal",
        seal_queue,
        "Seal a queue",
        takes=SealRequest,
        returns=SealResponse,
        problems=(404, 409, 507),
    ),
)
