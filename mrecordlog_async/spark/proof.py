"""Whether a log's queues still match a checkpoint: what to request, and what the responses mean. Pure.

A queue that is no longer listed, or was recreated, is looked up by its id: if it was read to its end, its deletion lost
nothing; otherwise, or if the service does not know the id, its remaining records count as lost.

Whether the log went back is decided by its history (`history`). Only positions of an offset of version 2 have a mark
instead, which is compared once. If the log was opened since:

1. a position above the one that the log was opened at went back: this opening assigned it to a different record
2. the record before the position must have the digest it had when it was read, as long as it is retained
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.checkpoint import At, Checkpoint, Mark


@dataclass(frozen=True, slots=True)
class Listed:
    """One server's listing.

    Attributes:
        queues: the subscribed queues, by name.
        log: the log's public id; "" if the service does not state it.
        opening: identifies the service's current opening of the log.
        opened: queue id → the next position when the log was opened.
        at: the log's state, no older than *queues*; None if nothing was ever stored in it.
        server: the name of the server that has the log; "" if it is the listing's key.
    """

    queues: Mapping[str, QueueSummary]
    log: str = ""
    opening: str = ""
    opened: Mapping[int, int] = field(default_factory=dict)
    at: At | None = None
    server: str = ""


@dataclass(slots=True)
class Questions:
    """What one server's listing leaves open.

    Attributes:
        gone: queue → id, of queues that are no longer listed under that id.
        tails: queue → [id, position], of queues whose record before that position must be compared.
    """

    gone: dict[str, int] = field(default_factory=dict)
    tails: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Answers:
    """What a server returned for `Questions`.

    Attributes:
        ended: queue → where the incarnation that is no longer listed ended; None if the service does not know.
        tails: queue → digest of the record before the position; None if it is not retained.
    """

    ended: dict[str, int | None] = field(default_factory=dict)
    tails: dict[str, int | None] = field(default_factory=dict)


def questions(known: Checkpoint, log: str, listed: Listed, includes: Callable[[str], bool]) -> Questions:
    """Return what must be requested of *log* before its positions can be trusted."""
    found = Questions()
    marks = known.marks.get(log, {})
    queues = listed.queues
    for queue, (queue_id, position) in known.positions.get(log, {}).items():
        summary = queues.get(queue)
        if summary is None or summary.id != queue_id:
            if summary is not None or includes(queue):  # a listing has only what is subscribed
                found.gone[queue] = queue_id
            continue
        if not marks:
            continue
        mark = marks.get(queue)
        unproved = mark is not None and mark.tail is not None and mark.opening != listed.opening
        if unproved and summary.first_position < position <= summary.next_position:
            found.tails[queue] = [queue_id, position]
    return found


def went_back(
    summary: QueueSummary, position: int, mark: Mark | None, listed: Listed, tails: Mapping[str, int | None]
) -> str | None:
    """Return the evidence that the log went back below *position*, or None if there is none."""
    if position > summary.next_position:
        return f"the checkpoint continues at position {position}, but the log ends at {summary.next_position}"
    if mark is None or mark.opening == listed.opening:
        return None
    opened = listed.opened.get(summary.id, 0)
    if position > opened:
        return f"the checkpoint continues at position {position}, but the log ended at {opened} when it was last opened"
    tail = tails.get(summary.queue)
    if mark.tail is not None and tail is not None and tail != mark.tail:
        return f"the record before position {position} is not the one that was read"
    return None
