"""Consumers of one queue: list, create, delete, attach, read, acknowledge, seek; `protocol/consumer_schemas` explains.

A queue that contains `*` is a pattern where consumers are created and deleted: it stands for all queues that match.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec

from mrecordlog_async.errors import ConsumerNotFoundError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import ConsumerSummary
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
    RuleResponse,
    SeekRequest,
)
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.protocol.schemas import RecordResponse
from mrecordlog_async.service.http import JSON, HttpRequest, HttpResponse, Stream
from mrecordlog_async.service.reading.parameters import check_query, consumer_of, flag, number, queue_of, seconds
from mrecordlog_async.service.reading.queue_checks import check_assigned, check_id
from mrecordlog_async.service.routes.queues import page_of_names
from mrecordlog_async.service.routes.records import (
    FORMATS,
    READ_BYTES,
    WantedRange,
    is_acknowledged,
    respond,
    wait_for_records,
)
from mrecordlog_async.service.routes.route import Route, encode_json, json_response, receive_small
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.turns import sorted_in_turns

CONSUMERS_AT_ONCE = 250
QUEUES_AT_ONCE = 250

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


async def list_consumers(service: Service, request: HttpRequest) -> HttpResponse:
    """List the consumers of one queue, or a page of them."""
    check_query(request, ("limit", "after"))
    log, queue = service.log, queue_of(request)
    limit, after = number(request, "limit", minimum=1), request.query.get("after")
    names = log.inspection.consumer_names(queue)
    if len(names) <= CONSUMERS_AT_ONCE:
        page, next_name = _page_of(sorted(names), limit, after)
        found = [consumer_response(one) for one in log.inspection.consumer_summaries(queue, page)]
        return json_response(ConsumersResponse(found, next=next_name))
    with service.sending.making() as out:  # before the names are copied
        page, next_name = _page_of(await sorted_in_turns(names), limit, after)
        end = b'],"rules":[],"next":%s}' % encode_json(next_name)
        pieces = chain([b'{"consumers":['], _joined(_of_queue(log, queue, page)), [end])
        return Stream(pieces, out, JSON)


async def list_all_consumers(service: Service, request: HttpRequest) -> HttpResponse:
    """List the consumers of all queues, or of a page of them; the first page has the rules that give new queues one."""
    check_query(request, ("prefix", "limit", "after"))
    names, next_name = await page_of_names(service, request)
    rules: Collection[tuple[str, str]] = service.log.inspection.unsorted_rules() if "after" not in request.query else ()
    pieces = _list_all(service.log, names, rules, next_name)
    if max(len(names), len(rules), service.log.inspection.consumer_count) <= CONSUMERS_AT_ONCE:
        return HttpResponse(b"".join([piece async for piece in pieces]))
    return Stream(pieces, service.sending.enter(), JSON)


async def _list_all(
    log: MultiRecordLog, queues: Sequence[str], rules: Collection[tuple[str, str]], next_name: str | None
) -> AsyncIterator[bytes]:
    """Yield the list of all consumers in pieces, and then the rules."""
    yield b'{"consumers":['
    begun, found = False, list[ConsumerResponse]()
    for number_of_queue, queue in enumerate(queues, 1):
        names = log.inspection.consumer_names(queue) if log.queue_exists(queue) else ()
        for some in _of_queue(
            log, queue, sorted(names) if len(names) <= CONSUMERS_AT_ONCE else await sorted_in_turns(names)
        ):
            found += some
            if len(found) >= CONSUMERS_AT_ONCE:
                yield (b"," if begun else b"") + encode_json(found)[1:-1]
                begun, found = True, []
        if number_of_queue % QUEUES_AT_ONCE == 0:
            yield b""  # others have their turn
    if found:
        yield (b"," if begun else b"") + encode_json(found)[1:-1]
    yield b'],"rules":['
    for piece in _joined(_rules_in_parts(await sorted_in_turns(rules))):
        yield piece
    yield b'],"next":%s}' % encode_json(next_name)


def _of_queue(log: MultiRecordLog, queue: str, names: Sequence[str]) -> Iterator[list[ConsumerResponse]]:
    """Yield the consumers of a queue, some at a time; nothing more once it is deleted."""
    for at in range(0, len(names), CONSUMERS_AT_ONCE):
        if log.queue_exists(queue):
            yield [
                consumer_response(one)
                for one in log.inspection.consumer_summaries(queue, names[at : at + CONSUMERS_AT_ONCE])
            ]


def _rules_in_parts(rules: Sequence[tuple[str, str]]) -> Iterator[list[RuleResponse]]:
    for at in range(0, len(rules), CONSUMERS_AT_ONCE):
        yield [RuleResponse(*rule) for rule in rules[at : at + CONSUMERS_AT_ONCE]]


def _joined(parts: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Yield *parts* as the inside of one JSON list."""
    begun = False
    for part in parts:
        if part:
            yield (b"," if begun else b"") + encode_json(part)[1:-1]
            begun = True


def _page_of(names: list[str], limit: int | None, after: str | None) -> tuple[list[str], str | None]:
    """Return the part of the sorted *names* to list, and the last of them if more follow."""
    first = 0 if after is None else bisect_right(names, after)
    last = len(names) if limit is None else min(first + limit, len(names))
    return names[first:last], names[last - 1] if first < last < len(names) else None


