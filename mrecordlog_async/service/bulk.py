"""Plans for bulk readers: from start positions and limits to ranges, counts and cut points. Memory only.

1. Look at each queue: is it there, is it the incarnation that was meant, are the records from its start still there?
2. Share the limits: a queue that has little gives what it has, the rest is split in proportion to what is left.
3. Cut each range to its share and into pieces, at any record; no payload is touched.

A plan of everything may look at millions of runs, so it is made in turns: other requests are served in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from mrecordlog_async.errors import QueueNotFoundError
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.reads import QueueReader
from mrecordlog_async.model import QueueSummary, Run
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.problems import ProblemError, bad_request, too_large
from mrecordlog_async.protocol.schemas import FetchRange, Piece, PlanRequest, PlanStart, QueuePlan, QueueStatus
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.turns import Turns

RUNS_AT_ONCE = 250
"""Pieces of a queue looked at before others are let in; one with gaps holds up to a thousand records."""

PIECES_AT_ONCE = 500

UNLIMITED = 2**63


@dataclass(slots=True)
class Offer:
    """What one queue of a plan has to give."""

    asked: PlanStart
    status: QueueStatus
    summary: QueueSummary | None
    start: int = 0
    stop: int = 0
    records: int = 0
    bytes: int = 0
    ended: int | None = None


@dataclass(slots=True)
class Taken:
    """What a plan takes of one queue. tail: digest of the last record."""

    stop: int
    records: int = 0
    bytes: int = 0
    pieces: list[Piece] = field(default_factory=list)
    tail: int | None = None


class Planner:
    """Answers one `/v1/plan`.

    A queue may change between two turns. Its plan is made of what it held at its own last step: where records were
    truncated in between, it begins at the first that is left.
    """

    def __init__(self, log: QueueReader, request: PlanRequest, options: ServiceOptions) -> None:
        self._log = log
        self._request = request
        self._options = options
        self._pieces = 0
        self._turns = Turns()

    async def plan(self, asked: Sequence[PlanStart]) -> list[QueuePlan]:
        """Return one plan for each queue that is asked for, in that order."""
        check_entries(len(asked), self._options)
        await self._check_twins(asked)
        offers = [await self._offer(one) for one in asked]
        record_shares = share([offer.records for offer in offers], self._request.max_records)
        byte_shares = share([offer.bytes for offer in offers], self._request.max_bytes)
        return [
            await self._plan_queue(offer, records, size)
            for offer, records, size in zip(offers, record_shares, byte_shares, strict=True)
        ]

    async def _check_twins(self, asked: Sequence[PlanStart]) -> None:
        """Raise the 400 problem where a queue is asked for twice: planning costs time for each."""
        seen: set[str] = set()
        for number, one in enumerate(asked):
            if one.queue in seen:
                raise bad_request(f"queue {one.queue!r} stands twice in one plan", "duplicate")
            seen.add(one.queue)
            if number % RUNS_AT_ONCE == 0:
                await self._turns.rest()

    async def _offer(self, asked: PlanStart) -> Offer:
        await self._turns.rest()
        offer = look_at(self._log, asked)
        summary = offer.summary
        if summary is None or offer.start == offer.stop:
            return offer
        if offer.start <= summary.first_position and offer.stop == summary.next_position:
            offer.records, offer.bytes = summary.records, summary.bytes
            return offer
        async for held in self._held(offer):
            offer.records += held.records
            offer.bytes += len(held.payload)
        return offer

    async def _runs(self, offer: Offer) -> AsyncIterator[Run]:
        async for held in self._held(offer):
            if isinstance(held, Run):
                yield held
            else:
                for run in held.runs():
                    yield run
                await self._turns.rest()

    async def _held(self, offer: Offer) -> AsyncIterator[HeldRun]:
        """Yield the runs of an offer as they are kept, as long as its queue is there."""
        position = offer.start
        while position < offer.stop and not has_moved(self._log, offer):
            held = self._log.held(offer.asked.queue, position, offer.stop, most=RUNS_AT_ONCE)
            if not held:
                return
            for one in held:
                yield one
            position = held[-1].next_position
            await self._turns.rest()

    async def _plan_queue(self, offer: Offer, records_max: int, bytes_max: int) -> QueuePlan:
        await self._turns.rest()
        if has_moved(self._log, offer):
            offer = await self._offer(offer.asked)
        summary = offer.summary
        if summary is None:
            return QueuePlan(offer.asked.queue, offer.status, ended=offer.ended)
        taken = await self._take(offer, records_max, bytes_max)
        return QueuePlan(
            offer.asked.queue,
            offer.status,
            summary.id,
            summary.first_position,
            summary.next_position,
            offer.start,
            taken.stop,
            taken.records,
            taken.bytes,
            taken.pieces,
            taken.tail,
            offer.ended,
        )

    async def _take(self, offer: Offer, records_max: int, bytes_max: int) -> Taken:
        request = self._request
        whole = offer.records <= records_max and offer.bytes <= bytes_max
        cutter = Cutter(offer.start, request)
        if whole and not cutter.wanted and (not request.tails or not offer.records):
            return Taken(offer.stop, offer.records, offer.bytes)
        if whole and not cutter.wanted and (last := self._log.runs(offer.asked.queue, offer.stop - 1, offer.stop)):
            return Taken(offer.stop, offer.records, offer.bytes, tail=digest(last[-1], 1))
        return await self._walk(offer, records_max, bytes_max, cutter)

    async def _walk(self, offer: Offer, records_max: int, bytes_max: int, cutter: Cutter) -> Taken:
        """Take run after run until the share is reached."""
        taken = Taken(offer.stop)
        async for run in self._runs(offer):
            left = (records_max - taken.records, bytes_max - taken.bytes)
            count, size = head_of(run, *left, at_least_one=not taken.records)
            if count:
                await self._cut(cutter, run, count)
                taken.records, taken.bytes = taken.records + count, taken.bytes + size
                taken.tail = digest(run, count) if self._request.tails else None
            if count < run.records:
                taken.stop = run.first_position + count if count else cutter.next_position
                break
        cutter.finish(taken)
        self._check_pieces(len(cutter.pieces))
        self._pieces += len(cutter.pieces)
        return taken

    async def _cut(self, cutter: Cutter, run: Run, count: int) -> None:
        for number, _ in enumerate(cutter.add(run, count)):
            if number % PIECES_AT_ONCE == 0:
                self._check_pieces(len(cutter.pieces))
                await self._turns.rest()

    def _check_pieces(self, more: int) -> None:
        if self._pieces + more > self._options.pieces:
            raise too_large(self._pieces + more, self._options.pieces, "pieces in one plan")


class Cutter:
    """Cuts one range into pieces of about the size asked for; together they are the whole range."""

    def __init__(self, start: int, request: PlanRequest) -> None:
        self._records_max = request.piece_records or UNLIMITED
        self._bytes_max = request.piece_bytes or UNLIMITED
        self.wanted = bool(request.piece_records or request.piece_bytes)
        self.pieces: list[Piece] = []
        self.next_position = start  # behind the last record that was added
        self._start = start
        self._records = self._bytes = 0

    def add(self, run: Run, count: int) -> Iterator[None]:
        """Add the first *count* records of *run*. Yields after every part of it, so that the caller may rest."""
        self.next_position = run.first_position + count
        if not self.wanted:
            return
        for first_position, records, size in _spans(run, count, self._records_max, self._bytes_max):
            if self._records and (self._records + records > self._records_max or self._bytes + size > self._bytes_max):
                self.pieces.append(Piece(self._start, first_position, self._records, self._bytes))
                self._start, self._records, self._bytes = first_position, 0, 0
            self._records += records
            self._bytes += size
            yield

    def finish(self, taken: Taken) -> None:
        """End the last piece where the range ends."""
        if self.wanted and taken.stop > self._start:
            self.pieces.append(Piece(self._start, taken.stop, self._records, self._bytes))
        taken.pieces = self.pieces


def look_at(log: QueueReader, asked: PlanStart) -> Offer:
    """Find out whether the queue that was meant is there, and which range of it a plan can cover."""
    summary = summary_of(log, asked.queue)
    status = status_of(summary, asked.id)
    ended = log.deleted_end(asked.id) if status is not QueueStatus.OK and asked.id is not None else None
    if summary is None:
        return Offer(asked, status, None, ended=ended)
    start = summary.first_position if asked.start is None else asked.start
    if status is QueueStatus.RECREATED or misses(summary, start):
        status = status if status is QueueStatus.RECREATED else QueueStatus.TRUNCATED
        start = summary.first_position
    elif start > summary.next_position:
        status, start = QueueStatus.AHEAD, summary.next_position
    stop = summary.next_position if asked.stop is None else min(asked.stop, summary.next_position)
    return Offer(asked, status, summary, start, max(stop, start), ended=ended)


def has_moved(log: QueueReader, offer: Offer) -> bool:
    """Tell whether the queue is another one by now, or has lost records of the range."""
    summary = summary_of(log, offer.asked.queue)
    if summary is None or offer.summary is None:
        return summary is not offer.summary
    return summary.id != offer.summary.id or summary.first_position > max(offer.start, offer.summary.first_position)


def check_entries(count: int, options: ServiceOptions) -> None:
    """Raise the 413 problem for more queues or ranges than one request may name."""
    if count > options.entries:
        raise too_large(count, options.entries, "entries in one request")


def head_of(run: Run, records_max: int, bytes_max: int, *, at_least_one: bool) -> tuple[int, int]:
    """Return how many records at the head of *run* keep both limits, and their bytes."""
    ends = memoryview(run.offsets).cast("i")
    most = min(run.records, max(records_max, 0))
    count = max(min(most, bisect_right(ends, bytes_max, 0, most + 1) - 1), 0)
    if not count and at_least_one:
        count = 1
    return count, ends[count]


def digest(run: Run, count: int) -> int:
    """Digest record number *count* of *run*, with its position: a log that went back may give one away twice."""
    position = run.first_position + count - 1
    ends = memoryview(run.offsets).cast("i")
    payload = memoryview(run.payload)[ends[count - 1] : ends[count]]
    return crc32c(payload, crc32c(position.to_bytes(8, "little")))


def share(wanted: Sequence[int], limit: int | None) -> list[int]:
    """Split *limit* over what each wants, in proportion; each that wants anything gets at least one."""
    total = sum(wanted)
    if limit is None or total <= limit:
        return list(wanted)
    return [min(want, max(1, limit * want // total)) for want in wanted]


def runs_of(held: Iterable[HeldRun]) -> Iterator[Run]:
    """Yield the runs of what is kept; those with gaps are made one by one."""
    for one in held:
        if isinstance(one, Run):
            yield one
        else:
            yield from one.runs()


def take(runs: Iterable[Run], records_max: int, bytes_max: int) -> list[Run]:
    """Return the head of *runs* with at most so many records and payload bytes, but at least one record."""
    taken: list[Run] = []
    for run in runs:
        if records_max <= 0 or (taken and bytes_max <= 0):
            break
        part = run if run.records <= records_max else run.cut(run.first_position, run.first_position + records_max)
        if len(part.payload) > bytes_max:
            part = part.cut_bytes(bytes_max)
            if taken and len(part.payload) > bytes_max:
                break
        taken.append(part)
        if part.records < run.records:
            break
        records_max -= part.records
        bytes_max -= len(part.payload)
    return taken


def _spans(run: Run, count: int, records_max: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield first position, records and bytes of a run, in parts where it is larger than a piece. Copies nothing."""
    ends = memoryview(run.offsets).cast("i")
    at = 0
    while at < count:
        fitting = bisect_right(ends, ends[at] + bytes_max, at + 1, count + 1) - 1
        stop = min(count, at + records_max, max(fitting, at + 1))
        yield run.first_position + at, stop - at, ends[stop] - ends[at]
        at = stop


