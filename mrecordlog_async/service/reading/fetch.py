"""`/v1/fetch`: the records of many ranges, or only their positions; all ranges are checked before the first byte.

What is sent is looked up window by window: a reader holds one window, however much it wants, whether the records are in
memory or on the disk. What is truncated meanwhile ends the response before its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from mrecordlog_async.engine.spilling.disk_reads import Located
from mrecordlog_async.errors import CorruptionError, QueueNotFoundError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.model import Run, Times
from mrecordlog_async.options import MIB
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.bulk_schemas import FetchRange
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.service.http import PIECE_BYTES
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.reading.queue_checks import (
    check_assigned,
    check_entries,
    check_id,
    check_start,
    summary_of,
)
from mrecordlog_async.service.turns import Turns

RUNS_AT_ONCE = 250
"""Runs of a queue visited in one turn; one with gaps in its positions holds up to a thousand records."""
RANGES_AT_ONCE = 1_000
WINDOW_BYTES = 4 * MIB
"""Records that one response holds at a time."""


class HeldRuns(NamedTuple):
    """Some runs of one queue, as memory holds them, and when their records were stored."""

    queue: str
    queue_id: int
    held: list[HeldRun]
    times: Times


class Fetcher:
    """Finds the records of ranges, window by window.

    continues: the first part of a window continues the last part of the one before it.
    """

    def __init__(self, log: MultiRecordLog, ranges: Sequence[FetchRange]) -> None:
        self.continues = False
        self._log = log
        self._left = list(reversed(ranges))
        self._turns = Turns()
        self._cut = False

    async def check(self, options: ServiceOptions) -> None:
        """Raise the problem of the first range that cannot be returned whole."""
        check_entries(len(self._left), options)
        for one in reversed(self._left):
            check_range(self._log, one)
            await self._turns.rest()
        await _check_overlaps(self._left, self._turns)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left for another window."""
        return not self._left

    async def body(self, parts: list[HeldRuns]) -> AsyncIterator[bytes]:
        """Yield the response, piece by piece. *parts*: the first window."""
        encoder = wire.Encoder()
        yield wire.PREAMBLE
        while True:
            runs = [wire.QueueRuns(one.queue, one.queue_id, _runs(one.held), one.times) for one in parts]
            for piece in wire.gather(encoder.encode(runs, self.continues), PIECE_BYTES):
                yield piece
            if self.is_done:
                break
            parts.clear()  # not held next to the window after it
            del runs
            parts = await self.window()
        yield encoder.trailer()

    @staticmethod
    def size_of(parts: list[HeldRuns]) -> int | None:
        """Return the bytes of a response of *parts* alone; None where positions have gaps: its runs are made later."""
        if any(not isinstance(run, Run) for part in parts for run in part.held):
            return None
        return wire.size_of(
            [wire.QueueRuns(one.queue, one.queue_id, list(_runs(one.held)), one.times) for one in parts]
        )

    async def positions(self) -> list[wire.QueuePositions]:
        """Return the positions that the ranges hold; no payload is kept in memory."""
        parts, found, all_times = list[wire.QueuePositions](), list[tuple[int, int]](), Times.none()
        while self._left:
            for at, (queue, queue_id, held, times) in enumerate(await self.window()):
                if at or not self.continues:
                    found, all_times = [], Times.none()
                    parts.append(wire.QueuePositions(queue, queue_id, found, all_times))
                for run in held:
                    alone = [(run.first_position, run.record_count)] if isinstance(run, Run) else run.stretches()
                    wire.join_spans(found, alone)
                if held:
                    all_times.add_spans(times, held[0].first_position, held[-1].next_position)
        return parts

    async def window(self) -> list[HeldRuns]:
        """Return the runs of the next ranges, or of a part of one: some `WINDOW_BYTES`."""
        located, first_of, size = list[Located](), list[int](), 0
        self.continues = self._cut
        while self._left and size < WINDOW_BYTES and len(located) < RANGES_AT_ONCE:
            one = self._left.pop()
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
                self._left.append(replace(one, start=found.next_position, id=queue_id))
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


def _runs(held: list[HeldRun]) -> Iterator[Run]:
    for one in held:
        yield from (one,) if isinstance(one, Run) else one.runs()


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
