"""Appends of one client: one request, and the check that its response is about it."""

from __future__ import annotations

from mrecordlog_async.client.responses import ServiceError, decoded
from mrecordlog_async.client.retry import Repeat
from mrecordlog_async.client.transport import Transport, path_of
from mrecordlog_async.model import Run
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.schemas import AppendResponse

OCTET_STREAM = "application/octet-stream"


async def send_append(
    transport: Transport, queue: str, position: int | None, records: list[bytes]
) -> tuple[AppendResponse, bool]:
    """Append *records*; return the response, and whether the response to an earlier try was lost."""
    body, content_type = _body_of(records, queue)
    reply = await transport.send(
        "POST",
        path_of(queue, "records"),
        query={} if position is None else {"position": str(position)},
        body=body,
        content_type=content_type,
        repeat=Repeat.NEVER if position is None else Repeat.RECOGNIZED,
    )
    response = decoded(reply, AppendResponse)
    count = len(records)
    # A proxy may mix up responses; a response to another request acknowledges nothing.
    if response.records != count or (position is not None and count and response.position != position + count - 1):
        got = f"{response.records} records up to position {response.position}"
        sent = f"{count} at position {position}" if position is not None else f"{count}"
        raise ServiceError(reply.status, "unreadable", f"the response is about {got}, the request about {sent}")
    return response, reply.repeated


def _body_of(records: list[bytes], queue: str) -> tuple[bytes, str]:
    """Return body and content type: a single record travels as it is."""
    if len(records) == 1:
        return records[0], OCTET_STREAM
    runs = [Run.of(0, records)] if records else []
    return b"".join(wire.encode([wire.QueueRuns(queue, 0, runs)])), wire.CONTENT_TYPE
