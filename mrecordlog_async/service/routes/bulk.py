"""Routes that read and truncate many queues; `protocol/bulk_schemas` says what they promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime
from typing import TypeVar

import msgspec

from mrecordlog_async.errors import ConsumerBehindError, QueueNotFoundError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import MIB
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.bulk_schemas import (
    CreateManyRequest,
    CreateManyResponse,
    FetchRequest,
    PlanRequest,
    PlanResponse,
    PlanStart,
    PositionOne,
    PositionsRequest,
    PositionsResponse,
    QueuePlan,
    QueuePosition,
    QueueStatus,
    QueueTruncated,
    TruncateManyRequest,
    TruncateManyResponse,
    TruncateOne,
)
from mrecordlog_async.protocol.problems import detail_of
from mrecordlog_async.service.http import PIECE_BYTES, HttpRequest, HttpResponse, Stream
from mrecordlog_async.service.reading.fetch import WINDOW_BYTES, Fetcher
from mrecordlog_async.service.reading.parameters import check_query, time_of_text
from mrecordlog_async.service.reading.plan import Planner
from mrecordlog_async.service.reading.queue_checks import check_entries, status_of, summary_of
from mrecordlog_async.service.routes.queue_options import options_of_request
from mrecordlog_async.service.routes.route import (
    Route,
    decode_control,
    encode_list,
    json_of,
    json_response,
)
from mrecordlog_async.service.sending import HELD_BYTES
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.turns import Turns

Body = TypeVar("Body")
One = TypeVar("One")
Result = TypeVar("Result")

CALLS_AT_ONCE = 1_000
"""Calls that wait for the writer at once: starting and finishing this many takes 20 ms."""

LARGE_BYTES = MIB
"""A larger body of a bulk request waits until no other one is worked on."""


@asynccontextmanager
async def bulk_request(
    service: Service, request: HttpRequest, decoder: msgspec.json.Decoder[Body], *, strings_max: int = 0
) -> AsyncIterator[tuple[MultiRecordLog, Body]]:
    """Receive and decode the body of a bulk request; it is charged until the end of the `with` block.

    strings_max: how many of its entries may be plain strings. Few such blocks run at once (`HEAVY`), and one with a
    large body. An empty body means `{}`.
    """
    check_query(request, ())
    log = service.log
    with service.bodies.budget.charge() as charge:
        body = await service.bodies.receive_control(request, charge)
        # Only now: a body that arrives slowly must not keep others out. What a large one is decoded into, and what is
        # found for it, takes up to eight times its size; so there is one of them at a time.
        async with service.heaviest if len(body) > LARGE_BYTES else nullcontext(), service.heavy:
            requested = await decode_control(decoder, body or b"{}", service.options.entries, strings_max)
            del body  # decoded, and not kept during the work; it stays charged
            yield log, requested


async def positions_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Show where the records of many queues begin that were stored at a time or later."""
    async with bulk_request(service, request, _positions_decoder) as (log, requested):
        service.check_opening(requested.opening)
        time, turns = time_of_text(requested.time, "time"), Turns()
        wanted = await _requested_or_all(service, requested.queues, PositionOne)
        ids: list[int] = []
        for one in wanted:
            extent = log.inspection.extent(one.queue)
            ids.append(0 if extent is None else extent[0])
            await turns.rest()
        found: dict[int, QueuePosition] = {}
        for at in sorted(range(len(wanted)), key=ids.__getitem__):  # as records are on the disk: reads share pieces
            found[at] = await _position_at(log, wanted[at], time)
            await turns.rest()
        parts = [b'{"queues":[', *await encode_list([found[at] for at in range(len(wanted))]), b"]}"]
    return json_of(service, parts)


async def _position_at(log: MultiRecordLog, requested: PositionOne, time: datetime) -> QueuePosition:
    summary = summary_of(log, requested.queue)
    status = status_of(summary, requested.id)
    if summary is None or status is not QueueStatus.OK:
        return QueuePosition(requested.queue, status, summary.id if summary is not None else 0)
    try:
        return QueuePosition(
            requested.queue, status, summary.id, await log.inspection.position_at(requested.queue, time)
        )
    except QueueNotFoundError:  # deleted meanwhile
        return QueuePosition(requested.queue, QueueStatus.MISSING)


async def plan_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Return ranges with counts and cut points, for start positions and limits."""
    async with bulk_request(service, request, _plan_decoder) as (log, requested):
        service.check_opening(requested.opening)
        starts = await _requested_or_all(service, requested.queues, PlanStart)
        plans = await Planner(log, requested, service.options).plan(starts)
        parts = await _encode_plans(plans)
    return json_of(service, parts)


async def _requested_or_all(service: Service, requested: list[One] | None, one: Callable[[str], One]) -> list[One]:
    """Return what was requested of queues; without a request, *one* for each queue."""
    if requested is not None:
        return requested
    names = await service.names.sorted(service.log)
    check_entries(len(names), service.options)
    return [one(name) for name in names]


async def _encode_plans(plans: list[QueuePlan]) -> list[bytes]:
    records, size = sum(one.records for one in plans), sum(one.bytes for one in plans)
    listed = await encode_list(plans)
    return [b'{"queues":[', *listed, b'],"records":%d,"bytes":%d}' % (records, size)]


async def fetch_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Send many ranges as one stream of runs; all are checked before the first byte."""
    async with bulk_request(service, request, _fetch_decoder) as (log, requested):
        fetcher = Fetcher(log, requested.ranges)
        await fetcher.check(service.options)
    # Outside the block: a reader may take minutes, and what it holds is charged to the responses.
    with service.sending.making(WINDOW_BYTES + HELD_BYTES) as out:
        if not requested.payload:
            positions = wire.gather(wire.encode_positions(await fetcher.positions()), PIECE_BYTES)
            return Stream(positions, out, wire.CONTENT_TYPE)
        parts, size = await fetcher.window(), None  # before the response begins: damage has its status
        if fetcher.is_done:
            out.add(sum(len(run.payload) for part in parts for run in part.held) - WINDOW_BYTES)
            size = fetcher.size_of(parts)
        return Stream(fetcher.body(parts), out, wire.CONTENT_TYPE, None, size)


