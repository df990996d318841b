"""Reads records that are on the disk alone, for tails, consumers and callers of the log. On the event loop.

A few threads read, not the log's own: no read delays a batch. A result counts only if its place is still in the queue
when it is back on the loop; otherwise it was truncated meanwhile, or the queue was deleted. What is read and not yet
handed over shares a budget, so however many readers there are, memory stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.gathered import GatheredHead
from mrecordlog_async.memory.cutting import Head, head_of, head_of_runs, runs_of
from mrecordlog_async.memory.pieces import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.metrics import Counters
from mrecordlog_async.model import POSITION_MAX, Run, Times
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.gathered_reader import FoundRuns, GatheredReader, WantedRuns
from mrecordlog_async.storage.directory import LogDirectory

logger = logging.getLogger("mrecordlog_async")

THREADS = 2
BYTES_AT_ONCE = 1 * MIB
"""A job reads at least a place, and about this much."""

JOBS_MAX = 32
"""Jobs whose results are not handed over yet: together with the pieces that are kept, some 64 MiB."""


class DiskReads:
    """Reads from the gathered files of one open log. The engine owns it."""

    def __init__(self, directory: LogDirectory, queues: Queues, counters: Counters | None = None) -> None:
        """Read from *directory* what is retained of *queues*; count in *counters* what is found to be damaged."""
        self.reader = GatheredReader(directory)
        self._counters = Counters() if counters is None else counters
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._threads: ThreadPoolExecutor | None = None  # started by the first read
        self._under_way = Counter[int]()  # jobs by segment
        self._line: deque[asyncio.Future[None]] = deque()
        self._jobs = 0
        self._failed: set[int] = set()  # segments of which a read has failed

    async def runs(self, queue: Queue, start: int, bytes_max: int = BYTES_AT_ONCE) -> list[HeldRun]:
        """Return runs of *queue* from the disk, from the first one that ends after *start*; the ends are uncut.

        Returns nothing if everything from there on is in memory, or the queue was deleted.

        Raises:
            CorruptionError: They cannot be read.
            OSError: The disk refuses the read.
        """
        found = await self._found(queue, start, bytes_max)
        return [] if found is None else found.runs

    async def _found(self, queue: Queue, start: int, bytes_max: int) -> FoundRuns | None:
        while (wanted := self._wanted(queue, start, bytes_max)) is not None:
            try:
                found = await self._read(wanted)
            except BaseException as error:
                if self._wanted(queue, start, bytes_max) == wanted:  # otherwise it was truncated meanwhile
                    self._note_failed(queue, wanted, error)
                    raise
                continue
            if self._wanted(queue, start, bytes_max) is not None and queue.first_position < found.next_position:
                return found
        return None

    def _note_failed(self, queue: Queue, wanted: WantedRuns, error: BaseException) -> None:
        """Count a read that fails, of records that are retained; log the first one of each segment."""
        if isinstance(error, CorruptionError):
            self._counters.damaged["segment"] += 1
        elif isinstance(error, OSError):
            self._counters.io_errors += 1
        else:
            return
        segment = wanted.head.segment
        if segment in self._failed:
            return
        self._failed.add(segment)
        facts = {"event": "unreadable", "queue": queue.name, "position": wanted.start, "segment": segment}
        logger.error(
            "queue %r: records from position %d on cannot be read: %s",
            queue.name,
            wanted.start,
            error,
            extra={"facts": facts},
        )

    def _wanted(self, queue: Queue, start: int, bytes_max: int) -> WantedRuns | None:
        if self._queues.by_id(queue.id) is not queue:
            return None
        start = max(start, queue.first_position)
        for index, place in queue.places(start, queue.memory_first):
            _, end = index.bounds(queue.id)
            stop = min(index.next_positions[end - 1], queue.memory_first)
            return WantedRuns(index.head, queue.id, max(start, index.first_positions[place]), stop, bytes_max)
        return None

    async def _read(self, wanted: WantedRuns) -> FoundRuns:
        """Have a thread read; the queue may be another one afterwards."""
        while self._jobs >= JOBS_MAX:
            turn = self._loop.create_future()
            self._line.append(turn)
            await turn
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "mrecordlog read")
        self._jobs += 1
        self._under_way[wanted.head.segment] += 1
        job = self._loop.run_in_executor(self._threads, self.reader.read, wanted)
        job.add_done_callback(partial(self._on_read, wanted.head))
        return await asyncio.shield(job)

    def _on_read(self, head: GatheredHead, job: asyncio.Future[FoundRuns]) -> None:
        # Its exception is marked as retrieved here: the caller may have been cancelled.
        found = job.result() if not job.cancelled() and job.exception() is None else None
        self._counters.damaged["gathered"] = self.reader.damaged
        self._jobs -= 1
        self._under_way[head.segment] -= 1
        if found is not None and found.ahead is not None and self._threads is not None:
            self._under_way[head.segment] += 1
            ahead = self._loop.run_in_executor(self._threads, self.reader.read_ahead, head, found.ahead)
            ahead.add_done_callback(partial(self._on_read_ahead, head.segment))
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self.forget_dead()

    def _on_read_ahead(self, segment: int, ahead: asyncio.Future[None]) -> None:
        self._under_way[segment] -= 1
        self.forget_dead()

    async def head(self, queue: Queue, start: int, records_max: int, bytes_max: int) -> Head | None:
        """Return the first records from *start* on, from the disk and from memory: within both limits, at least one.

        None if there is none any more. What was truncated until it returns is left out.
        """
        taken: list[Run] = []
        times: list[Times] = []
        position, records, size = start, 0, 0
        while records < records_max and size < bytes_max:
            found = await self._found(queue, position, min(bytes_max - size, BYTES_AT_ONCE))
            if found is None:
                break
            runs = list(runs_of(found.runs))
            taken += runs
            times += found.times
            position = found.runs[-1].next_position
            records += sum(run.record_count for run in runs)
            size += sum(len(run.payload) for run in runs)
        if self._queues.by_id(queue.id) is not queue:
            return None
        first = max(start, queue.first_position)
        position = max(position, first)
        more: Iterator[Run] = iter(())
        if position >= queue.memory_first:
            there = queue.store.runs_from(position, records_max, bytes_max)  # the first one may begin on the disk
            more = (run if run.first_position >= position else run.cut(position, POSITION_MAX + 1) for run in there)
        runs_left = (run for run in chain(taken, more) if run.next_position > first)
        head = head_of_runs(runs_left, first, records_max, bytes_max, queue.next_position)
        if not head.runs:
            return None
        times.append(queue.held_times(max(position, head.start), head.stop))
        return head._replace(times=Times.joined(times))

    async def any_runs(self, queue: Queue, start: int) -> list[HeldRun]:
        """Return the oldest runs from *start* on, from the disk or, without waiting, from memory; see `Queue.head`."""
        while max(start, queue.first_position) < queue.memory_first:
            if held := await self.runs(queue, start):
                return held
            if self._queues.by_id(queue.id) is not queue:
                return []
        return queue.head(start)

    async def any_head(self, queue: Queue, start: int, records_max: int, bytes_max: int) -> Head | None:
        """Do what `head` does, without waiting if everything from *start* on is in memory."""
        if max(start, queue.first_position) < queue.memory_first:
            return await self.head(queue, start, records_max, bytes_max)
        head = head_of(queue, start, records_max, bytes_max)
        return head if head.runs else None

    # Times.

    async def tick_at(self, queue: Queue, position: int) -> int:
        """Return when the record at *position* was stored; `NO_TICK` if none is retained there."""
        while self._queues.by_id(queue.id) is queue and queue.first_position <= position < queue.memory_first:
            found = await self._found(queue, position, 1)
            if found is None or not any(run.before(position) < run.before(position + 1) for run in found.runs):
                break
            if queue.first_position <= position:
                times = found.times[0]
                return next((tick for _, _, tick in times.spans(position, position + 1)), NO_TICK)
        if self._queues.by_id(queue.id) is not queue or position < queue.memory_first:
            return NO_TICK
        return queue.tick_at(position) if queue.held(position, position + 1) else NO_TICK

    async def position_at(self, queue: Queue, tick: int) -> int:
        """Return the first position that was stored at *tick* or later; see `Queue.position_at`."""
        start = queue.first_position
        while self._queues.by_id(queue.id) is queue:
            place = next(
                (each for each in queue.places(start, queue.memory_first) if each[0].highest_ticks[each[1]] >= tick),
                None,
            )
            if place is None or place[0].first_ticks[place[1]] >= tick:
                break
            start = max(place[0].first_positions[place[1]], queue.first_position)
            found = await self._found(queue, start, 1)
            if found is None:
                continue
            for position, stored in zip(found.times[0].positions, found.times[0].ticks, strict=True):
                if stored >= tick and found.next_position > queue.first_position:
                    return max(position, queue.first_position)
            start = found.next_position
        return queue.position_from(start, tick)

    # Files.

    @property
    def has_threads(self) -> bool:
        """True once anything was read."""
        return self._threads is not None

    @property
    def has_files(self) -> bool:
        """True if any file is open."""
        return self.reader.has_files

    def take_made(self, note: Callable[[int, int], None]) -> None:
        """Call *note* with the segment and the size of each file that was made again."""
        while self.reader.made:
            segment, size = self.reader.made.popitem()
            if segment in self._queues.pins.gathered:
                note(segment, size)

    def forget_dead(self) -> None:
        """Close the files of segments that no queue needs, so that their space is free."""
        gathered = self._queues.pins.gathered
        for segment in self.reader.open_segments():
            if segment not in gathered and not self._under_way[segment]:
                self.reader.close(segment)

    def close(self) -> None:
        """Close every file, after the reads that are under way. Blocks for these."""
        if self._threads is not None:
            self._threads.shutdown()
        for segment in self.reader.open_segments():
            self.reader.close(segment)
