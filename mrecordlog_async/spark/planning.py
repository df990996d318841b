"""Plans what a batch reads of one server: its listing is compared with what is stored, and limits become ranges.

A survey is made in the server's own thread, from the state that the output had then. It changes nothing: the batch that
takes it moves the positions, and only once it is committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart, QueuePlan, TruncateOne
from mrecordlog_async.protocol.calls import QUEUES_AT_ONCE
from mrecordlog_async.protocol.schemas import QueueResponse
from mrecordlog_async.spark.log_server import FETCH_BYTES, FETCH_RECORDS, LogListing, LogServer, ReadTask
from mrecordlog_async.spark.losses import ahead, continued, evidence_of_going_back, gone, waiting
from mrecordlog_async.spark.state import DrainState, LogState, QueueAt, ReadRange

RECORD_COST = 200
"""Bytes that cost a task as much as a record does, besides those of its payload."""

TASK_COST = 8 << 20
"""Below this cost, another task is not worth it."""

NOTHING = LogState()

Includes = Callable[[str], bool]

Ends = dict[str, dict[int, int]]
"""log → queue id → the position before which a run ends."""


def everything(name: str) -> bool:
    """Include every queue."""
    return True


@dataclass(frozen=True, slots=True)
class Wish:
    """What a survey may plan.

    Attributes:
        records: Records of the batch at most; None for no limit.
        bytes: Their payload bytes at most.
        piece_records: Records of a range at most, where positions have gaps.
        includes: Whether a queue is subscribed.
        accepts_going_back: Store all of a log that went back again …
        accepted: … except of these, which have done so.
        ends: Where a run ends that stores what the logs held at its start; None for one that does not end.
        begins: Returns where reading begins in the queues of a log that is new; None for their first records.
    """

    records: int | None = None
    bytes: int | None = None
    piece_records: int = FETCH_RECORDS
    includes: Includes = everything
    accepts_going_back: bool = False
    accepted: Container[str] = ()
    ends: Ends | None = None
    begins: Callable[[LogServer, LogListing], Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found at one server, and what a batch may read there.

    Attributes:
        server: The server.
        listing: The subscribed queues of its log.
        known: What was stored of the log when the survey was made; None for nothing.
        after: What is stored once *ranges* are.
        ranges: What to read.
        lost: One sentence for each loss.
        evidence: Why the log is not the one that was read; "" if it is. Then nothing is planned.
        is_changed: *after* has to be stored even without rows: positions were dropped.
        backlog: About how many records are not stored.
        stored: What may be released, because the output has it; None for nothing, as of a log that went back.
        is_outdated: A queue changed between listing and plan, and nothing was planned of it.
    """

    server: LogServer
    listing: LogListing
    known: LogState | None
    after: LogState = NOTHING
    ranges: Sequence[ReadRange] = ()
    lost: Sequence[str] = ()
    evidence: str = ""
    is_changed: bool = False
    backlog: int = 0
    stored: LogState | None = None
    is_outdated: bool = False

    @property
    def records(self) -> int:
        """The number of records in *ranges*."""
        return sum(each.records for each in self.ranges)

    @property
    def leaves_records(self) -> bool:
        """True if a queue has records that are neither stored nor in *ranges*."""
        queues = self.after.queues
        return any(queues[name].next < each.next_position for name, each in self.listing.queues.items())

    @property
    def is_idle(self) -> bool:
        """True if the survey leads to nothing: the same listing and state lead to the same one."""
        is_released = self.stored is None or not due_of(self.stored, self.listing)
        has_work = self.ranges or self.lost or self.evidence or self.is_changed or self.backlog or self.is_outdated
        return is_released and not has_work


def survey(server: LogServer, listing: LogListing, whole: LogListing, state: DrainState, wish: Wish) -> Survey:
    """Compare what *server* has with *state*, and plan what to read.

    Args:
        server: where to request plans, and where deleted queues ended.
        listing: the queues to read.
        whole: all queues of the log.
        state: what the output has.
        wish: the limits.
    """
    log, known = whole.log, state.logs.get(whole.log)
    base = known
    evidence = known and evidence_against(server, known, whole, listing)
    if evidence:
        if not wish.accepts_going_back or log in wish.accepted:
            return Survey(server, listing, known, evidence=evidence)
        base = None  # other records are at its positions: nothing is truncated by them, and all is stored again
    ended = _ended(server, base, whole, wish)
    after, lost = continued(base, server.name, listing, ended, all_queues=wish.includes is everything)
    after = replace(after, origin=server.endpoint.origin)
    is_placed = known is None and wish.begins is not None
    if wish.begins is not None and is_placed:
        begins = wish.begins(server, listing)
        after = replace(after, queues={name: QueueAt(at.id, begins[name]) for name, at in after.queues.items()})
    plans = list(_planned(server, whole, after, listing.queues, wish))
    ranges = [each for plan in plans if plan.status == "ok" for each in pieces_of(plan)]
    is_outdated = any(plan.status != "ok" for plan in plans)
    queues = dict(after.queues)
    for each in ranges:
        queues[each.queue] = QueueAt(each.id, each.stop)
    backlog = sum(waiting(after.queues[name], each) for name, each in listing.queues.items())
    is_changed = bool(evidence or ended or lost or is_placed)
    done = replace(after, queues=queues)
    return Survey(server, listing, known, done, ranges, lost, "", is_changed, backlog, base, is_outdated)


