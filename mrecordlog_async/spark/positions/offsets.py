"""Decides what to read next. Pure: offsets and listings in, offsets and ranges out.

One micro-batch, in this order (`stream` sends the requests; every decision is made here):

1. `check`   compare start with what the logs list: which positions are still valid, and what was lost
2. `truncations`   what the checkpoint has committed and the logs still keep
3. `enrol`   queues that are not in start: the end gets the position where reading will begin, without a record
4. `shares`   split the trigger's limit among the logs, in proportion to what each has
5. `assemble`   the end offset; start itself if nothing is new, because Spark compares offsets as text
6. `advanced`   the ranges between start and end, which `partitions` packs into tasks

Positions are `{log: {queue: [id, next]}}`: the queue's incarnation, and the next position to read. The keys are the ids
of logs, here any text. An offset has them with what proves them (`settings.offset`); `history` decides whether a log is
still the one that was read, `proof` what became of a queue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.positions.proof import Listed, went_back
from mrecordlog_async.spark.settings.offset import Positions
from mrecordlog_async.spark.settings.option_values import EARLIEST, LATEST, GivenPositions, OptionError, Subscription

K = TypeVar("K", bound=Hashable)

Listing = Mapping[str, QueueSummary]
"""One log's queues: name → summary."""

Listings = Mapping[str, Listing]
"""log → its listing; a log that could not be reached, or is held back, is missing."""


BY_WHOM = "by another program, or by max_age or drop_oldest of the queue"
"""Causes of a truncate of records that were not read."""


class DataLossError(RecordLogError):
    """Records were deleted before this reader had read them, or a queue was recreated or replaced."""


class HeldBackError(DataLossError):
    """Logs are not what the checkpoint continues, and a batch needs them, or no other log is left (see `history`)."""


@dataclass(slots=True)
class Checked:
    """Parts of a start offset that are still valid."""

    positions: Positions = field(default_factory=dict)  # where to continue
    # The positions of queues that match the offset: only those may be truncated
    intact: Positions = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)  # one sentence for each loss, with advice
    back: list[str] = field(default_factory=list)  # one sentence for each log that went back, without advice


def canonical(offset: Positions) -> Positions:
    """Return *offset* with sorted keys, so that equal offsets are equal text."""
    return {log: {queue: queues[queue] for queue in sorted(queues)} for log, queues in sorted(offset.items())}


def as_text(offset: Positions) -> str:
    """Return *offset* as JSON, as a checkpoint stores it."""
    return json.dumps(canonical(offset), separators=(",", ":"))


def select(listing: Iterable[QueueSummary], subscription: Subscription) -> dict[str, QueueSummary]:
    """Return the queues of *listing* that are subscribed."""
    if subscription.includes_all:
        return {summary.queue: summary for summary in listing}
    return {summary.queue: summary for summary in listing if subscription.includes(summary.queue)}


def check(
    start: Positions,
    logs: Mapping[str, Listed],
    *,
    ended: Mapping[str, Mapping[str, int | None]] | None = None,
    includes: Callable[[str], bool] = lambda queue: True,
    again: Positions | None = None,
) -> Checked:
    """Compare *start* with what the logs have.

    Positions of logs that are not listed and of queues that are not subscribed are kept and not read: if they are
    subscribed again, reading continues there. If records are lost, the position moves to the first record left. A log
    that went back is reread from its first record: no record is skipped, some may be read twice.

    Args:
        logs: log → its listing; logs that could not be reached, or are held back, are missing.
        ended: log → queue → where the incarnation that is no longer listed ended (see `proof.gone`).
        includes: returns whether a queue is subscribed.
        again: positions whose queues are reread from their first record, because the log went back and was accepted.
    """
    checked = Checked(positions={log: dict(queues) for log, queues in start.items()})
    for log, listed in logs.items():
        checked.intact.setdefault(log, {})
        plain = log not in (again or {})
        intact, queues = checked.intact[log], listed.queues
        for queue, position in start.get(log, {}).items():
            (queue_id, at), summary = position, queues.get(queue)
            # What `_check_queue` would find of most queues in every trigger, in a quarter of its time.
            is_intact = (
                summary is not None and summary.id == queue_id and summary.first_position <= at <= summary.next_position
            )
            if plain and is_intact:
                intact[queue] = position
            elif queue in listed.queues or includes(queue):  # a listing has only what is subscribed
                reread = (again or {}).get(log, {}).get(queue) == position
                _check_queue(checked, log, queue, listed, (ended or {}).get(log, {}).get(queue), reread=reread)
    return checked


