"""Reads of one client: pages of runs, from a position on."""

from __future__ import annotations

from typing import NamedTuple

from mrecordlog_async.client.responses import Reply, ServiceError
from mrecordlog_async.client.transport import Transport, path_of
from mrecordlog_async.model import Run
from mrecordlog_async.protocol import wire, wire_decoder

PAGE_BYTES = 8 * 1024 * 1024


class Page(NamedTuple):
    """Runs of one queue. next_position: where the next page starts. queue_id: the incarnation that was read."""

    runs: list[Run]
    next_position: int
    queue_id: int


async def read_page(
    transport: Transport, queue: str, position: int, stop: int | None, *, wait_seconds: int = 0
) -> Page:
    """Return runs of *queue* from *position* on, or from the first retained record after it."""
    query = {"start": str(position), "max_bytes": str(PAGE_BYTES)}
    if stop is not None:
        query["stop"] = str(stop)
    if wait_seconds:
        query["wait"] = str(wait_seconds)
    while True:
        try:
            reply = await transport.send(
                "GET",
                path_of(queue, "records"),
                query=query,
                accept=wire.CONTENT_TYPE,
                wait_seconds=wait_seconds,
            )
            return _page_of(reply)
        except ServiceError as error:
            first = error.problem.get("first_position")
            # Each refusal names a later position, so this loop ends when truncates pause.
            if error.code != "truncated" or type(first) is not int or first <= int(query["start"]):
                raise
            query["start"] = str(first)


def _page_of(reply: Reply) -> Page:
    """Return the page in *reply*; ServiceError if the service did not write it."""
    try:
        runs = [block.run() for block in wire_decoder.decode(reply.body)]
        return Page(runs, int(reply.headers["X-Next-Position"]), int(reply.headers["X-Queue-Id"]))
    except (ValueError, KeyError) as error:  # a WireError is a ValueError
        raise ServiceError(reply.status, "unreadable", f"not a response of this service: {error}") from None
