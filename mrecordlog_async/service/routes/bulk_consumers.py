"""Consumers of many queues: attach and acknowledge in one request, each queue carried out or refused independently."""

from __future__ import annotations

import msgspec

from mrecordlog_async.errors import (
    ConsumerFencedError,
    ConsumerHeldError,
    ConsumerNameError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    LogFullError,
    PositionAheadError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
)
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.names import check_consumer_name
from mrecordlog_async.protocol.consumer_schemas import (
    AcknowledgedOne,
    AcknowledgeManyRequest,
    AcknowledgeManyResponse,
    AcknowledgeOne,
    AttachedOne,
    AttachManyRequest,
    AttachManyResponse,
    ConsumerStatus,
)
from mrecordlog_async.protocol.problems import detail_of
from mrecordlog_async.service.http import HttpRequest, HttpResponse
from mrecordlog_async.service.reading.queue_checks import check_entries, status_of, summary_of
from mrecordlog_async.service.routes.bulk import bulk_request, for_each
from mrecordlog_async.service.routes.consumers import checked_owner
from mrecordlog_async.service.routes.route import Route, encode_list, json_of
from mrecordlog_async.service.service import Service

STATUSES: dict[type[RecordLogError], ConsumerStatus] = {
    QueueNotFoundError: ConsumerStatus.MISSING,
    QueueNameError: ConsumerStatus.MISSING,  # no queue can have it
    ConsumerNotFoundError: ConsumerStatus.NO_CONSUMER,
    ConsumerFencedError: ConsumerStatus.FENCED,
    ConsumerOwnedError: ConsumerStatus.OWNED,
    ConsumerHeldError: ConsumerStatus.HELD,
    PositionAheadError: ConsumerStatus.AHEAD,
    LogFullError: ConsumerStatus.FULL,
}


async def attach_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Become the holder of the consumer of one name on many queues."""
    entries = service.options.entries
    async with bulk_request(service, request, _attach_decoder, strings_max=entries) as (log, wanted):
        check_entries(len(wanted.queues), service.options)
        check_consumer_name(wanted.consumer)
        checked_owner(wanted.owner)
        results = await for_each(wanted.queues, lambda queue: _attach(log, wanted, queue))
        parts = [b'{"queues":[', *await encode_list(results), b"]}"]
    return json_of(service, parts)


async def _attach(log: MultiRecordLog, wanted: AttachManyRequest, queue: str) -> AttachedOne:
    try:
        attached = await log.inspection.attach_consumer(
            queue,
            wanted.consumer,
            create=wanted.create,
            owner=wanted.owner,
            take_over=wanted.take_over,
            if_idle_for=wanted.if_idle_for,
        )
        keep = log.queue_options(queue).keep
    except tuple(STATUSES) as error:
        return AttachedOne(queue, STATUSES[type(error)], detail=detail_of(error))
    status, (queue_id, epoch, position) = ConsumerStatus.OK, attached
    return AttachedOne(queue, status, queue_id, epoch, position, keep=keep)


async def acknowledge_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Acknowledge records of many queues."""
    async with bulk_request(service, request, _acknowledge_decoder) as (log, wanted):
        service.check_opening(wanted.opening)
        results = await for_each(wanted.consumers, lambda one: _acknowledge(log, one))
        parts = [b'{"consumers":[', *await encode_list(results), b"]}"]
    return json_of(service, parts)


async def _acknowledge(log: MultiRecordLog, one: AcknowledgeOne) -> AcknowledgedOne:
    summary = summary_of(log, one.queue)
    status = ConsumerStatus(status_of(summary, one.id))
    if summary is None or status is not ConsumerStatus.OK:
        return AcknowledgedOne(one.queue, one.consumer, status)
    try:
        position = await log.inspection.acknowledge(
            one.queue, one.consumer, one.position, queue_id=summary.id, epoch=one.epoch
        )
    except ConsumerNameError as error:  # no consumer can have it
        return AcknowledgedOne(one.queue, one.consumer, ConsumerStatus.NO_CONSUMER, detail=detail_of(error))
    except tuple(STATUSES) as error:
        return AcknowledgedOne(one.queue, one.consumer, STATUSES[type(error)], detail=detail_of(error))
    return AcknowledgedOne(one.queue, one.consumer, ConsumerStatus.OK, position)


_attach_decoder = msgspec.json.Decoder(AttachManyRequest)
_acknowledge_decoder = msgspec.json.Decoder(AcknowledgeManyRequest)

ROUTES = (
    Route(
        "POST",
        "/v1/attach",
        attach_many,
        "Become the holder of consumers of many queues",
        takes=AttachManyRequest,
        returns=AttachManyResponse,
        problems=(413, 429),
    ),
    Route(
        "POST",
        "/v1/acknowledge",
        acknowledge_many,
        "Acknowledge records of many queues",
        takes=AcknowledgeManyRequest,
        returns=AcknowledgeManyResponse,
        problems=(409, 413, 429),
    ),
)