async def create_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Create queues in one step, all or none."""
    most = service.options.entries
    async with bulk_request(service, request, _create_decoder, strings_max=most) as (log, requested):
        check_entries(len(requested.queues), service.options)
        options = None if requested.options is None else options_of_request(requested.options)
        created = await log.create_queues(requested.queues, exist_ok=requested.exist_ok, options=options)
    return json_response(CreateManyResponse(created))


async def for_each(items: Sequence[One], call: Callable[[One], Awaitable[Result]]) -> list[Result]:
    """Return what *call* returns for each item, in order."""
    results: list[Result] = []
    for at in range(0, len(items), CALLS_AT_ONCE):
        results += await asyncio.gather(*map(call, items[at : at + CALLS_AT_ONCE]))
    return results


async def truncate_many(service: Service, request: HttpRequest) -> HttpResponse:
    """Truncate many queues; each truncate is carried out, and durable, or refused independently.

    With up_to_consumers, a queue whose consumer is behind is truncated up to where that consumer stands.
    """
    async with bulk_request(service, request, _truncate_decoder) as (log, requested):
        service.check_opening(requested.opening)
        results = await for_each(requested.queues, lambda one: _truncate(log, one, requested.up_to_consumers))
        parts = [b'{"queues":[', *await encode_list(results), b"]}"]
    return json_of(service, parts)


async def _truncate(log: MultiRecordLog, requested: TruncateOne, up_to_consumers: bool) -> QueueTruncated:
    summary = summary_of(log, requested.queue)
    status = status_of(summary, requested.id)
    if summary is None:
        return QueueTruncated(requested.queue, status)
    first, next_position = summary.first_position, summary.next_position
    # The log would remove everything and move the next position there, which is for copies of a queue alone.
    if status is QueueStatus.OK and requested.position >= next_position:
        status = QueueStatus.AHEAD
    if status is not QueueStatus.OK:
        return QueueTruncated(requested.queue, status, 0, first, next_position)
    try:
        # With the id that was checked: a queue that is deleted and created again meanwhile keeps its records.
        dropped = await log.truncate(requested.queue, requested.position, queue_id=summary.id)
    except QueueNotFoundError:  # deleted meanwhile
        return QueueTruncated(requested.queue, QueueStatus.MISSING)
    except ConsumerBehindError as error:
        behind = error
    else:
        return QueueTruncated(requested.queue, status, dropped, max(first, requested.position + 1), next_position)
    dropped = 0
    if up_to_consumers and behind.consumer_position > first:
        # The log checks the consumers again: if one moved back or was created since, nothing is dropped.
        with suppress(QueueNotFoundError, ConsumerBehindError):
            dropped = await log.truncate(requested.queue, behind.consumer_position - 1, queue_id=summary.id)
            first = behind.consumer_position
    return QueueTruncated(requested.queue, QueueStatus.BEHIND, dropped, first, next_position, detail_of(behind))


_positions_decoder = msgspec.json.Decoder(PositionsRequest)
_plan_decoder = msgspec.json.Decoder(PlanRequest)
_fetch_decoder = msgspec.json.Decoder(FetchRequest)
_create_decoder = msgspec.json.Decoder(CreateManyRequest)
_truncate_decoder = msgspec.json.Decoder(TruncateManyRequest)

ROUTES = (
    Route(
        "POST",
        "/v1/positions",
        positions_many,
        "Find the first records of many queues stored at a time or later",
        takes=PositionsRequest,
        returns=PositionsResponse,
        problems=(400, 409, 413, 429),
    ),
    Route(
        "POST",
        "/v1/plan",
        plan_many,
        "Plan what to read of many queues",
        takes=PlanRequest,
        returns=PlanResponse,
        problems=(400, 409, 413, 429),
    ),
    Route(
        "POST",
        "/v1/fetch",
        fetch_many,
        "Read many ranges in one stream of runs",
        takes=FetchRequest,
        formats=(wire.CONTENT_TYPE,),
        problems=(400, 404, 409, 410, 413, 429),
    ),
    Route(
        "POST",
        "/v1/create",
        create_many,
        "Create many queues, all or none",
        takes=CreateManyRequest,
        returns=CreateManyResponse,
        problems=(400, 409, 413, 429, 507),
    ),
    Route(
        "POST",
        "/v1/truncate",
        truncate_many,
        "Truncate many queues",
        takes=TruncateManyRequest,
        returns=TruncateManyResponse,
        problems=(400, 409, 413, 429, 507),
    ),
)
