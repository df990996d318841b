"""Reads records that are on the disk alone, for tails, consumers and callers of the log. On the event loop.

A few threads read, not the log's own: no read delays a batch. A result counts only if its place is still in the queue
when it is back on the loop; otherwise it was truncated meanwhile, or the queue was deleted. What is read and not yet
handed over shares a budget, so however many readers there are, memory stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.memory.cutting import UNLIMITED, Head, head_of, head_of_runs, runs_of
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.stored_times import held_times, position_from, tick_at, times_of
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.metrics import Counters
from mrecordlog_async.model import POSITION_MAX, Record, Run, Times
from mrecordlog_async.options import MIB, Limits
from mrecordlog_async.recovery.gathered_reader import (
    FoundRuns,
    GatheredReader,
    WantedRuns,
    cut_runs,
    wanted_runs,
)
from mrecordlog_async.storage.directory import LogDirectory

logger = logging.getLogger("mrecordlog_async")

T = TypeVar("T")

THREADS = 2
BYTES_AT_ONCE = 1 * MIB
"""A job reads at least a place, and about this much."""

JOBS_AT_ONCE = 3
"""Jobs of one read of many places: both threads read, and the next one waits for them, not for the event loop."""

LOADED_AT_ONCE = 4 * MIB
"""Bytes after which a load looks whether it has as many runs as are wanted."""

JOBS_BYTES = 24 * MIB
"""Bytes that jobs are reading, or have read for readers that have not run since."""

AHEAD_BYTES = 16 * MIB
"""Bytes that readers keep and have not handed out. With the pieces of files, all reads together take some 64 MiB."""


class LoadedRuns(NamedTuple):
    """Records of a queue as memory holds them, cut to the wanted positions, and when they were stored.

    is_copy: they were read from the disk, so nobody else holds them.
    """

    held: list[HeldRun]
    times: Times
    is_copy: bool = False

    @property
    def bytes(self) -> int:
        """Payload bytes."""
        return sum(len(run.payload) for run in self.held)


class LoadLimits(NamedTuple):
    """Limits of a load: pieces are taken until one of them is reached."""

    runs: int
    records: int = UNLIMITED
    bytes: int = UNLIMITED


NOTHING = LoadedRuns([], Times.none())
"""No records are in memory. Never changed."""


class Located(NamedTuple):
    """The records at some positions of a queue: where they are on the disk, or what memory holds of them.

    next_position: the rest begins there. bytes: on the disk, or payload bytes in memory.
    """

    queue: Queue
    wanted: list[WantedRuns]
    loaded: LoadedRuns
    next_position: int
    bytes: int


Group = list[tuple[int, WantedRuns]]
"""Parts of one gathered file, in its order, each with the number of what was located that it is of."""


def groups_of(located: Sequence[Located]) -> Iterator[Group]:
    """Yield the parts that were located in groups of about `BYTES_AT_ONCE`, in the order in which they are in files."""
    parts = [
        (part.head.segment, part.queue_id, part.start, at, part)
        for at, one in enumerate(located)
        for part in one.wanted
    ]
    parts.sort()
    group, size = Group(), 0
    for _, _, _, at, part in parts:
        if group and (group[0][1].head is not part.head or size + part.bytes_max > BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append((at, part))
        size += part.bytes_max
    if group:
        yield group


class DiskPlace(NamedTuple):
    """Neighbouring records on the disk, some 256 KiB or a larger run; what was truncated of it is cut.

    records, bytes: -1 if that is not known. tick: when the first record was stored, or one a little before it.
    """

    first_position: int
    next_position: int
    records: int
    bytes: int
    tick: int


class Ahead:
    """Records that a reader will hand out next. They may be forgotten: then it reads them again."""

    __slots__ = ("__weakref__", "bytes", "records")

    def __init__(self, held: list[HeldRun], size: int = 0) -> None:
        self.records: Iterator[Record] = chain.from_iterable(run.records() for run in held)
        self.bytes = size

    def forget(self) -> None:
        """Keep nothing."""
        self.records, self.bytes = iter(()), 0


class CompleteSegments(Protocol):
    """The part of the log's disk space that spilling needs. A reader's thread may ask it, too."""

    @property
    def complete(self) -> list[tuple[int, int]]:
        """(number, bytes) of the segments before the current one, oldest first."""

    @property
    def current(self) -> int:
        """The number of the current segment."""

    @property
    def taken_bytes(self) -> int:
        """Space of all files of the log."""

    def note_gathered(self, number: int, size: int) -> None:
        """Count the gathered file of a segment."""

    def is_gathered(self, number: int) -> bool:
        """Return whether a segment has a gathered file that was counted, and was not given up since."""


class DiskReads:
    """Reads from the gathered files of one open log. The engine owns it."""

    def __init__(
        self, directory: LogDirectory, queues: Queues, counters: Counters, space: CompleteSegments, limits: Limits
    ) -> None:
        """Read from *directory* what is retained of *queues*; count in *counters* what is found to be damaged.

        A gathered file that is missing is made again within *limits*, with up to a quarter of the memory.
        """
        self.reader = GatheredReader(
            directory,
            may_write=lambda size: space.taken_bytes + size <= limits.disk_bytes,
            memory_bytes=limits.memory_bytes,
        )
        self._space = space
        self._counters = counters
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._threads: ThreadPoolExecutor | None = None  # started by the first read
        self._under_way = Counter[int]()  # jobs by segment
        self._entering = asyncio.Lock()  # jobs begin in order: a large one is not overtaken for ever
        self._room: asyncio.Future[None] = self._loop.create_future()  # replaced by who waits for it
        self._bytes = 0  # of jobs
        self._ahead: deque[weakref.ref[Ahead]] = deque()
        self._failed: set[int] = set()  # segments of which a read has failed

    async def read_first(
        self, queue: Queue, start: int, stop: int = POSITION_MAX + 1, bytes_max: int = BYTES_AT_ONCE
    ) -> FoundRuns | None:
        """Return the first records on the disk of positions *start* … *stop* - 1: a place at least.

        Returns None if all of them are in memory, or the queue was deleted.

        Raises:
            CorruptionError: They cannot be read.
            OSError: The disk refuses the read.
        """
        while (wanted := self._wanted(queue, start, stop, bytes_max)) is not None:
            try:
                (found,) = await self._done(await self._begin([wanted]))
            except BaseException as error:
                if self._wanted(queue, start, stop, bytes_max) == wanted:  # otherwise it was truncated meanwhile
                    self._note_failed(queue, wanted, error)
                    raise
                continue
            if self._wanted(queue, start, stop, bytes_max) is not None and queue.first_position < found.next_position:
                self._read_ahead(wanted, found.next_position)
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

    def _wanted(self, queue: Queue, start: int, stop: int, bytes_max: int) -> WantedRuns | None:
        return wanted_runs(queue, start, stop, bytes_max) if self.is_there(queue) else None

    def is_there(self, queue: Queue) -> bool:
        """Return whether *queue* still exists."""
        return self._queues.by_id(queue.id) is queue

    async def _begin(self, wanted: list[WantedRuns]) -> asyncio.Future[list[FoundRuns]]:
        """Have a thread read parts of one gathered file, once there is room for them; see `_done`."""
        size = sum(one.bytes_max for one in wanted)
        async with self._entering:
            while self._bytes and self._bytes + size > JOBS_BYTES:
                self._room = self._loop.create_future()
                await self._room
            self._bytes += size
        job = self._start(wanted[0].head.segment, self.reader.read_many, wanted)
        job.add_done_callback(partial(self._on_read, size))
        return job

    async def _done(self, job: asyncio.Future[list[FoundRuns]]) -> list[FoundRuns]:
        """Return what was read; the queues may be others by then. The job goes on if the caller is cancelled."""
        return await asyncio.shield(job)

    def _start(self, segment: int, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "mrecordlog read")
        self._under_way[segment] += 1
        job = self._loop.run_in_executor(self._threads, call, *arguments)
        job.add_done_callback(partial(self._on_end, segment))
        return job

    def _on_end(self, segment: int, job: asyncio.Future[Any]) -> None:
        self._under_way[segment] -= 1
        if not job.cancelled():
            job.exception()  # it is retrieved: the caller may have been cancelled
        self.forget_dead()

    def _on_read(self, size: int, job: asyncio.Future[list[FoundRuns]]) -> None:
        self._counters.damaged["gathered"] = self.reader.damaged
        self._bytes -= size
        if not self._room.done():
            self._room.set_result(None)

    def _read_ahead(self, read: WantedRuns, position: int) -> None:
        """Have a thread read the piece in which a reader that continues at *position* finds its records."""
        ahead = self.reader.ahead(read.head, read.queue_id, position)
        if ahead is not None:
            self._start(read.head.segment, self.reader.read_ahead, read.head, ahead)

    # Records with their times, and many queues at a time.

    async def load(self, queue: Queue, start: int, stop: int, limits: LoadLimits) -> LoadedRuns:
        """Return the records at positions *start* … *stop* - 1, as many as *limits* allow and the rest of a piece.

        Does not wait if they are in memory. What is truncated meanwhile may be among them, or missing.
        """
        position, records, loaded = max(start, queue.first_position), 0, LoadedRuns([], Times.none(), True)

        def left() -> LoadLimits:
            return LoadLimits(limits.runs - len(loaded.held), limits.records - records, limits.bytes - loaded.bytes)

        while position < min(stop, queue.memory_first):
            window = left()
            if min(window) <= 0:
                return loaded
            located = self._locate_on_disk(queue, position, stop, window.records, min(window.bytes, LOADED_AT_ONCE))
            if not located.wanted:  # positions have a gap
                position = min(stop, queue.memory_first)
                break
            try:
                (found,) = await self.read_located([located])
            except (CorruptionError, OSError):
                if self.is_there(queue) and queue.first_position <= position:
                    raise
                position = max(position, queue.first_position)  # it was truncated meanwhile
                continue
            loaded.times.add_spans(found.times, position, located.next_position)
            loaded.held.extend(found.held)
            records += sum(run.record_count for run in found.held)
            position = located.next_position
        if position >= stop or len(loaded.held) >= limits.runs or not self.is_there(queue):
            return loaded
        more = in_memory(queue, position, stop, left())
        if not loaded.held:
            return more
        loaded.held.extend(more.held)
        if more.held:
            loaded.times.add_spans(more.times, position, more.held[-1].next_position)
        return loaded

    def locate(self, queue: Queue, start: int, stop: int, limits: LoadLimits) -> Located:
        """Return where the first records at positions *start* … *stop* - 1 are, as many as *limits* allow.

        On the disk, it is a place at least, and only bytes are limited.
        """
        start = max(start, queue.first_position)
        if start < min(queue.memory_first, stop):
            located = self._locate_on_disk(queue, start, stop, UNLIMITED, limits.bytes)
            if located.wanted:
                return located
        loaded = in_memory(queue, max(start, min(stop, queue.memory_first)), stop, limits)
        end = loaded.held[-1].next_position if loaded.held else stop
        return Located(queue, [], loaded, min(end, stop), loaded.bytes)

    def _locate_on_disk(self, queue: Queue, start: int, stop: int, records_max: int, bytes_max: int) -> Located:
        """Return where the first records on the disk are; nothing is wanted if there are none."""
        wanted, size, position = list[WantedRuns](), 0, start
        end = min(stop, queue.memory_first)
        for index, places in queue.places_by_segment(start, end):
            while places:
                taken = index.within(places, records_max, min(bytes_max - size, BYTES_AT_ONCE))
                if not taken:
                    taken = places[:1]
                    if wanted and size + index.length(taken) > bytes_max:
                        return Located(queue, wanted, NOTHING, position, size)
                length = index.length(taken)
                begin = max(start, index.first_positions[taken[0]])
                position = min(index.next_positions[taken[-1]], end)
                wanted.append(WantedRuns(index.head, queue.id, begin, position, length, taken))
                size, places = size + length, places[len(taken) :]
                if records_max < UNLIMITED:
                    records_max -= sum(index.records[taken[0] : taken.stop])
                    if records_max <= 0:
                        return Located(queue, wanted, NOTHING, position, size)
        return Located(queue, wanted, NOTHING, position, size)

    def places(self, queue: Queue, start: int, stop: int, most: int) -> list[DiskPlace]:
        """Return the first *most* places on the disk that have any of positions *start* … *stop* - 1; read nothing.

        Positions of a cut place are cut, and its bytes estimated, unless it has gaps: then only a read knows.
        """
        found: list[DiskPlace] = []
        for index, place in islice(queue.places(max(start, queue.first_position), stop), most):
            first, end = index.first_positions[place], index.next_positions[place]
            records, size = index.records[place], index.payload_bytes[place]
            first_left, end_left = max(first, start, queue.first_position), min(end, stop, queue.memory_first)
            is_whole = (first, end) == (first_left, end_left)
            if not is_whole and index.has_gaps(place):
                records = size = -1
            elif not is_whole:
                records, size = end_left - first_left, size * (end_left - first_left) // records
            found.append(DiskPlace(first_left, end_left, records, size, index.first_ticks[place]))
        return found

    async def read_located(self, located: Sequence[Located]) -> list[LoadedRuns]:
        """Return the records that were located, all of one file before the next, in the order in which they are in it.

        Readers of many queues then share the pieces of the files. What was truncated meanwhile may be among them.

        Raises:
            CorruptionError: Some cannot be read. So does what was removed meanwhile.
            OSError: The disk refuses a read.
        """
        loaded = [one.loaded for one in located]
        under_way = deque[tuple[Group, asyncio.Future[list[FoundRuns]]]]()
        for group in groups_of(located):
            if len(under_way) == JOBS_AT_ONCE:
                await self._end_group(*under_way.popleft(), located, loaded)
            under_way.append((group, await self._begin([part for _, part in group])))
        while under_way:
            await self._end_group(*under_way.popleft(), located, loaded)
        return loaded

    async def _end_group(
        self,
        group: Group,
        job: asyncio.Future[list[FoundRuns]],
        located: Sequence[Located],
        loaded: list[LoadedRuns],
    ) -> None:
        """Add what *job* reads to what is *loaded*."""
        try:
            read = await self._done(job)
        except BaseException as error:
            for at, part in group:
                if self.is_there(queue := located[at].queue) and queue.first_position <= part.start:
                    self._note_failed(queue, part, error)
                    break
            raise
        for (at, part), (runs, times, _) in zip(group, read, strict=True):
            if loaded[at] is NOTHING:
                loaded[at] = LoadedRuns(runs, times, True)
            else:
                loaded[at].held.extend(runs)
                loaded[at].times.add_spans(times, part.start, part.stop)

    async def count_cuts(self, truncates: Iterable[tuple[int, int]]) -> None:
        """Count what truncates, each of a queue's id to a first position, are about to leave of places with gaps.

        What cannot be read counts in full. Other records may leave memory meanwhile.
        """
        queues = [(self._queues.by_id(queue_id), first) for queue_id, first in truncates]
        while True:
            found = ((queue, cut_runs(queue, first)) for queue, first in queues if queue is not None)
            located = [Located(queue, [one], NOTHING, one.stop, 0) for queue, one in found if one is not None]
            if not located:
                return
            try:
                for group in groups_of(located):
                    read = await self._done(await self._begin([part for _, part in group]))
                    for (at, part), runs in zip(group, read, strict=True):
                        located[at].queue.note_cut(part.start, *runs.amount())
            except (CorruptionError, OSError):
                return

    def _keep(self, held: list[HeldRun]) -> Ahead:
        """Return *held*, which was read from the disk, to be handed out; have other readers forget theirs for it."""
        ahead = Ahead(held, sum(len(run.payload) for run in held))
        kept = [one for each in self._ahead if (one := each()) is not None and one.bytes]
        size = ahead.bytes + sum(one.bytes for one in kept)
        for one in kept:
            if size <= AHEAD_BYTES:
                break
            size -= one.bytes
            one.forget()
        self._ahead = deque(weakref.ref(one) for one in [*kept, ahead] if one.bytes)
        return ahead

    async def head(self, queue: Queue, start: int, records_max: int, bytes_max: int) -> Head | None:
        """Return the first records from *start* on, from the disk and from memory: within both limits, at least one.

        None if there is none any more. What was truncated until it returns is left out.
        """
        taken: list[Run] = []
        times: list[Times] = []
        position, records, size = start, 0, 0
        while records < records_max and size < bytes_max:
            found = await self.read_first(queue, position, bytes_max=min(bytes_max - size, BYTES_AT_ONCE))
            if found is None:
                break
            runs = list(runs_of(found.runs))
            taken += runs
            times.append(found.times)
            position = found.next_position
            records += sum(run.record_count for run in runs)
            size += sum(len(run.payload) for run in runs)
        if not self.is_there(queue):
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
        times.append(held_times(queue, max(position, head.start), head.stop))
        return head._replace(times=Times.joined(times))

    async def ahead(self, queue: Queue, start: int) -> Ahead:
        """Return the oldest records from *start* on, from the disk or, without waiting, as `Queue.head` does."""
        while max(start, queue.first_position) < queue.memory_first:
            found = await self.read_first(queue, start)
            if found is not None and found.runs:
                return self._keep(found.runs)
            if not self.is_there(queue):
                return Ahead([])
            start = start if found is None else found.next_position
        return Ahead(queue.head(start))

    async def any_head(self, queue: Queue, start: int, records_max: int, bytes_max: int) -> Head | None:
        """Do what `head` does, without waiting if everything from *start* on is in memory."""
        if max(start, queue.first_position) < queue.memory_first:
            return await self.head(queue, start, records_max, bytes_max)
        head = head_of(queue, start, records_max, bytes_max)
        return head if head.runs else None

    # Times.

    async def tick_at(self, queue: Queue, position: int) -> int:
        """Return when the record at *position* was stored; `NO_TICK` if none is retained there."""
        while self.is_there(queue) and queue.first_position <= position < queue.memory_first:
            found = await self.read_first(queue, position, position + 1, 1)
            if found is None or not any(run.before(position) < run.before(position + 1) for run in found.runs):
                break
            if queue.first_position <= position:
                return next((tick for _, _, tick in found.times.spans(position, position + 1)), NO_TICK)
        if not self.is_there(queue) or position < queue.memory_first:
            return NO_TICK
        return tick_at(queue, position) if queue.held(position, position + 1) else NO_TICK

    async def times_of_place(self, queue: Queue, position: int) -> Times:
        """Return the times of the place on the disk that has *position*; nothing if it is not there any more."""
        found = await self.read_first(queue, position, bytes_max=1)
        return Times.none() if found is None else found.times

    async def position_at(self, queue: Queue, tick: int) -> int:
        """Return the first position that was stored at *tick* or later; see `stored_times.position_at`."""
        start = queue.first_position
        while self.is_there(queue):
            place = next(
                (each for each in queue.places(start, queue.memory_first) if each[0].highest_ticks[each[1]] >= tick),
                None,
            )
            if place is None or place[0].first_ticks[place[1]] >= tick:
                break
            start = max(place[0].first_positions[place[1]], queue.first_position)
            found = await self.read_first(queue, start, bytes_max=1)
            if found is None:
                continue
            for position, stored in zip(found.times.positions, found.times.ticks, strict=True):
                if stored >= tick and found.next_position > queue.first_position:
                    return max(position, queue.first_position)
            start = found.next_position
        return position_from(queue, start, tick)

    # Files.

    @property
    def has_threads(self) -> bool:
        """True once anything was read."""
        return self._threads is not None

    @property
    def has_files(self) -> bool:
        """True if any file is open."""
        return self.reader.has_files

    def take_made(self) -> None:
        """Count each file that was made again."""
        while self.reader.made:
            segment, size = self.reader.made.popitem()
            if segment in self._queues.pins.gathered:
                self._space.note_gathered(segment, size)

    def forget_dead(self) -> None:
        """Close the files of segments that no queue needs, and those that were given up: their space is free then."""
        self.take_made()
        gathered = self._queues.pins.gathered
        for segment in self.reader.open_segments():
            is_dead = segment not in gathered or not self._space.is_gathered(segment)
            if is_dead and not self._under_way[segment]:
                self.reader.close(segment)

    def close(self) -> None:
        """Close every file, after the reads that are under way. Blocks for these."""
        if self._threads is not None:
            self._threads.shutdown()
        self.reader.close_all()


def in_memory(queue: Queue, start: int, stop: int, limits: LoadLimits) -> LoadedRuns:
    """Return what `DiskReads.load` does of records that are in memory."""
    held = queue.held(start, stop, limits.runs, limits.records)
    records = size = 0
    for at, run in enumerate(held):
        records, size = records + run.record_count, size + len(run.payload)
        if records >= limits.records or size >= limits.bytes:
            del held[at + 1 :]
            break
    return LoadedRuns(
        held, times_of(queue, max(start, queue.first_position), held[-1].next_position) if held else Times.none()
    )
