"""`/v1/fetch`: the records of many ranges, or only their positions; all ranges are checked before the first byte.

A fetch of everything may visit millions of runs, so it works in turns, and other requests are served in between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from mrecordlog_async.engine.spilling.disk_reads import Located
from mrecordlog_async.errors import CorruptionError, QueueNotFoundError, RecordsOnDiskError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.memory.cutting import UNLIMITED
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.model import Run, Times
from mrecordlog_async.options import MIB
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.bulk_schemas import FetchRange
from mrecordlog_async.protocol.problems import bad_request, too_large
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.reading.queue_checks import (
    check_assigned,
    check_entries,
    check_id,
    check_start,
    summary_of,
)
from mrecordlog_async.service.wire.turns import Turns

RUNS_AT_ONCE = 250
"""Runs of a queue visited in one turn; one with gaps in its positions holds up to a thousand records."""

RANGES_AT_ONCE = 1_000

FOUND_RUN_BYTES = 200
"""Bytes of a found run besides its payload while its response is sent: the run, its part and its times."""


WINDOW_BYTES = 16 * MIB
"""Records that are read from the disk at a time, for one response."""


class HeldRuns(NamedTuple):
    """The runs of one queue to send, as memory holds them, and when their records were stored."""

    queue: str
    queue_id: int
    held: list[HeldRun]
    times: Times = Times.none()


class Fetcher:
    """Find the records of one `/v1/fetch`, in turns. Records that were found stay readable if they are truncated later.

    size: bytes of the response with payloads; None if positions have gaps, because its runs are then created while they
    are sent, or if some of it is read from the disk later. is_copy: what was found was read from the disk. left: the
    ranges that are not found yet, backwards. continues: the first part that `more` returned is of the range that ended
    what it returned before.
    """

    def __init__(self, log: MultiRecordLog, options: ServiceOptions) -> None:
        self.size: int | None = wire.size_of(())
        self.left: list[FetchRange] = []
        self.is_copy = self.continues = self._cut = False
        self._log = log
        self._options = options
        self._turns = Turns()
        self._runs = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that what was found takes besides payloads, which may be less than that."""
        return self._runs * FOUND_RUN_BYTES

    async def fetch(self, ranges: Sequence[FetchRange]) -> list[HeldRuns]:
        """Return the runs of all ranges; raise the problem of the first range that cannot be returned whole.

        If any are on the disk, return some of them; `more` returns the others, once these are sent.
        """
        await self._check(ranges)  # all of them first: the reader gets a problem, not a response that breaks off
        if not await self._is_any_on_disk(ranges):
            with suppress(RecordsOnDiskError):  # some leave memory meanwhile
                return await self._fetch_from_memory(ranges)
            self.size, self._runs = wire.size_of(()), 0
        self.left, self.is_copy = list(reversed(ranges)), True
        parts = await self.more()
        if self.left:  # more windows follow
            self.size = None
        for queue, _, held, times in parts:
            self._add_size(held, wire.size_of_queue(queue, times))
        return parts

    async def _fetch_from_memory(self, ranges: Sequence[FetchRange]) -> list[HeldRuns]:
        parts = []
        for one in ranges:
            # Again, because others ran since. From here to `_first_runs` nobody else runs.
            queue_id = check_range(self._log, one)
            times = self._log.inspection.times(one.queue, one.start, one.stop)  # before any of them is truncated
            found = self._first_runs(one)
            self._add_size(found)
            if has_more(found, one):
                async for held in self._more_runs(one, found[-1].next_position):
                    found += held
                    self._add_size(held)
            self._add_size([], wire.size_of_queue(one.queue, times))
            parts.append(HeldRuns(one.queue, queue_id, found, times))
            await self._turns.rest()
        return parts

    async def _is_any_on_disk(self, ranges: Sequence[FetchRange]) -> bool:
        for one in ranges:
            if max(one.start, self._log.first_position(one.queue)) < min(self._log.memory_first(one.queue), one.stop):
                return True
            await self._turns.rest()
        return False

    async def more(self) -> list[HeldRuns]:
        """Return the runs of the next ranges that are left, or of a part of one: some `WINDOW_BYTES`."""
        located, first_of, size = list[Located](), list[int](), 0
        self.continues = self._cut
        while self.left and size < WINDOW_BYTES and len(located) < RANGES_AT_ONCE:
            one = self.left.pop()
            queue_id = check_range(self._log, one)
            found = self._log.inspection.locate(
                one.queue, one.start, one.stop, runs_max=RUNS_AT_ONCE, bytes_max=WINDOW_BYTES - size
            )
            if not located or not self._cut:
                first_of.append(len(located))
            located.append(found)
            size += found.bytes
            self._cut = found.next_position < one.stop
            if self._cut:
                self.left.append(replace(one, start=found.next_position, id=queue_id))
            await self._turns.rest()
        try:
            read = await self._log.inspection.read_located(located)
        except (CorruptionError, OSError):
            self._check_located(located)  # it may have been removed meanwhile
            raise
        self._check_located(located)
        parts = []
        for start, stop in pairwise([*first_of, len(located)]):
            queue, (held, times, _) = located[start].queue, read[start]
            for more in read[start + 1 : stop]:
                held.extend(more.held)
                if more.held:
                    times.add_spans(more.times, more.held[0].first_position, more.held[-1].next_position)
            parts.append(HeldRuns(queue.name, queue.id, held, times))
        return parts

    def _check_located(self, located: list[Located]) -> None:
        """Raise the problem of records that were truncated, or whose queue was deleted, while they were read."""
        for queue, wanted, *_ in located:
            if wanted:
                check_range(self._log, FetchRange(queue.name, wanted[0].start, wanted[-1].stop, queue.id))

    def _add_size(self, held: list[HeldRun], more: int = 0) -> None:
        """Add the bytes of *held* to the size, if it is known, and *more*."""
        for one in held:
            if isinstance(one, Run):
                more += wire.size_of_run(one)
            else:
                self.size = None
        if self.size is not None:
            self.size += more

    async def positions(self, ranges: Sequence[FetchRange]) -> list[wire.QueuePositions]:
        """Return the positions that the ranges hold; no payload is kept in memory."""
        await self._check(ranges)
        if not await self._is_any_on_disk(ranges):
            with suppress(RecordsOnDiskError):  # some leave memory meanwhile
                return await self._positions_in_memory(ranges)
            self._runs = 0
        return await self._positions_on_disk(ranges)

    async def _positions_in_memory(self, ranges: Sequence[FetchRange]) -> list[wire.QueuePositions]:
        parts = []
        for one in ranges:
            queue_id = check_range(self._log, one)
            times = self._log.inspection.times(one.queue, one.start, one.stop)
            begun, found = self._first_runs(one), list[tuple[int, int]]()
            _add_spans(found, begun)
            if has_more(begun, one):
                async for held in self._more_runs(one, begun[-1].next_position):
                    _add_spans(found, held)
            parts.append(wire.QueuePositions(one.queue, queue_id, found, times))
            await self._turns.rest()
        return parts

    async def _positions_on_disk(self, ranges: Sequence[FetchRange]) -> list[wire.QueuePositions]:
        self.left = list(reversed(ranges))
        parts, found, all_times = list[wire.QueuePositions](), list[tuple[int, int]](), Times.none()
        while self.left:
            for at, (queue, queue_id, held, times) in enumerate(await self.more()):
                if at or not self.continues:
                    found, all_times = [], Times.none()
                    parts.append(wire.QueuePositions(queue, queue_id, found, all_times))
                _add_spans(found, held)
                if held:
                    all_times.add_spans(times, held[0].first_position, held[-1].next_position)
        return parts

    async def _check(self, ranges: Sequence[FetchRange]) -> None:
        check_entries(len(ranges), self._options)
        for number, one in enumerate(ranges):
            check_range(self._log, one)
            if number % RUNS_AT_ONCE == 0:
                await self._turns.rest()
        await _check_overlaps(ranges, self._turns)

    def _first_runs(self, requested: FetchRange) -> list[HeldRun]:
        """Return the first runs of a range, which was checked in this turn: of most ranges, all of them."""
        if requested.start >= requested.stop:
            return []
        held = self._log.inspection.held(requested.queue, requested.start, requested.stop, most=RUNS_AT_ONCE)
        self._count(held)
        return held

    async def _more_runs(self, requested: FetchRange, position: int) -> AsyncIterator[list[HeldRun]]:
        """Yield the runs of a range from *position* on, some at a time."""
        while position < requested.stop:
            await self._turns.rest()
            check_range(self._log, requested)  # records that were truncated in this turn would leave a hole
            held = self._log.inspection.held(requested.queue, position, requested.stop, most=RUNS_AT_ONCE)
            if not held:
                return
            self._count(held)
            yield held
            position = held[-1].next_position

    def _count(self, held: list[HeldRun]) -> None:
        self._runs += len(held)
        if self._runs > self._options.fetch_runs:
            raise too_large(self._runs, self._options.fetch_runs, "runs in one fetch")


