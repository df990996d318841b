"""Plans for bulk readers: ranges, counts and cut points for start positions and limits.

1. Check each queue: does it exist, is it the requested incarnation, does it still hold the records from the start?
2. Split the limits over the queues in proportion to what each holds; a queue with records gets at least one.
3. Cut each range to its share and into pieces, at any record; no payload is copied.

Of records on the disk, what is known of their places is enough (see `DiskReads.places`). Only a place in which a range
or a piece may end is read, and one with gaps that is cut. Queues are planned in the order of the files.

A plan of everything may visit millions of runs, so it works in turns, and other requests are served in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mrecordlog_async.engine.spilling.disk_reads import DiskPlace
from mrecordlog_async.errors import CorruptionError, QueueNotFoundError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.memory.cutting import UNLIMITED
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.runs import runs_of
from mrecordlog_async.model import QueueSummary, Run, time_of_tick
from mrecordlog_async.protocol.bulk_schemas import Piece, PlanRequest, PlanStart, QueuePlan, QueueStatus
from mrecordlog_async.protocol.problems import bad_request, too_large
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.reading.queue_checks import check_entries, misses, status_of, summary_of
from mrecordlog_async.service.turns import Turns


def head_of(run: Run, records_max: int, bytes_max: int, *, at_least_one: bool) -> tuple[int, int]:
    """Return how many of the first records of *run* fit both limits, and their payload bytes."""
    ends = memoryview(run.offsets).cast("i")
    most = min(run.record_count, max(records_max, 0))
    count = max(min(most, bisect_right(ends, bytes_max, 0, most + 1) - 1), 0)
    if not count and at_least_one:
        count = 1
    return count, ends[count]


class Cutter:
    """Cut one range into pieces of about the requested size, which together cover it."""

    def __init__(self, start: int, request: PlanRequest) -> None:
        self._records_max = request.piece_records or UNLIMITED
        self._bytes_max = request.piece_bytes or UNLIMITED
        self.wanted = bool(request.piece_records or request.piece_bytes)
        self.pieces: list[Piece] = []
        self.next_position = start  # after the last record that was added
        self._start = start
        self._records = self._bytes = 0

    def add(self, run: Run, count: int) -> Iterator[None]:
        """Add the first *count* records of *run*. Yield after every part, so that the caller can let others run."""
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

    def add_place(self, place: DiskPlace) -> bool:
        """Add a whole place; return False if it must be read, because a piece may end in it."""
        if self.wanted:
            if self._records + place.records > self._records_max or self._bytes + place.bytes > self._bytes_max:
                return False
            self._records += place.records
            self._bytes += place.bytes
        self.next_position = place.next_position
        return True

    def finish(self, stop: int) -> list[Piece]:
        """End the last piece at *stop*, the end of the range, and return all pieces."""
        if self.wanted and stop > self._start:
            self.pieces.append(Piece(self._start, stop, self._records, self._bytes))
        return self.pieces


def _spans(run: Run, count: int, records_max: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield first position, record count and bytes of *run*, in parts no larger than a piece. Nothing is copied."""
    ends = memoryview(run.offsets).cast("i")
    at = 0
    while at < count:
        fitting = bisect_right(ends, ends[at] + bytes_max, at + 1, count + 1) - 1
        stop = min(count, at + records_max, max(fitting, at + 1))
        yield run.first_position + at, stop - at, ends[stop] - ends[at]
        at = stop


RUNS_AT_ONCE = 250
"""Runs of a queue visited in one turn; one with gaps in its positions holds up to a thousand records."""

PIECES_AT_ONCE = 500


@dataclass(slots=True)
class AvailableRange:
    """Part of one queue that a plan can cover: the range start … stop - 1, with counts. ended: see `QueuePlan`.

    version: of the log, when *summary* was made.
    """

    requested: PlanStart
    status: QueueStatus
    summary: QueueSummary | None
    start: int = 0
    stop: int = 0
    records: int = 0
    bytes: int = 0
    ended: int | None = None
    version: int = -1

    @property
    def queue_id(self) -> int:
        """Id of the queue, by which records are sorted on the disk; 0 if it is missing."""
        return self.summary.id if self.summary is not None else 0

    def add(self, held: list[HeldRun]) -> None:
        """Count what is *held*."""
        for one in held:
            self.records += one.record_count
            self.bytes += len(one.payload)


@dataclass(slots=True)
class Taken:
    """Part of one queue that a plan covers."""

    stop: int
    records: int = 0
    bytes: int = 0
    pieces: list[Piece] = field(default_factory=list)


