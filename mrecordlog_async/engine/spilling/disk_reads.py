"""Reads records that are on the disk alone, for tails, consumers and callers of the log. On the event loop.

A few threads read, not the log's own: no read delays a batch. A result counts only if its place is still in the queue
when it is back on the loop; otherwise it was truncated meanwhile, or the queue was deleted. What is read and not yet
handed over shares a budget, so however many readers there are, memory stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Protocol

from mrecordlog_async.engine.intake.commands import ELSEWHERE
from mrecordlog_async.errors import CorruptionError, LogClosedError
from mrecordlog_async.format.gathered import PLACE_BYTES, GatheredIndex
from mrecordlog_async.memory.cutting import UNLIMITED, Head, head_of, head_of_runs
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import runs_of
from mrecordlog_async.memory.stored_times import position_from, times_of
from mrecordlog_async.metrics import Counters
from mrecordlog_async.model import POSITION_MAX, Record, Times
from mrecordlog_async.options import MIB, Limits, memory_limit
from mrecordlog_async.recovery.gathered_reader import (
    FoundRuns,
    GatheredReader,
    WantedRuns,
    cut_runs,
)
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import PIECE_BYTES

logger = logging.getLogger("mrecordlog_async")

THREADS = 2
BYTES_AT_ONCE = PIECE_BYTES - 2 * DIRECT_BLOCK_BYTES
"""A job reads at least a place, and about this much: with the rest of its blocks, no more than a piece."""

JOBS_AT_ONCE = 3
"""Jobs of one read of many places: both threads read, and the next one waits for them, not for the event loop."""

LOADED_AT_ONCE = 8 * MIB
"""Bytes after which a load looks whether it has as many runs as are wanted."""

JOBS_BYTES = 16 * MIB
"""Bytes that jobs are reading, or have read for readers that have not run since."""

NEXT_BYTES = 16 * MIB
"""Bytes that were read before anybody wanted them."""

NEXT_SECONDS = 5.0
"""They are dropped after this time: their reader has stopped, or is too slow to gain from them."""

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
        return sum([len(run.payload) for run in self.held])

    def add(self, held: Sequence[HeldRun], times: Times, start: int, stop: int) -> None:
        """Add *held*, the records at positions *start* … *stop* - 1, and what *times* say of these."""
        self.held.extend(held)
        self.times.add_spans(times, start, stop)


class LoadLimits(NamedTuple):
    """Limits of a load: pieces are taken until one of them is reached."""

    runs: int
    records: int = UNLIMITED
    bytes: int = UNLIMITED

    def without(self, loaded: LoadedRuns) -> LoadLimits:
        """Return what is left of them."""
        records = sum(run.record_count for run in loaded.held) if self.records < UNLIMITED else 0
        return LoadLimits(self.runs - len(loaded.held), self.records - records, self.bytes - loaded.bytes)


PLACE = LoadLimits(1, bytes=1)
"""As little as can be read."""

JOB = LoadLimits(1_000, bytes=BYTES_AT_ONCE - PLACE_BYTES)
"""About as much as one job reads."""

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

Job = asyncio.Future[list[FoundRuns]]
"""A thread reads the parts of a group."""

Begun = Sequence[tuple[Group, Job]]


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
            memory_bytes=memory_limit(limits),
        )
        self._space = space
        self._counters = counters
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._threads: ThreadPoolExecutor | None = None  # started by the first read
        self._entering = asyncio.Lock()  # jobs begin in order: a large one is not overtaken for ever
        self._room: asyncio.Future[None] = self._loop.create_future()  # replaced by who waits for it
        self._bytes = 0  # of jobs
        self._next: dict[tuple[int, int], tuple[Located, Begun]] = {}  # by queue id and position
        self._ahead: deque[weakref.ref[Ahead]] = deque()
        self._failed: set[int] = set()  # segments of which a read has failed
        self._stopped = False

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

    def is_there(self, queue: Queue) -> bool:
        """Return whether *queue* still exists."""
        return self._queues.by_id(queue.id) is queue

    async def _enter(self, group: Group) -> Job:
        """Have a thread read parts of one gathered file, once there is room for them."""
        async with self._entering:
            while not self._has_room(sum(part.bytes_max for _, part in group)):
                self._room = self._loop.create_future()
                await self._room
            return self._begin(group)

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= JOBS_BYTES

    def _begin(self, group: Group) -> Job:
        if self._stopped:
            raise LogClosedError()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "mrecordlog read")
        wanted = [part for _, part in group]
        job = self._loop.run_in_executor(self._threads, self.reader.read_many, wanted)
        size = sum(part.bytes_max for part in wanted)
        self._bytes += size
        job.add_done_callback(partial(self._on_end, size))
        return job

    def _on_end(self, size: int, job: Job) -> None:
        self._bytes -= size
        self._counters.damaged["gathered"] = self.reader.damaged
        if not job.cancelled():
            job.exception()  # it is retrieved: the caller may have been cancelled
        if not self._room.done():
            self._room.set_result(None)
        self.forget_dead()

    # Records with their times, and many queues at a time.

    async def load(self, queue: Queue, start: int, stop: int, limits: LoadLimits) -> LoadedRuns:
        """Return the records at positions *start* … *stop* - 1, as many as *limits* allow and the rest of a piece.

        Does not wait if they are in memory. What is truncated meanwhile may be among them, or missing. With a limit,
        the records before those that cannot be read are returned; without one, all or none.

        Raises:
            CorruptionError: Records on the disk cannot be read.
            OSError: The disk refuses a read.
        """
        position, left, loaded = max(start, queue.first_position), limits, LoadedRuns([], Times.none(), True)
        while position < min(stop, queue.memory_first) and min(left) > 0:
            located, begun = self._next.pop((queue.id, position), (None, ()))
            if located is None or located.next_position > stop:
                bytes_max, begun = min(left.bytes, LOADED_AT_ONCE), ()
                located = self._locate_on_disk(queue, position, stop, left.records, bytes_max)
            if not located.wanted:  # positions have a gap
                position = min(stop, queue.memory_first)
                break
            part = [located.loaded]
            try:
                await self._read_into(part, [located], begun)
            except (CorruptionError, OSError):
                if self.is_there(queue) and queue.first_position <= position:
                    if limits == LoadLimits(UNLIMITED) or not (loaded.held or part[0].held):
                        raise
                    # The reader gets what comes before it, and the error when it asks for the rest.
                    loaded.add(part[0].held, part[0].times, position, located.next_position)
                    return loaded
                position = max(position, queue.first_position)  # it was truncated meanwhile
                continue
            (found,) = part
            loaded.add(found.held, found.times, position, located.next_position)
            position, left = located.next_position, left.without(found)
        if position >= stop or min(left) <= 0 or not self.is_there(queue):
            return loaded
        more = in_memory(queue, position, stop, left)
        if not loaded.held:
            return more
        if more.held:
            loaded.add(more.held, more.times, position, more.held[-1].next_position)
        return loaded

    def read_ahead(self, queue: Queue, start: int, stop: int, size: int) -> None:
        """Begin to read what a reader wants next that has just read *size* bytes: as much again, if there is room.

        `load` from *start* on finds it. What is not wanted for `NEXT_SECONDS` is dropped.
        """
        if size < BYTES_AT_ONCE // 2:  # few of many small reads are of one reader
            return
        key, located = (queue.id, start), self._locate_on_disk(queue, start, stop, UNLIMITED, size)
        kept = located.bytes + sum(each.bytes for each, _ in self._next.values())
        if located.wanted and key not in self._next and kept <= NEXT_BYTES and self._has_room(located.bytes):
            with suppress(LogClosedError):
                self._next[key] = located, [(group, self._begin(group)) for group in groups_of([located])]
                self._loop.call_later(NEXT_SECONDS, self._next.pop, key, None)

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
        """Return where the first records on the disk are, until a limit is reached; nothing is wanted without any."""
        wanted, size, position = list[WantedRuns](), 0, start
        end = min(stop, queue.memory_first)
        for index, places in queue.places_by_segment(start, end):
            if not wanted and places:
                skipped = index.before(places[0], start)
                records_max, bytes_max = records_max + skipped[0], bytes_max + skipped[1]
            while places and records_max > 0 and bytes_max > 0:
                taken, records, payload_bytes = index.first(places, records_max, bytes_max, BYTES_AT_ONCE)
                length = index.length(taken)
                if wanted and length > max(bytes_max, BYTES_AT_ONCE):  # a large run, for the next read
                    return Located(queue, wanted, NOTHING, position, size)
                begin, position = max(start, index.first_positions[taken[0]]), min(index.next_positions[taken[-1]], end)
                wanted.append(WantedRuns(index.head, queue.id, begin, position, length))
                size, places = size + length, places[len(taken) :]
                records_max, bytes_max = records_max - records, bytes_max - payload_bytes
            if records_max <= 0 or bytes_max <= 0:
                break
        return Located(queue, wanted, NOTHING, position, size)

    def places(self, queue: Queue, start: int, stop: int, most: int) -> list[DiskPlace]:
        """Return the first *most* places on the disk that have any of positions *start* … *stop* - 1; read nothing.

        Positions of a cut place are cut, and its bytes estimated, unless it has gaps: then only a read knows.
        """
        places = islice(queue.places(max(start, queue.first_position), stop), most)
        return [self._place(queue, index, place, start, stop) for index, place in places]

    def _place(self, queue: Queue, index: GatheredIndex, place: int, start: int, stop: int) -> DiskPlace:
        first, end = index.first_positions[place], index.next_positions[place]
        records, size = index.records[place], index.payload_bytes[place]
        first_left, end_left = max(first, start, queue.first_position), min(end, stop, queue.memory_first)
        is_whole = (first, end) == (first_left, end_left)
        if not is_whole and index.has_gaps(place):
            records = size = -1
        elif not is_whole:
            records, size = end_left - first_left, size * (end_left - first_left) // records
        return DiskPlace(first_left, end_left, records, size, index.first_ticks[place])

    def amount(self, queue: Queue, start: int, stop: int) -> tuple[int, int, list[DiskPlace]]:
        """Return what `places` adds up to: records and payload bytes, and those places of which that is not known."""
        records, size, unknown = 0, 0, list[DiskPlace]()
        pairs = [pair for pair in queue.places_by_segment(max(start, queue.first_position), stop) if pair[1]]
        for index, places in pairs:
            records += sum(index.records[places.start : places.stop])
            size += sum(index.payload_bytes[places.start : places.stop])
        # Only the first place and the last one may be cut.
        for at, place in sorted({(0, pairs[0][1][0]), (len(pairs) - 1, pairs[-1][1][-1])} if pairs else ()):
            index, end = pairs[at][0], self._place(queue, pairs[at][0], place, start, stop)
            records, size = records - index.records[place], size - index.payload_bytes[place]
            if end.records < 0:
                unknown.append(end)
            else:
                records, size = records + end.records, size + end.bytes
        return records, size, unknown

    async def read_located(self, located: Sequence[Located]) -> list[LoadedRuns]:
        """Return the records that were located, all of one file before the next, in the order in which they are in it.

        Readers of many queues then share the pieces of the files. What was truncated meanwhile may be among them.

        Raises:
            CorruptionError: Some cannot be read. So does what was removed meanwhile.
            OSError: The disk refuses a read.
        """
        loaded = [one.loaded for one in located]
        await self._read_into(loaded, located, ())
        return loaded

    async def _read_into(self, loaded: list[LoadedRuns], located: Sequence[Located], begun: Begun) -> None:
        """Add to *loaded* what was *located*, file by file, until one cannot be read."""
        if asyncio.get_running_loop() is not self._loop:
            raise LogClosedError(ELSEWHERE)
        under_way = deque(begun)
        for group in () if begun else groups_of(located):
            if len(under_way) == JOBS_AT_ONCE:
                await self._end_group(*under_way.popleft(), located, loaded)
            under_way.append((group, await self._enter(group)))
        while under_way:
            await self._end_group(*under_way.popleft(), located, loaded)

    async def _end_group(self, group: Group, job: Job, located: Sequence[Located], loaded: list[LoadedRuns]) -> None:
        """Add what *job* reads to what is *loaded*."""
        try:
            read = await asyncio.shield(job)  # the job goes on if the caller is cancelled
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
                loaded[at].add(runs, times, part.start, part.stop)

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
                    read = await asyncio.shield(await self._enter(group))
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

        Does not wait if all are in memory. None if there is none any more. What was truncated until it returns is left
        out.
        """
        if max(start, queue.first_position) >= queue.memory_first:
            head = head_of(queue, start, records_max, bytes_max)
            return head if head.runs else None
        limits = LoadLimits(UNLIMITED, records_max, bytes_max)
        while (loaded := await self.load(queue, start, POSITION_MAX + 1, limits)).held and self.is_there(queue):
            first = max(start, queue.first_position)
            runs = (run for run in runs_of(loaded.held) if run.next_position > first)
            head = head_of_runs(runs, first, records_max, bytes_max, queue.next_position)
            if head.runs:
                self.read_ahead(queue, head.stop, POSITION_MAX + 1, min(loaded.bytes, bytes_max))
                return head._replace(times=loaded.times)
        return None

    async def ahead(self, queue: Queue, start: int) -> Ahead:
        """Return the oldest records from *start* on, from the disk or, without waiting, as `Queue.head` does."""
        while (start := max(start, queue.first_position)) < (stop := queue.memory_first) and self.is_there(queue):
            loaded = await self.load(queue, start, stop, JOB)
            if loaded.held:
                self.read_ahead(queue, loaded.held[-1].next_position, POSITION_MAX + 1, min(loaded.bytes, JOB.bytes))
                return self._keep(loaded.held)
            start = stop
        return Ahead(queue.held(start, None, 1) if self.is_there(queue) else [])

    # Times.

    async def times_of_place(self, queue: Queue, position: int) -> Times:
        """Return the times of the place on the disk that has *position*; nothing if it is not there any more."""
        return (await self.load(queue, position, queue.memory_first, PLACE)).times

    async def position_at(self, queue: Queue, tick: int) -> int:
        """Return the first position that was stored at *tick* or later; see `stored_times.position_at`."""
        start = queue.first_position
        while self.is_there(queue):
            places = queue.places(start, queue.memory_first)
            index, place = next((each for each in places if each[0].highest_ticks[each[1]] >= tick), (None, 0))
            if index is None:
                break
            start = max(index.first_positions[place], queue.first_position)
            # Where a truncate has cut the place, the time it begins with is that of another record.
            if index.first_ticks[place] >= tick and index.first_positions[place] == start:
                break
            stop = min(index.next_positions[place], queue.memory_first)
            loaded = await self.load(queue, start, stop, PLACE)
            for position, stored in zip(loaded.times.positions, loaded.times.ticks, strict=True):
                if stored >= tick and stop > queue.first_position:
                    return max(position, queue.first_position)
            start = stop
        return position_from(queue, start, tick)

    # Files.

    @property
    def has_threads(self) -> bool:
        """True once anything was read."""
        return self._threads is not None

    def take_made(self) -> None:
        """Count each file that was made again; remove it if its segment has died meanwhile, and nobody else will."""
        while self.reader.made:
            segment, size = self.reader.made.popitem()
            if segment in self._queues.pins.gathered:
                self._space.note_gathered(segment, size)
            elif self._threads is not None and not self._stopped:  # otherwise the next opening removes it
                self._threads.submit(self.reader.remove, segment)

    def forget_dead(self) -> None:
        """Close the files of segments that no queue needs, and those that were given up: their space is free then."""
        self.take_made()
        gathered = self._queues.pins.gathered
        for segment in self.reader.open_segments():
            if segment not in gathered or not self._space.is_gathered(segment):
                self.reader.close(segment)

    def stop(self) -> None:
        """Begin no more reads: the log closes. Who needs one gets LogClosedError."""
        self._stopped = True

    def close(self) -> None:
        """Close every file, after the reads that are under way; after `stop`. Blocks for these."""
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
