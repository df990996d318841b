"""Checks whether a log's queues still match a checkpoint: what to request, and what the responses mean. Pure.

A queue that is no longer listed, or was recreated, is looked up by its id: if it was read to its end, its deletion lost
nothing; otherwise, or if the service does not know the id, its remaining records count as lost.

Whether the log went back is decided by its history (`history`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.settings.offset import At, Offset


@dataclass(frozen=True, slots=True)
class Listed:
    """Listing of a service."""

    queues: Mapping[str, QueueSummary]  # its queues by name, sorted; in a query those that are subscribed
    log: str = ""  # the log's public id; "" if the service does not state it
    opening: str = ""  # identifies the service's current opening of the log
    opened: Mapping[int, int] = field(default_factory=dict)  # queue id → the next position when the log was opened
    at: At | None = None  # the log's state, no older than *queues*; None if nothing was ever stored in it
    server: str = ""  # the name of the server that has the log; "" if it is the listing's key


def gone(offset: Offset, log: str, listed: Listed, includes: Callable[[str], bool]) -> dict[str, int]:
    """Return queue → id of what is in *offset* and no longer listed under that id: where it ended must be requested."""
    found: dict[str, int] = {}
    for queue, (queue_id, _) in offset.positions.get(log, {}).items():
        summary = listed.queues.get(queue)
        is_listed = summary is not None and summary.id == queue_id
        if not is_listed and (summary is not None or includes(queue)):  # a listing has only what is subscribed
            found[queue] = queue_id
    return found


def went_back(summary: QueueSummary, position: int) -> str | None:
    """Return the evidence that the log went back below *position*, or None if there is none."""
    if position > summary.next_position:
        return f"the checkpoint continues at position {position}, but the log ends at {summary.next_position}"
    return None