def _check_queue(checked: Checked, log: str, queue: str, listed: Listed, ended: int | None, *, reread: bool) -> None:
    """Move the position of one queue to where reading continues, and note in *checked* what is lost."""
    known, shown = checked.positions[log], f"server {listed.server or log!r}, queue {queue!r}"
    (queue_id, position), summary = known[queue], listed.queues.get(queue)
    if summary is None or summary.id != queue_id:
        loss = _loss_of_deleted(position, ended, again=summary is not None)
        if loss is None and summary is not None and summary.began < summary.first_position:
            loss = f"it was deleted and recreated; {_unread(summary.began, summary)}"
    elif reread:
        known[queue] = [queue_id, summary.first_position]
        return
    else:
        back = went_back(summary, position)
        if back is not None:
            checked.back.append(f"{shown}: {back}: it went back")
        loss = _loss(summary, position, back)
    if loss is not None:
        checked.lost.append(f"{shown}: {loss}")
    if summary is None:
        del known[queue]
    elif loss is not None or summary.id != queue_id:
        known[queue] = [summary.id, summary.first_position]
    else:
        checked.intact[log][queue] = known[queue]


def _loss_of_deleted(position: int, ended: int | None, *, again: bool) -> str | None:
    how = "it was deleted and recreated" if again else "it was deleted"
    if ended is None:
        return f"{how}; it is unknown whether it held records from position {position} on"
    return f"{how}; positions {position} to {ended - 1} were not read" if ended > position else None


def _loss(summary: QueueSummary, position: int, back: str | None) -> str | None:
    if back is not None:
        first = summary.first_position
        return (
            f"{back}: it went back. With failOnDataLoss=false all that it holds is reread from position {first}; "
            "nothing is skipped, and records that were read before are read twice"
        )
    return _unread(position, summary) if max(position, summary.began) < summary.first_position else None


def _unread(position: int, summary: QueueSummary) -> str:
    """Return the sentence for records from *position* on that are truncated."""
    return f"positions {position} to {summary.first_position - 1} were truncated before they were read, {BY_WHOM}"


def truncations(intact: Positions, listings: Listings) -> Positions:
    """Return what may be truncated: log → queue → [id, last position]; only queues that still have such records."""
    found: Positions = {}
    for log, queues in intact.items():
        listing = listings[log]
        due = {
            queue: [queue_id, position - 1]
            for queue, (queue_id, position) in queues.items()
            if (summary := listing[queue]).first_position < position <= summary.next_position
        }
        if due:
            found[log] = due
    return found


def refuse_unknown_queues(
    start: Positions,
    listings: Listings,
    servers: Iterable[str],
    subscription: Subscription,
    *offsets: str | GivenPositions,
) -> None:
    """Raise OptionError for queues that options name and that do not exist.

    A misspelt name would silently read nothing. Queues in *start*, and servers that are in it or down, are left to
    `check`: positions given as options apply to the first start only.
    """
    known = {queue for queues in start.values() for queue in queues}
    if subscription.names is not None and set(servers) <= set(listings):
        there = {queue for listing in listings.values() for queue in listing}
        unknown = sorted(subscription.names - there - known)
        if unknown:
            raise OptionError(
                f"subscribe: no server has a queue {unknown[0]!r}; create it first, or use subscribePattern for queues "
                "that will be created later"
            )
    for positions in offsets:
        for server, queues in {} if isinstance(positions, str) else positions.items():
            unknown = sorted(set(queues) - set(listings.get(server, queues))) if server not in start else []
            if unknown:
                raise OptionError(
                    f"startingOffsets, endingOffsets: server {server!r} has no queue {unknown[0]!r}; remove it, or "
                    "correct its name"
                )


