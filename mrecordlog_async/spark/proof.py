"""Whether a log still matches a checkpoint: what to request, and what the responses mean. Pure.

A log goes back when a snapshot is restored, when a power failure loses unsynced records under a weak policy, or when a
live copy replaces it. Positions do not show it: they grow past the checkpoint again. So each position carries a mark,
and if the log was opened since:

1. a position above the one that the log was opened at went back: this opening assigned it to a different record
2. the record before the position must have the digest it had when it was read, as long as it is retained

No request is sent while the opening is that of the mark. Neither rule detects a log that went back and was opened once
more before it was checked, if the record at the same position is equal byte for byte or is truncated.

A queue that is no longer listed, or was recreated, is looked up by its id: if it was read to its end, its deletion lost
nothing; otherwise, or if the service does not know the id, its remaining records count as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.checkpoint import Checkpoint, Mark
from mrecordlog_async.spark.option_values import OptionError


@dataclass(frozen=True, slots=True)
class Listed:
    """One server's listing.

    Attributes:
        queues: the subscribed queues, by name.
        log: identifies the log; "" if the service does not state it.
        opening: identifies the log's current opening.
        opened: queue id → the next position when the log was opened.
    """

    queues: Mapping[str, QueueSummary]
    log: str = ""
    opening: str = ""
    opened: Mapping[int, int] = field(default_factory=dict)


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


def questions(known: Checkpoint, server: str, listed: Listed, includes: Callable[[str], bool]) -> Questions:
    """Return what must be requested from *server* before its positions can be trusted."""
    found = Questions()
    marks = known.marks.get(server, {})
    for queue, (queue_id, position) in known.positions.get(server, {}).items():
        if not includes(queue):
            continue
        summary = listed.queues.get(queue)
        if summary is None or summary.id != queue_id:
            found.gone[queue] = queue_id
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


def refuse_renamed(known: Mapping[str, str], listed: Iterable[tuple[str, str]]) -> None:
    """Raise OptionError if a log is named twice, or has a different name than in the checkpoint.

    Args:
        known: server → log, from the checkpoint.
        listed: the current (server, log) pairs.
    """
    names: dict[str, str] = {log: server for server, log in known.items() if log}
    seen: dict[str, str] = {}
    for server, log in listed:
        if not log:
            continue
        if log in seen:
            raise OptionError(f"servers: {seen[log]!r} and {server!r} are addresses of the same log; name it once")
        seen[log] = server
        before = names.get(log, server)
        if before != server and server not in known:
            raise OptionError(
                f"servers: {server!r} is the log that the checkpoint knows as {before!r}; under another name all of it "
                f"would be reread. Name it {before!r}"
            )
