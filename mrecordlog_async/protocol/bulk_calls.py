"""Every operation of the API on many queues, once: its request and its response. Pure.

Services limit how many queues one request names (`QUEUES_AT_ONCE`): a caller cuts longer lists into `parts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from mrecordlog_async.options import QueueOptions, check_type
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.attempts import Repeat
from mrecordlog_async.protocol.bulk_schemas import (
    CreateManyResponse,
    FetchRange,
    FetchRequest,
    PlanRequest,
    PositionOne,
    PositionsRequest,
    PositionsResponse,
    QueuePlan,
    QueuePosition,
    QueueTruncated,
    TruncateManyRequest,
    TruncateManyResponse,
    TruncateOne,
)
from mrecordlog_async.protocol.calls import JSON, QUEUES_AT_ONCE, ServiceCall, posted
from mrecordlog_async.protocol.consumer_schemas import (
    AcknowledgedOne,
    AcknowledgeManyRequest,
    AcknowledgeManyResponse,
    AcknowledgeOne,
    AttachedOne,
    AttachManyRequest,
    AttachManyResponse,
)
from mrecordlog_async.protocol.responses import decoded
from mrecordlog_async.protocol.schemas import QueuesResponse, Response, says
from mrecordlog_async.protocol.wire_decoder import Block, decode

T = TypeVar("T")


class PlansResponse(Response, frozen=True):
    """The parts of a `PlanResponse` that a reader needs."""

    queues: Annotated[list[QueuePlan], says("One plan for each queue of the request, in its order.")]


def parts(items: Sequence[T], size: int = QUEUES_AT_ONCE) -> Iterator[Sequence[T]]:
    """Cut *items* into parts of at most *size*."""
    return (items[at : at + size] for at in range(0, len(items), size))


def listing(limit: int, *, after: str | None, changed_since: str) -> ServiceCall[QueuesResponse]:
    """Read the queues after *after*, or what has changed since the ETag *changed_since*."""
    tag = changed_since.removeprefix("W/").strip('"')
    query = {"limit": str(limit)} | ({"changed_since": tag} if after is None else {"after": after})
    return ServiceCall("GET", "/v1/queues", partial(decoded, kind=QueuesResponse), query)


def positions_at(time: datetime, queues: Mapping[str, int], opening: str | None) -> ServiceCall[list[QueuePosition]]:
    """Read where the records begin that were stored at *time* or later. queues: name → id."""
    named = [PositionOne(queue, queue_id) for queue, queue_id in queues.items()]
    request = PositionsRequest(time.isoformat(), named, opening or None)
    return posted("/v1/positions", request, lambda reply: decoded(reply, PositionsResponse).queues)


def plan(request: PlanRequest) -> ServiceCall[list[QueuePlan]]:
    """Read how far limits reach, and pieces to read in parallel."""
    return posted("/v1/plan", request, lambda reply: decoded(reply, PlansResponse).queues)


def fetch(ranges: Iterable[FetchRange], *, payload: bool) -> ServiceCall[list[Block]]:
    """Read ranges as blocks, in their order."""
    request = FetchRequest(list(ranges), payload)
    call = posted("/v1/fetch", request, lambda reply: list(decode(reply.body, positions=not payload)))
    return call._replace(accept=wire.CONTENT_TYPE)


def create_queues(names: Iterable[str], *, exist_ok: bool, options: QueueOptions | None) -> ServiceCall[int]:
    """Create queues, all or none; the result is how many were created."""
    if isinstance(names, str | bytes):
        raise TypeError(f"queues takes an iterable of names, not a single one; pass [{names!r}]")
    if options is not None:
        check_type("options", options, QueueOptions)
    body = msgspec.json.encode({"queues": list(names), "exist_ok": exist_ok, "options": options})
    repeat = Repeat.FREELY if exist_ok else Repeat.NEVER
    read = partial(decoded, kind=CreateManyResponse)
    return ServiceCall("POST", "/v1/create", lambda reply: read(reply).created, {}, body, JSON, repeat=repeat)


def truncate(queues: Iterable[TruncateOne], opening: str | None) -> ServiceCall[list[QueueTruncated]]:
    """Truncate many queues, each as far as its consumers allow."""
    request = TruncateManyRequest(list(queues), opening or None, up_to_consumers=True)
    return posted("/v1/truncate", request, lambda reply: decoded(reply, TruncateManyResponse).queues)


def attach(
    consumer: str, queues: Sequence[str], *, owner: str | None, take_over: bool
) -> ServiceCall[list[AttachedOne]]:
    """Become the holder of *consumer* on *queues*; it is created where it does not exist."""
    request = AttachManyRequest(consumer, list(queues), create=True, owner=owner, take_over=take_over)
    return posted("/v1/attach", request, lambda reply: decoded(reply, AttachManyResponse).queues)


def acknowledge(consumers: Iterable[AcknowledgeOne], opening: str | None) -> ServiceCall[list[AcknowledgedOne]]:
    """Acknowledge many queues, each up to a position."""
    request = AcknowledgeManyRequest(list(consumers), opening or None)
    return posted("/v1/acknowledge", request, lambda reply: decoded(reply, AcknowledgeManyResponse).consumers)
