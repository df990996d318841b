"""What to read next, and in which pieces. Pure: offsets and listings in, offsets and partitions out.

One micro-batch, in this order (`stream` does the talking, every decision is here):

1. `check`   start against what the servers list: positions that still hold, and what was lost
2. `truncations`   what the checkpoint has behind it and the servers still keep
3. `pin`   queues that start does not know: they enter the end where reading will begin, without a record
4. `shares`   the trigger's limit, split over the servers by what each has
5. `assemble`   the end offset; start itself where nothing is new, because Spark compares offsets as text
6. `spans`   start and end to ranges, `pack` ranges to partitions

Positions are `{server: {queue: [id, next]}}`: the queue's incarnation, and the next position to read. An offset carries
them with the marks that prove them (`checkpoint`); what the marks show is decided in `proof`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import POSITION_MAX, QueueSummary
from mrecordlog_async.spark.checkpoint import Mark, Offset
from mrecordlog_async.spark.options import EARLIEST, LATEST, OptionError, Positions, Subscription
from mrecordlog_async.spark.proof import Answers, Listed, went_back

K = TypeVar("K", bound=Hashable)

Listing = Mapping[str, QueueSummary]
"""queue → where it stands, of one server."""

Listings = Mapping[str, Listing]
"""server → its listing; a server that could not be reached is missing."""

RECORD_COST = 200
"""A record costs a task about as much as so many bytes of payload, next to its own."""

SMALL_PARTITION_COST = 8 << 20
"""Less is not worth a second task: one costs 35 to 55 ms whatever it does, as 20,000 records of 200 bytes do."""


class DataLossError(RecordLogError):
    """Records that this reader owed its user are gone, or the queue is not the one it knew."""


class Range(NamedTuple):
    """Positions lo … hi - 1 of one queue, which hold *records* records; fewer than hi - lo where there are gaps."""

    queue: str
    id: int
    lo: int
    hi: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Partition:
    """What one task reads: ranges of one server, fetched with one request."""

    server: str
    ranges: tuple[Range, ...]

    @property
    def records(self) -> int:
        """How many records the task must deliver, no fewer and no more."""
        return sum(each.records for each in self.ranges)


@dataclass(slots=True)
class Checked:
    """What of a start offset still holds. positions: where to go on. lost: one sentence for each loss.

    back: of these, which logs went back, without what can be done.
    sound: server → queue → position, of the queues that are what the offset says: only those may be truncated.
    """

    positions: Offset = field(default_factory=dict)
    sound: Offset = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)


def canonical(offset: Mapping[str, Mapping[str, Sequence[int]]]) -> Offset:
    """Return *offset* with sorted keys, so that equal offsets are equal text."""
    return {
        server: {queue: list(queues[queue]) for queue in sorted(queues)} for server, queues in sorted(offset.items())
    }


def as_text(offset: Offset) -> str:
    """Return *offset* as JSON, as it stands in a checkpoint."""
    return json.dumps(canonical(offset), separators=(",", ":"))


def select(listing: Iterable[QueueSummary], subscription: Subscription) -> dict[str, QueueSummary]:
    """Return the queues of *listing* that are subscribed."""
    return {summary.queue: summary for summary in listing if subscription.includes(summary.queue)}


def check(
    start: Offset,
    surveys: Mapping[str, Listed],
    *,
    marks: Mapping[str, Mapping[str, Mark]] | None = None,
    answers: Mapping[str, Answers] | None = None,
    includes: Callable[[str], bool] = lambda queue: True,
    again: Offset | None = None,
) -> Checked:
    """Compare *start* with what the servers have. again: what to read from its first record, at exactly this position.

    Positions of servers that are not listed and of queues that are not subscribed stay as they are, and are not read:
    when they are wanted again, reading goes on there. Where records are lost the position moves to the first one kept.
    A log that went back is read again from its first record: nothing new is skipped, some records may come twice.
    """
    checked = Checked(positions={server: dict(queues) for server, queues in start.items()})
    for server, listed in surveys.items():
        known, sound = checked.positions.get(server), checked.sound.setdefault(server, {})
        if known is None:
            continue
        seen, answered = (marks or {}).get(server, {}), (answers or {}).get(server, Answers())
        for queue, (queue_id, position) in start[server].items():
            if not includes(queue):
                continue
            summary = listed.queues.get(queue)
            if summary is None or summary.id != queue_id:
                loss = _loss_of_deleted(position, answered.ended.get(queue), again=summary is not None)
            elif (again or {}).get(server, {}).get(queue) == [queue_id, position]:
                known[queue] = [queue_id, summary.first_position]
                continue
            else:
                back = went_back(summary, position, seen.get(queue), listed, answered.tails)
                if back is not None:
                    checked.back.append(f"server {server!r}, queue {queue!r}: {back}: it went back")
                loss = _loss(summary, position, back)
            if loss is not None:
                checked.lost.append(f"server {server!r}, queue {queue!r}: {loss}")
            if summary is None:
                del known[queue]
            elif loss is not None or summary.id != queue_id:
                known[queue] = [summary.id, summary.first_position]
            else:
                sound[queue] = known[queue]
    return checked


def _loss_of_deleted(position: int, ended: int | None, *, again: bool) -> str | None:
    how = "it was deleted and created again" if again else "it was deleted"
    if ended is None:
        return f"{how}; whether it held records from position {position} on is not known"
    return f"{how}; positions {position} to {ended - 1} were not read" if ended > position else None


def _loss(summary: QueueSummary, position: int, back: str | None) -> str | None:
    if back is not None:
        first = summary.first_position
        return (
            f"{back}: it went back. Without failOnDataLoss all that it holds is read again from position {first}; "
            "nothing is skipped, and records that were read before come twice"
        )
    if max(position, summary.began) < summary.first_position:
        return f"positions {position} to {summary.first_position - 1} were truncated before they were read"
    return None


def truncations(sound: Offset, listings: Listings) -> Offset:
    """Return what may be truncated: server → queue → [id, last position to go], only where something is left to go."""
    found: Offset = {}
    for server, queues in sound.items():
        listing = listings[server]
        due = {
            queue: [queue_id, position - 1]
            for queue, (queue_id, position) in queues.items()
            if listing[queue].first_position < position <= listing[queue].next_position
        }
        if due:
            found[server] = due
    return found


def refuse_unknown_queues(
    start: Offset, listings: Listings, servers: Iterable[str], subscription: Subscription, *offsets: str | Positions
) -> None:
    """Raise OptionError for queues that options name and that do not exist.

    A name that is misspelt would be read as nothing. Queues that *start* knows, and servers that it knows or that do
    not answer, are left to `check`: what options say of positions is for the first start.
    """
    known = {queue for queues in start.values() for queue in queues}
    if subscription.names is not None and set(servers) <= set(listings):
        there = {queue for listing in listings.values() for queue in listing}
        unknown = sorted(subscription.names - there - known)
        if unknown:
            raise OptionError(
                f"subscribe: no server has a queue {unknown[0]!r}; create it first, or use subscribePattern for queues "
                "that come later"
            )
    for positions in offsets:
        for server, queues in {} if isinstance(positions, str) else positions.items():
            unknown = sorted(set(queues) - set(listings.get(server, queues))) if server not in start else []
            if unknown:
                raise OptionError(f"startingOffsets, endingOffsets: server {server!r} has no queue {unknown[0]!r}")


def pin(start: Offset, listings: Listings, starting: str | Positions) -> tuple[Offset, list[str]]:
    """Return where to begin in queues that *start* does not know, and what of *starting* cannot be.

    `startingOffsets` speaks of servers seen for the first time; a queue that is made later is read from its first
    position, or its records would be skipped.
    """
    pinned: Offset = {}
    lost: list[str] = []
    for server, listing in listings.items():
        fresh = server not in start
        known = start.get(server, {})
        pinned[server] = {}
        for queue, summary in listing.items():
            if queue in known:
                continue
            position, loss = place(starting if fresh else "earliest", server, summary)
            pinned[server][queue] = [summary.id, position]
            if loss is not None:
                lost.append(loss)
    return pinned, lost


def place(
    wanted: str | Positions, server: str, summary: QueueSummary, *, absent: int = EARLIEST
) -> tuple[int, str | None]:
    """Return the position that *wanted* means for a queue, moved to where it has records, and the loss this is."""
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
    loss = f"server {server!r}, queue {summary.queue!r}: position {position} is not in {first} to {following}"
    return min(max(position, first), following), loss


def backlog(positions: Mapping[str, Sequence[int]], listing: Listing) -> int:
    """Estimate how many records are to be read; exact where positions have no gaps."""
    return sum(
        min(listing[queue].next_position - position, listing[queue].records)
        for queue, (_, position) in positions.items()
        if queue in listing
    )


def shares(limit: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Split *limit* in proportion to *weights*, at least 1 for each that has any; the sum exceeds it only by that."""
    total = sum(weights.values())
    return {name: max(1, limit * weight // total) for name, weight in weights.items() if weight > 0}


def assemble(start: Offset, positions: Offset, ends: Offset, pinned: Offset) -> Offset:
    """Return the end offset: *positions*, moved to *ends*, and the *pinned*. *start* itself if nothing is new."""
    end: Offset = {}
    for part in (positions, ends, pinned):
        for server, queues in part.items():
            end.setdefault(server, {}).update(queues)
    end = canonical(end)
    return start if end == start else end


def moving(start: Offset, end: Offset) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield (server, queue, id, lo, hi) where *end* is ahead of *start* in the same queue; a pinned one is not read."""
    for server, queues in end.items():
        known = start.get(server, {})
        for queue, (queue_id, hi) in queues.items():
            before = known.get(queue)
            if before is not None and before[0] == queue_id and before[1] < hi:
                yield server, queue, queue_id, before[1], hi


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """How much one task is to read: a cost in bytes, and a number of records."""

    cost: int
    records: int


def partition_size(
    ranges: Iterable[Range], partitions_min: int | None, records_max: int | None, cores: int
) -> PartitionSize:
    """Choose the size: one partition a core, but none so small that its task costs more than it reads."""
    costs = [_cost(each) for each in ranges]
    total = sum(costs)
    wanted = -(-total // partitions_min) if partitions_min else max(-(-total // cores), SMALL_PARTITION_COST)
    return PartitionSize(max(1, wanted), records_max or POSITION_MAX)


def pack(server: str, ranges: Iterable[Range], size: PartitionSize) -> list[Partition]:
    """Pack *ranges*, in order, into partitions of about *size*.

    A range without gaps is cut where it fits. One with gaps stays whole: only the server knows where its records lie,
    and hands out pieces that are small already.
    """
    partitions: list[Partition] = []
    gathered: list[Range] = []
    cost, records = size.cost, size.records

    for each in ranges:
        rest: Range | None = each if each.records else None
        while rest is not None:
            head, tail = _cut(rest, cost, records)
            fits = head.records <= records or not gathered
            if fits:
                _gather(gathered, head)
                cost, records, rest = cost - _cost(head), records - head.records, tail
            if not fits or cost <= 0 or records <= 0:
                partitions.append(Partition(server, tuple(gathered)))
                gathered, cost, records = [], size.cost, size.records
    if gathered:
        partitions.append(Partition(server, tuple(gathered)))
    return partitions


def _cost(each: Range) -> int:
    return each.bytes + each.records * RECORD_COST


def _cut(whole: Range, cost: int, records: int) -> tuple[Range, Range | None]:
    """Return the head of *whole* that costs at most *cost* and has at most *records*, and the rest."""
    return _cut_at(whole, min(whole.records, records, max(1, cost * whole.records // _cost(whole))))


def _cut_at(whole: Range, take: int) -> tuple[Range, Range | None]:
    if take == whole.records or not _dense(whole):
        return whole, None
    size = whole.bytes * take // whole.records
    middle = whole.lo + take
    head = whole._replace(hi=middle, records=take, bytes=size)
    return head, whole._replace(lo=middle, records=whole.records - take, bytes=whole.bytes - size)


def _dense(each: Range) -> bool:
    return each.records == each.hi - each.lo


def cut_range(whole: Range, size: int, records: int) -> tuple[Range, Range | None]:
    """Return the head of *whole* with about *size* bytes and at most *records*, at least one, and the rest."""
    take = min(whole.records, max(records, 1), max(1, size * whole.records // max(whole.bytes, 1)))
    return _cut_at(whole, take)


def _gather(gathered: list[Range], head: Range) -> None:
    """Add *head*, joined to the last range where it goes on with it and both can be cut again anywhere."""
    last = gathered[-1] if gathered else None
    if (
        last is not None
        and _dense(last)
        and _dense(head)
        and (last.queue, last.id, last.hi) == (head.queue, head.id, head.lo)
    ):
        gathered[-1] = last._replace(hi=head.hi, records=last.records + head.records, bytes=last.bytes + head.bytes)
    else:
        gathered.append(head)