class HeldRuns(NamedTuple):
    """What is to be sent of one queue, as it is kept."""

    queue: str
    queue_id: int
    held: list[HeldRun]


class Fetcher:
    """Finds what one `/v1/fetch` asks for, in turns. What was found stays, whatever is truncated later.

    size: bytes of the answer with payloads; None where positions have gaps, so that its runs are made as they are sent.
    """

    def __init__(self, log: QueueReader, options: ServiceOptions) -> None:
        self.size: int | None = wire.size_of(())
        self._log = log
        self._options = options
        self._turns = Turns()
        self._runs = 0

    async def fetch(self, ranges: Sequence[FetchRange]) -> list[HeldRuns]:
        """Return what all ranges hold; raise the problem of the first range that cannot be had whole."""
        await self._check(ranges)
        parts = []
        for one in ranges:
            queue_id, found = check_range(self._log, one).id, list[HeldRun]()
            async for held in self._each(one):
                found += held
                self._add_size(held)
            if self.size is not None:
                self.size += wire.size_of_queue(one.queue)
            parts.append(HeldRuns(one.queue, queue_id, found))
        return parts

    def _add_size(self, held: list[HeldRun]) -> None:
        for one in held:
            if not isinstance(one, Run):
                self.size = None
            elif self.size is not None:
                self.size += wire.size_of_run(one)

    async def positions(self, ranges: Sequence[FetchRange]) -> list[wire.QueueStretches]:
        """Return which positions the ranges hold; nothing of their payloads is kept."""
        await self._check(ranges)
        parts = []
        for one in ranges:
            queue_id, found = check_range(self._log, one).id, list[tuple[int, int]]()
            async for held in self._each(one):
                for run in held:
                    more = [(run.first_position, run.records)] if isinstance(run, Run) else run.stretches()
                    wire.join_stretches(found, more)
            parts.append(wire.QueueStretches(one.queue, queue_id, found))
        return parts

    async def _check(self, ranges: Sequence[FetchRange]) -> None:
        check_entries(len(ranges), self._options)
        for number, one in enumerate(ranges):
            check_range(self._log, one)
            if number % RUNS_AT_ONCE == 0:
                await self._turns.rest()
        await _check_overlaps(ranges, self._turns)

    async def _each(self, asked: FetchRange) -> AsyncIterator[list[HeldRun]]:
        """Yield what a range holds, some runs at a time."""
        position = asked.start
        while position < asked.stop:
            held = self._log.held(asked.queue, position, asked.stop, most=RUNS_AT_ONCE)
            if not held:
                return
            self._runs += len(held)
            if self._runs > self._options.fetch_runs:
                raise too_large(self._runs, self._options.fetch_runs, "runs in one fetch")
            yield held
            position = held[-1].next_position
            await self._turns.rest()
            check_range(self._log, asked)