class Planner:
    """Builds the response to one `/v1/plan`.

    A queue may change between two turns. Its plan covers what it held when the planner last visited it; if records were
    truncated in between, the plan begins at the first retained one.
    """

    def __init__(self, log: MultiRecordLog, request: PlanRequest, options: ServiceOptions) -> None:
        self._log = log
        self._request = request
        self._options = options
        self._pieces = 0
        self._turns = Turns()

    async def plan(self, requested: Sequence[PlanStart]) -> list[QueuePlan]:
        """Return one plan for each requested queue, in that order."""
        check_entries(len(requested), self._options)
        await self._check_duplicates(requested)
        # The shares follow from this first look. A queue that moves before its turn is looked at again with its share.
        found = [await self._find_available(one) for one in requested]
        record_shares = split_limit([available.records for available in found], self._request.max_records)
        byte_shares = split_limit([available.bytes for available in found], self._request.max_bytes)
        plans: dict[int, QueuePlan] = {}
        for at in sorted(range(len(found)), key=lambda at: found[at].queue_id):
            plans[at] = await self._plan_queue(found[at], record_shares[at], byte_shares[at])
        return [plans[at] for at in range(len(found))]

    async def _check_duplicates(self, requested: Sequence[PlanStart]) -> None:
        """Raise the 400 problem if a queue is requested twice: planning costs time for each."""
        seen: set[str] = set()
        for number, one in enumerate(requested):
            if one.queue in seen:
                raise bad_request(f"queue {one.queue!r} appears twice in one plan; list it once", "duplicate")
            seen.add(one.queue)
            if number % RUNS_AT_ONCE == 0:
                await self._turns.rest()

    async def _find_available(self, requested: PlanStart) -> AvailableRange:
        await self._turns.rest()
        available = find_available(self._log, requested)
        summary = available.summary
        if summary is None or available.start == available.stop:
            return available
        if available.start <= summary.first_position and available.stop == summary.next_position:  # all that it holds
            available.records, available.bytes = summary.records, summary.bytes
            return available
        amount = self._log.inspection.amount_on_disk(requested.queue, available.start, available.stop)
        available.records, available.bytes, unknown = amount
        position = max(available.start, self._log.memory_first(requested.queue))
        for place in unknown:
            available.add(await self._held(available, place))
        async for part in self._parts(available, position):
            available.add(await self._held(available, part))
        return available

    async def _parts(self, available: AvailableRange, position: int) -> AsyncIterator[DiskPlace | HeldRun]:
        """Yield what is available from *position* on, as it is kept, until the queue has moved (see `has_moved`)."""
        queue, inspection, stop = available.requested.queue, self._log.inspection, available.stop
        while position < stop and not has_moved(self._log, available):
            found: list[DiskPlace] | list[HeldRun] = inspection.places(queue, position, stop, RUNS_AT_ONCE)
            if not found:
                position = max(position, min(self._log.memory_first(queue), stop))
                found = inspection.held(queue, position, stop, most=RUNS_AT_ONCE)
            if not found:
                return
            for one in found:
                yield one
            position = found[-1].next_position
            await self._turns.rest()

    async def _held(self, available: AvailableRange, place: DiskPlace | HeldRun) -> list[HeldRun]:
        """Return a part that `_parts` yielded as runs; nothing if it must be read, and is no longer there."""
        if not isinstance(place, DiskPlace):
            return [place]
        if has_moved(self._log, available):
            return []
        queue, start, stop = available.requested.queue, place.first_position, place.next_position
        try:
            loaded = await self._log.inspection.load(queue, start, stop, runs_max=UNLIMITED)
        except (QueueNotFoundError, CorruptionError, OSError):
            if has_moved(self._log, available):
                return []
            raise
        return [] if has_moved(self._log, available) else loaded.held

    async def _plan_queue(self, available: AvailableRange, records_max: int, bytes_max: int) -> QueuePlan:
        await self._turns.rest()
        if has_moved(self._log, available):
            available = await self._find_available(available.requested)
        summary = available.summary
        if summary is None:
            return QueuePlan(available.requested.queue, available.status, ended=available.ended)
        taken = await self._take(available, records_max, bytes_max)
        return QueuePlan(
            available.requested.queue,
            available.status,
            summary.id,
            summary.first_position,
            summary.next_position,
            available.start,
            taken.stop,
            taken.records,
            taken.bytes,
            taken.pieces,
            ended=available.ended,
            time=self._time(available),
        )

    def _time(self, available: AvailableRange) -> datetime | None:
        """Return when the first record in the range was stored, if that was requested and it is still there."""
        if not self._request.times or available.start >= available.stop or has_moved(self._log, available):
            return None
        queue, start, stop = available.requested.queue, available.start, available.stop
        for place in self._log.inspection.places(queue, start, stop, 1):
            return time_of_tick(place.tick)
        held = self._log.inspection.held(queue, max(start, self._log.memory_first(queue)), stop, most=1)
        return self._log.time_of(queue, held[0].first_position) if held else None

    async def _take(self, available: AvailableRange, records_max: int, bytes_max: int) -> Taken:
        request = self._request
        whole = available.records <= records_max and available.bytes <= bytes_max
        cutter = Cutter(available.start, request)
        if whole and not cutter.wanted:
            return Taken(available.stop, available.records, available.bytes)
        return await self._walk(available, records_max, bytes_max, cutter)

    async def _walk(self, available: AvailableRange, records_max: int, bytes_max: int, cutter: Cutter) -> Taken:
        """Take runs until the share is reached."""
        taken = Taken(available.stop)
        async for part in self._parts(available, available.start):
            records_left, bytes_left = records_max - taken.records, bytes_max - taken.bytes
            if isinstance(part, DiskPlace):
                known = 0 <= part.records <= records_left and part.bytes <= bytes_left
                if known and cutter.add_place(part):
                    taken.records, taken.bytes = taken.records + part.records, taken.bytes + part.bytes
                    continue
            held = await self._held(available, part)
            if not await self._take_runs(taken, runs_of(held), records_max, bytes_max, cutter):
                break
        taken.pieces = cutter.finish(taken.stop)
        self._check_pieces(len(cutter.pieces))
        self._pieces += len(cutter.pieces)
        return taken

    async def _take_runs(
        self, taken: Taken, runs: Iterable[Run], records_max: int, bytes_max: int, cutter: Cutter
    ) -> bool:
        """Take *runs*; return False if the share is reached, which ends the range."""
        for run in runs:
            left = (records_max - taken.records, bytes_max - taken.bytes)
            # One record at least, however large: with a smaller limit, a reader would never get past it.
            count, size = head_of(run, *left, at_least_one=not taken.records)
            if count:
                await self._cut(cutter, run, count)
                taken.records, taken.bytes = taken.records + count, taken.bytes + size
            if count < run.record_count:
                # Without a record of this run, the range ends after the last one that is taken, not after the gap.
                taken.stop = run.first_position + count if count else cutter.next_position
                return False
            await self._turns.rest()
        return True

    async def _cut(self, cutter: Cutter, run: Run, count: int) -> None:
        for number, _ in enumerate(cutter.add(run, count)):
            if number % PIECES_AT_ONCE == 0:
                self._check_pieces(len(cutter.pieces))
                await self._turns.rest()

    def _check_pieces(self, more: int) -> None:
        if self._pieces + more > self._options.pieces:
            raise too_large(self._pieces + more, self._options.pieces, "pieces in one plan")