def evidence_against(server: LogServer, known: LogState, whole: LogListing, listing: LogListing) -> str | None:
    """Return the evidence that the log of *server* is not the one that was read up to *known*; None if there is none.

    Args:
        server: where to request the log's openings, if it was opened since.
        known: what was read.
        whole: all queues of the log.
        listing: those of them that are read.
    """
    needs = known.at is not None and (whole.at is None or whole.at.opening != known.at.opening)
    openings = server.openings() if needs else ()
    return evidence_of_going_back(known.at, whole, openings) or ahead(known, listing)


def _ended(server: LogServer, known: LogState | None, whole: LogListing, wish: Wish) -> dict[str, int | None]:
    missing = gone(known, whole, wish.includes) if known is not None else {}
    asked = [PlanStart(name, 0, at.id, 0) for name, at in missing.items()]
    plans = server.plan(asked, PlanRequest(), whole) if asked else []
    return {name: plan.ended for name, plan in zip(missing, plans, strict=True)}


def _planned(
    server: LogServer, whole: LogListing, after: LogState, queues: Mapping[str, QueueResponse], wish: Wish
) -> Iterator[QueuePlan]:
    """Yield plans of what to read from *after* on, up to the limits."""
    ends = None if wish.ends is None else wish.ends.get(whole.log, {})
    starts, weights = list[PlanStart](), list[int]()
    for name, each in queues.items():
        at = after.queues[name]
        stop = each.next_position if ends is None else min(ends.get(each.id, 0), each.next_position)
        if at.next < stop:
            starts.append(PlanStart(name, at.next, each.id, stop))
            weights.append(max(1, min(stop - at.next, each.records)))
    total = sum(weights)
    for first in range(0, len(starts), QUEUES_AT_ONCE):
        weight = sum(weights[first : first + QUEUES_AT_ONCE])
        records, size = (each and max(1, each * weight // total) for each in (wish.records, wish.bytes))
        pieces = min(wish.piece_records, records or FETCH_RECORDS), min(FETCH_BYTES, size or FETCH_BYTES)
        part = starts[first : first + QUEUES_AT_ONCE]
        yield from server.plan(part, PlanRequest(None, records, size, *pieces), whole)


def pieces_of(plan: QueuePlan) -> list[ReadRange]:
    """Return the ranges that a plan has of one queue."""
    return [ReadRange(plan.queue, plan.id, each.start, each.stop, each.records, each.bytes) for each in plan.pieces]


def cut(found: Survey, records: int | None, size: int | None) -> Survey:
    """Return *found* with as many of its ranges as fit the limits, at least one; the rest is read by the next batch."""
    kept = list[ReadRange]()
    for each in found.ranges:
        fits = (records is None or each.records <= records) and (size is None or each.bytes <= size)
        if kept and not fits:
            break
        kept.append(each)
        records = None if records is None else records - each.records
        size = None if size is None else size - each.bytes
    if len(kept) == len(found.ranges):
        return found
    queues = dict(found.after.queues)
    for each in reversed(found.ranges[len(kept) :]):
        queues[each.queue] = QueueAt(each.id, each.start)
    return dataclasses.replace(found, after=replace(found.after, queues=queues), ranges=kept)


def without_ranges(found: Survey) -> Survey:
    """Return *found* with no records to read."""
    queues = dict(found.after.queues)
    for each in reversed(found.ranges):
        queues[each.queue] = QueueAt(each.id, each.start)
    return dataclasses.replace(found, after=replace(found.after, queues=queues), ranges=())


def due_of(stored: LogState, listing: LogListing) -> list[TruncateOne]:
    """Return what may be truncated of a log of which *stored* is durable in the output."""
    return [
        TruncateOne(name, at.next - 1, at.id)
        for name, at in stored.queues.items()
        if (now := listing.queues.get(name)) is not None
        and now.id == at.id
        and now.first_position < at.next <= now.next_position
    ]


class TaskLimits(NamedTuple):
    """How a batch is divided. tasks: as many as this, if it is large. tasks_min: of a small one. records: of a task."""

    tasks: int
    tasks_min: int | None = None
    records: int = POSITION_MAX


Parts = Sequence[tuple[LogServer, str, Sequence[ReadRange]]]
"""What is read: a server, its log, and the ranges of its queues."""


def tasks_of(parts: Parts, limits: TaskLimits) -> list[ReadTask]:
    """Divide *parts* among tasks of about the same cost. A range without gaps can be cut anywhere."""
    # By id: the service has neighbours next to each other on its disk, once they left its memory.
    parts = [(server, log, sorted(ranges, key=lambda each: (each.id, each.start))) for server, log, ranges in parts]
    total = sum(_cost(each) for _, _, ranges in parts for each in ranges)
    cost = max(-(-total // limits.tasks), TASK_COST)
    if limits.tasks_min is not None:
        cost = max(1, min(cost, -(-total // limits.tasks_min)))
    return [
        server.task(log, group) for server, log, ranges in parts for group in _grouped(ranges, cost, limits.records)
    ]


def _grouped(ranges: Iterable[ReadRange], cost_max: int, records_max: int) -> list[list[ReadRange]]:
    groups, cost, records = list[list[ReadRange]](), 0, 0
    for each in ranges:
        rest: ReadRange | None = each if each.records else None
        while rest is not None:
            if cost <= 0 or records <= 0:
                groups.append([])
                cost, records = cost_max, records_max
            head, tail = _divided(rest, cost, records)
            if head.records > records and groups[-1]:
                records = 0  # it has gaps, and stays whole: in the next task
                continue
            groups[-1].append(head)
            cost, records, rest = cost - _cost(head), records - head.records, tail
    return groups


def _cost(each: ReadRange) -> int:
    return each.bytes + each.records * RECORD_COST


def _divided(whole: ReadRange, cost: int, records: int) -> tuple[ReadRange, ReadRange | None]:
    """Return the head of *whole* that costs at most *cost* and has at most *records*, and the rest.

    One with gaps stays whole: only the service knows where its records are, and its pieces are small.
    """
    take = min(whole.records, records, max(1, cost * whole.records // _cost(whole)))
    if take == whole.records or whole.records != whole.stop - whole.start:
        return whole, None
    size, middle = whole.bytes * take // whole.records, whole.start + take
    head = whole._replace(stop=middle, records=take, bytes=size)
    return head, whole._replace(start=middle, records=whole.records - take, bytes=whole.bytes - size)


@dataclass(slots=True)
class PlannedBatch:
    """What one batch reads, and the state after it."""

    state: DrainState
    surveys: list[Survey] = field(default_factory=list)

    @property
    def records(self) -> int:
        """The number of records that it reads."""
        return sum(each.records for each in self.surveys)

    @property
    def bytes(self) -> int:
        """Their payload bytes."""
        return sum(piece.bytes for each in self.surveys for piece in each.ranges)

    @property
    def lost(self) -> list[str]:
        """One sentence for each loss."""
        return [sentence for each in self.surveys for sentence in each.lost]

    @property
    def is_due(self) -> bool:
        """True if it has something to store."""
        return any(each.ranges or each.is_changed for each in self.surveys)

    def tasks(self, cores: int) -> list[ReadTask]:
        """Divide it among about as many tasks."""
        return tasks_of(self.parts, TaskLimits(cores))

    @property
    def parts(self) -> Parts:
        """What it reads, server by server."""
        return [(each.server, each.listing.log, each.ranges) for each in self.surveys]


def batch_of(state: DrainState, surveys: Sequence[Survey], records: int | None, size: int | None) -> PlannedBatch:
    """Return a batch of *surveys*, in which each gets what the ones before it have left of the limits."""
    taken, logs = list[Survey](), dict(state.logs)
    for found in surveys:
        is_full = (records is not None and records <= 0) or (size is not None and size <= 0)
        kept = without_ranges(found) if is_full else cut(found, records, size)
        records = None if records is None else records - kept.records
        size = None if size is None else size - sum(each.bytes for each in kept.ranges)
        taken.append(kept)
        logs[found.listing.log] = kept.after
    return PlannedBatch(replace(state, batch=state.batch + 1, logs=logs), taken)