def pinned_bytes(log: QueueReader, parts: Iterable[HeldRuns]) -> Iterator[int]:
    """Yield, some runs at a time, how many bytes of *parts* are kept in memory by them alone.

    Those are the bytes of truncated records and deleted queues. *parts* may lose what was sent meanwhile.
    """
    for queue, queue_id, held in parts:
        summary = summary_of(log, queue)
        is_there = summary is not None and summary.id == queue_id
        first = summary.first_position if summary is not None and is_there else UNLIMITED
        for at in range(0, len(held), RUNS_AT_ONCE):
            yield sum(len(run.payload) for run in held[at : at + RUNS_AT_ONCE] if run.next_position <= first)


async def _check_overlaps(ranges: Sequence[FetchRange], turns: Turns) -> None:
    """Raise the 400 problem where a record is asked for twice: the answer would be larger than what is stored."""
    by_queue: dict[str, list[tuple[int, int]]] = {}
    for number, one in enumerate(ranges):
        if one.start < one.stop:
            by_queue.setdefault(one.queue, []).append((one.start, one.stop))
        if number % RUNS_AT_ONCE == 0:
            await turns.rest()
    for queue, bounds in by_queue.items():
        bounds.sort()
        if any(stop > start for (_, stop), (start, _) in pairwise(bounds)):
            raise bad_request(f"ranges of queue {queue!r} overlap", "duplicate")
        await turns.rest()