async def show_consumer(service: Service, request: HttpRequest) -> HttpResponse:
    """Show where a consumer stands."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    for found in service.log.inspection.consumer_summaries(queue, (consumer,)):
        return json_response(consumer_response(found))
    raise ConsumerNotFoundError(queue, consumer)


async def create_consumer(service: Service, request: HttpRequest) -> HttpResponse:
    """Create a consumer, or with a pattern the rule that gives one to every queue; 200 if it exists and may."""
    check_query(request, ("exist_ok",))
    queue, consumer, exist_ok = queue_of(request), consumer_of(request), flag(request, "exist_ok")
    requested = await receive_small(service, request, _create_decoder)
    created = await service.log.create_consumer(queue, consumer, start=requested.start, exist_ok=exist_ok)
    return json_response(ConsumerCreateResponse(queue, consumer, created), 201 if created else 200)


async def delete_consumer(service: Service, request: HttpRequest) -> HttpResponse:
    """Delete a consumer, or with a pattern the rule and the consumer of every queue that matches."""
    check_query(request, ())
    await service.log.delete_consumer(queue_of(request), consumer_of(request))
    return HttpResponse(status=204)


async def attach_consumer(service: Service, request: HttpRequest) -> HttpResponse:
    """Become the holder of a consumer; every earlier holder is fenced off."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    wanted = await receive_small(service, request, _attach_decoder)
    attached = await service.log.inspection.attach_consumer(
        queue,
        consumer,
        create=wanted.create,
        start=wanted.start,
        owner=checked_owner(wanted.owner),
        take_over=wanted.take_over,
        if_idle_for=wanted.if_idle_for,
    )
    return json_response(AttachResponse(queue, consumer, attached.queue_id, attached.epoch, attached.position))


async def read_as_consumer(service: Service, request: HttpRequest) -> HttpResponse:
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
    queue_id = log.queue_summary(queue).id  # a queue that is created again during the wait is another one
    log.inspection.check_holder(queue, consumer, queue_id=queue_id, epoch=epoch)
    if start is None:
        start = log.inspection.consumer_position(queue, consumer)
    # A holder that is past the end read what a restored log does not have: new records would take those positions.
    check_assigned(log.queue_summary(queue), start - 1)
    start = max(start, log.first_position(queue))  # what was truncated past the consumer is skipped
    reach = partial(log.inspection.wait_as_holder, consumer, start, queue_id=queue_id, epoch=epoch)
    await wait_for_records(service, request, queue, start, reach)

    def check() -> None:
        log.inspection.check_holder(queue, consumer, queue_id=queue_id, epoch=epoch)

    check()  # another one may have attached meanwhile
    summary = log.queue_summary(queue)
    start = max(start, summary.first_position)
    complete = {COMPLETE: "1"} if summary.sealed and start >= summary.next_position else {}
    return await respond(service, request, summary, WantedRange(start, None, records_max, bytes_max, check), complete)


async def acknowledge(service: Service, request: HttpRequest) -> HttpResponse:
    """Acknowledge everything up to a position; a lower one than before changes nothing."""
    check_query(request, ())
    queue, consumer = queue_of(request), consumer_of(request)
    wanted = await receive_small(service, request, _acknowledge_decoder)
    summary = service.log.queue_summary(queue)
    check_id(summary, wanted.id)
    position = await service.log.inspection.acknowledge(
        queue, consumer, wanted.position, queue_id=summary.id, epoch=wanted.epoch
    )
    return json_response(ConsumerPositionResponse(queue, consumer, position))


async def wait_acknowledged(service: Service, request: HttpRequest) -> HttpResponse:
    """Wait until the consumer has acknowledged a position."""
    check_query(request, ("position", "wait"))
    queue, consumer = queue_of(request), consumer_of(request)
    position, wait = number(request, "position"), seconds(request, "wait")
    if position is None:
        raise bad_request("position is missing: send that of the record", "parameter")
    done = await is_acknowledged(service, request, (queue, position, consumer), wait or 0.0)
    return json_response(AcknowledgedResponse(queue, consumer, position, done))


async def seek(service: Service, request: HttpRequest) -> HttpResponse:
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
PAGE_PARAMETERS = (
    ("limit", "at most this many consumers; `next` of the response is the `after` of the next page"),
    ("after", "only consumers after this name: the `next` of the previous page"),
)
LIST_PARAMETERS = (
    ("prefix", "only queues whose names begin with this prefix"),
    ("limit", "consumers of at most this many queues; `next` of the response is the `after` of the next page"),
    ("after", "only queues after this name: the `next` of the previous page"),
)

ROUTES = (
    Route(
        "GET",
        _OF_QUEUE,
        list_consumers,
        "List the consumers of a queue",
        returns=ConsumersResponse,
        parameters=PAGE_PARAMETERS,
        problems=(404, 429),
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
        _ONE + "/acknowledged",
        wait_acknowledged,
        "Wait until a consumer has acknowledged a position",
        returns=AcknowledgedResponse,
        parameters=(
            ("position", "position of the record"),
            ("wait", "seconds to wait if it is not acknowledged yet; at most 60"),
        ),
        problems=(404, 410, 429),
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