def has_more(held: list[HeldRun], requested: FetchRange) -> bool:
    """Return whether a range may hold runs after *held*, which were found first."""
    return bool(held) and held[-1].next_position < requested.stop


def _add_spans(found: list[tuple[int, int]], held: list[HeldRun]) -> None:
    for run in held:
        more = [(run.first_position, run.record_count)] if isinstance(run, Run) else run.stretches()
        wire.join_spans(found, more)


def pinned_bytes(log: MultiRecordLog, parts: Iterable[HeldRuns]) -> Iterator[int]:
    """Yield, some runs at a time, how many bytes only *parts* keeps in memory.

    These are the bytes of truncated records and deleted queues. What is sent meanwhile may disappear from *parts*.
    """
    for queue, queue_id, held, _ in parts:
        summary = summary_of(log, queue)
        is_there = summary is not None and summary.id == queue_id
        first = summary.first_position if summary is not None and is_there else UNLIMITED  # of a deleted one, all
        for at in range(0, len(held), RUNS_AT_ONCE):
            yield sum(len(run.payload) for run in held[at : at + RUNS_AT_ONCE] if run.next_position <= first)


async def _check_overlaps(ranges: Sequence[FetchRange], turns: Turns) -> None:
    """Raise the 400 problem if a record is requested twice: the response would be larger than what is stored."""
    if await _are_distinct(ranges, turns):  # most often: sorting the ranges of each queue takes ten times as long
        return
    by_queue: dict[str, list[tuple[int, int]]] = {}
    for number, one in enumerate(ranges):
        if one.start < one.stop:
            by_queue.setdefault(one.queue, []).append((one.start, one.stop))
        if number % RUNS_AT_ONCE == 0:
            await turns.rest()
    for queue, bounds in by_queue.items():
        bounds.sort()
        if any(stop > start for (_, stop), (start, _) in pairwise(bounds)):
            raise bad_request(f"ranges of queue {queue!r} overlap; ask for each record once", "duplicate")
        await turns.rest()