def check_range(log: QueueReader, asked: FetchRange) -> QueueSummary:
    """Return the queue of a range; raise the problem of a range that cannot be had whole."""
    summary = summary_of(log, asked.queue)
    status = status_of(summary, asked.id)
    if summary is None:
        raise QueueNotFoundError(asked.queue)
    if status is QueueStatus.RECREATED:
        detail = f"queue {asked.queue!r} was deleted and created again: its id is {summary.id}, not {asked.id}"
        raise ProblemError(404, "queue_recreated", detail, queue=asked.queue, id=summary.id)
    check_start(summary, asked.start)
    if asked.stop > summary.next_position:
        detail = f"queue {asked.queue!r} ends before {asked.stop}: its next position is {summary.next_position}"
        raise ProblemError(409, "ahead", detail, queue=asked.queue, next_position=summary.next_position)
    return summary


def misses(summary: QueueSummary, start: int) -> bool:
    """Tell whether records from *start* on were truncated; not where the first one ever came at a later position."""
    return max(start, summary.began) < summary.first_position


def check_start(summary: QueueSummary, start: int) -> None:
    """Raise the problem of reading from a position whose records are truncated."""
    if misses(summary, start):
        detail = f"queue {summary.queue!r}: records before {summary.first_position} are truncated"
        first = summary.first_position
        raise ProblemError(410, "truncated", detail, queue=summary.queue, first_position=first)


def status_of(summary: QueueSummary | None, queue_id: int | None) -> QueueStatus:
    """Tell whether the queue that was meant is there."""
    if summary is None:
        return QueueStatus.MISSING
    return QueueStatus.OK if queue_id in (None, summary.id) else QueueStatus.RECREATED


def summary_of(log: QueueReader, queue: str) -> QueueSummary | None:
    """Return the summary of *queue*, None where there is no such queue."""
    return log.queue_summary(queue) if log.queue_exists(queue) else None