def enrol(
    start: Positions,
    listings: Listings,
    starting: str | GivenPositions,
    names: Mapping[str, str] = MappingProxyType({}),
    newest: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Positions, list[str]]:
    """Return the first positions of queues that are not in *start*, and one sentence for each that had to be moved.

    `startingOffsets` applies to logs that are new in the checkpoint. A queue that is created later in a known log is
    read from its first position: otherwise its records would be skipped.

    starting: "earliest", "latest" or positions, by log. names: log → the server's name, for the sentences. newest:
    log → the id above which queues were created after *start* (see `newest_queue_ids`).
    """
    first_positions: Positions = {}
    lost: list[str] = []
    for log, listing in listings.items():
        fresh = log not in start
        known, shown = start.get(log, {}), names.get(log, log)
        first_positions[log] = {}
        for queue, summary in listing.items():
            if queue in known:
                continue
            position, loss = resolve_position(starting if fresh else "earliest", log, summary, shown=shown)
            first_positions[log][queue] = [summary.id, position]
            is_new = log in newest and summary.id > newest[log]
            if loss is None and is_new and summary.began < summary.first_position:
                loss = f"server {shown!r}, queue {queue!r}: {_unread(summary.began, summary)}"
            if loss is not None:
                lost.append(loss)
    return first_positions, lost


def newest_queue_ids(start: Positions, subscription: Subscription, left_out: Collection[str]) -> dict[str, int]:
    """Return the highest id of a queue in *start*, by log; without the logs of *left_out*.

    Ids grow. So if all queues are subscribed, one with a higher id was created after *start*, and what was truncated of
    it is not in the table. That is also so if table and checkpoint were restored from a backup.
    """
    if not subscription.includes_all:  # another subscription may have left an older queue out
        return {}
    known = {log: queues for log, queues in start.items() if log not in left_out}
    return {log: max((at[0] for at in queues.values()), default=0) for log, queues in known.items()}


def resolve_position(
    wanted: str | GivenPositions,
    server: str,
    summary: QueueSummary,
    *,
    absent: int = EARLIEST,
    shown: str | None = None,
) -> tuple[int, str | None]:
    """Return the position that *wanted* means for a queue, moved to where records exist.

    Args:
        wanted: "earliest", "latest" or positions.
        server: the queue's server, as *wanted* names it.
        summary: the queue as it is now.
        absent: the position if *wanted* does not name the queue: `EARLIEST` or `LATEST`.
        shown: the server's name, if *wanted* names it otherwise.

    Returns:
        The position, and a sentence about the records that are lost if it was moved.
    """
    first, following = summary.first_position, summary.next_position
    if isinstance(wanted, str):
        return (following if wanted == "latest" else first), None
    position = wanted.get(server, {}).get(summary.queue, absent)
    if position == EARLIEST:
        return first, None
    if position == LATEST:
        return following, None
    if max(position, summary.began) >= first and position <= following:
        return position, None
    loss = f"server {shown or server!r}, queue {summary.queue!r}: position {position} is not in {first} to {following}"
    return min(max(position, first), following), loss


def backlog(positions: Mapping[str, Sequence[int]], listing: Listing) -> int:
    """Estimate how many records are left to read; exact where positions have no gaps."""
    total = 0
    for queue, (_, position) in positions.items():
        summary = listing.get(queue)
        if summary is not None and summary.next_position != position:  # of most queues, all is read
            total += min(summary.next_position - position, summary.records)
    return total


def shares(limit: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Split *limit* in proportion to *weights*; at least 1 for each weight above 0, even if that exceeds *limit*."""
    total = sum(weights.values())
    return {name: max(1, limit * weight // total) for name, weight in weights.items() if weight > 0}


def assemble(start: Positions, positions: Positions, ends: Positions, first_positions: Positions) -> Positions:
    """Return the end offset: *positions* moved to *ends*, and *first_positions*; *start* itself if nothing is new."""
    end = canonical(joined(positions, first_positions, ends))
    return start if end == start else end


def joined(*parts: Positions) -> Positions:
    """Return all positions of *parts*; where several have a queue, the last one counts."""
    found: Positions = {}
    for part in parts:
        for log, queues in part.items():
            found.setdefault(log, {}).update(queues)
    return found


def advanced(
    start: Positions, end: Positions, first: Mapping[str, Mapping[str, int]] = MappingProxyType({})
) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield (log, queue, id, start, stop) where *end* is ahead of *start*.

    A new or recreated queue is read if *first* says where it begins, otherwise not.
    """
    for log, queues in end.items():
        known, begun = start.get(log, {}), first.get(log, {})
        for queue, (queue_id, stop) in queues.items():
            before = known.get(queue)
            at = before[1] if before is not None and before[0] == queue_id else begun.get(queue, stop)
            if at < stop:
                yield log, queue, queue_id, at, stop