async def _are_distinct(ranges: Sequence[FetchRange], turns: Turns) -> bool:
    """Return whether each range is of another queue."""
    seen: set[str] = set()
    for at in range(0, len(ranges), RANGES_AT_ONCE):
        seen.update([one.queue for one in ranges[at : at + RANGES_AT_ONCE]])
        await turns.rest()
    return len(seen) == len(ranges)


def check_range(log: MultiRecordLog, requested: FetchRange) -> int:
    """Return the id of a range's queue; raise the problem of a range that cannot be returned whole."""
    queue, start, stop, wanted = requested.queue, requested.start, requested.stop, requested.id
    extent = log.inspection.extent(queue)
    if extent is not None:
        queue_id, began, first_position, next_position = extent
        known = wanted is None or wanted == queue_id
        if known and max(start, began) >= first_position and stop <= next_position:
            return queue_id  # a summary takes ten times as long, and only its problem needs one
    return _refuse_range(log, requested)


def _refuse_range(log: MultiRecordLog, requested: FetchRange) -> int:
    summary = summary_of(log, requested.queue)
    if summary is None:
        raise QueueNotFoundError(requested.queue)
    check_id(summary, requested.id)
    check_start(summary, requested.start)
    check_assigned(summary, requested.stop - 1)
    return summary.id