def find_available(log: MultiRecordLog, requested: PlanStart) -> AvailableRange:
    """Return what a plan can cover of a queue, and whether it is the requested incarnation."""
    summary = summary_of(log, requested.queue)
    status = status_of(summary, requested.id)
    ended = (
        log.inspection.deleted_end(requested.id) if status is not QueueStatus.OK and requested.id is not None else None
    )
    if summary is None:
        return AvailableRange(requested, status, None, ended=ended)
    start = summary.first_position if requested.start is None else requested.start
    if status is QueueStatus.RECREATED or misses(summary, start):
        status = status if status is QueueStatus.RECREATED else QueueStatus.TRUNCATED
        start = summary.first_position
    elif start > summary.next_position:  # the caller has read further: the log was restored to an older state
        status, start = QueueStatus.AHEAD, summary.next_position
    stop = summary.next_position if requested.stop is None else min(requested.stop, summary.next_position)
    return AvailableRange(
        requested, status, summary, start, max(stop, start), ended=ended, version=log.inspection.version
    )


def has_moved(log: MultiRecordLog, available: AvailableRange) -> bool:
    """Return whether the queue was deleted or recreated, or records of the range were truncated."""
    # Most often nothing has: a summary takes a third of the time of a small queue's plan.
    if available.version == log.inspection.version:
        return False
    summary = summary_of(log, available.requested.queue)
    if summary is None or available.summary is None:
        return summary is not available.summary
    return summary.id != available.summary.id or summary.first_position > max(
        available.start, available.summary.first_position
    )


def split_limit(wanted: Sequence[int], limit: int | None) -> list[int]:
    """Split *limit* in proportion to *wanted*; every entry above 0 gets at least 1."""
    total = sum(wanted)
    if limit is None or total <= limit:
        return list(wanted)
    return [min(want, max(1, limit * want // total)) for want in wanted]
