"""Keeps the memory of a log below its limit: the oldest segments are gathered, and their records leave memory.

1. Above half of the limit, the oldest complete segment is gathered: its records are collected from memory, and a thread
   writes them to its gathered file. One segment after the other.
2. Above the limit, gathered segments leave memory, oldest first, down to 90 % of it. Consumers that keep up read from
   memory and never notice.
3. Meanwhile appends wait in line (`Admission`), up to `SLACK_BYTES` above the limit. Where that is not enough for the
   first in line, the log continues in a new segment, and the records of the current one leave as well.

A file that cannot be written, or has no room below `disk_bytes` or on the file system, refuses no append: its places
are known, so the records leave anyway, and the file is made from its segment when it is first read. Everything here
runs on the event loop, in steps with rests between them.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import perf_counter

from mrecordlog_async.engine.intake.admission import Admission
from mrecordlog_async.engine.spilling.disk_reads import CompleteSegments
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.gathered import GatheredIndex, Gathering
from mrecordlog_async.memory.collected import CollectedRuns
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.spilling import collect, leave
from mrecordlog_async.options import memory_limit
from mrecordlog_async.recovery.gathering import identify, unidentified, write_collected
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.gathered_files import gathered_path

logger = logging.getLogger("mrecordlog_async")

WORK_SECONDS = 0.001
REST_SECONDS = 0.006
"""A step takes this long, so spilling takes a seventh of the event loop while it runs."""

RETRY_SECONDS = 1.0
"""A roll that the disk refused is tried again after this long."""

MAX_BYTES = 1 << 63

KEPT = 0.9
"""Segments leave until this part of the limit is left."""


class Spill:
    """Gathers segments and has them leave memory. The engine owns it. Below half of the limit it has no task."""

    def __init__(self, directory: LogDirectory, queues: Queues, space: CompleteSegments, admission: Admission) -> None:
        self._directory = directory
        self._queues = queues
        self._space = space
        self._admission = admission
        self._memory_bytes, self._disk_bytes = memory_limit(admission.limits), admission.limits.disk_bytes
        self._gather_above = self._memory_bytes // 2
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._left = set(queues.pins.gathered)  # segments whose records are not in memory
        self._newest_seen = -1  # the newest segment that was gathered, or needs not be
        self._was_refused = False  # the last file that was to be written
        self._wanted = 0  # memory that an append in line waits for, with those before it
        self._call_bytes = 0  # of that append
        self.begin_segment: Callable[[], Awaitable[bool]] | None = (
            None  # has the log continue in a new segment, if it can
        )
        self._next_roll: asyncio.TimerHandle | None = None  # after one that the disk refused
        self._stopped = False

    def look(self) -> None:
        """Begin if there is something to do. Called after every batch: usually it costs a comparison."""
        if self._queues.memory_bytes > self._gather_above and self._task is None and self._has_work():
            self._begin()

    def make_room(self, size: int, pending_bytes: int) -> bool:
        """Have records leave memory until a call of *size* bytes fits next to *pending_bytes* of calls before it.

        Returns False if nothing leaves that would help.
        """
        self._wanted, self._call_bytes = pending_bytes + size, size
        if self._task is None and self._has_work():
            self._begin()
        if self._task is not None:
            return True
        is_in_time = pending_bytes > 0 and self._may_fit()  # what is about to be stored can leave then
        self._wanted = self._call_bytes = 0
        return is_in_time

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run(), name="mrecordlog spill")
        self._task.add_done_callback(self._on_done)

    def _has_work(self) -> bool:
        if self._stopped:
            return False
        return self._next_to_gather() is not None or (
            self._is_full() and (self._next_to_leave() is not None or self._can_roll())
        )

    def _may_fit(self) -> bool:
        """Return whether the call that waits fits once all records have left memory, as far as they may."""
        may_roll = not self._stopped and self._next_roll is None
        least = self._queues.overhead_bytes + self._queues.pins.gathered_bytes
        return may_roll and least + self._call_bytes <= self._memory_bytes

    def _can_roll(self) -> bool:
        """Return whether a new segment helps the call that waits: the records of the current one can leave then."""
        return self._call_bytes > 0 and self._may_fit() and self._queues.pins.is_needed(self._space.current)

    def _is_full(self) -> bool:
        return self._queues.memory_bytes + self._wanted > self._memory_bytes

    def _goal(self) -> int:
        limit = self._memory_bytes
        return min(int(KEPT * limit), limit - self._wanted)

    async def stop(self) -> None:
        """End after the current step."""
        self._stopped = True
        if self._next_roll is not None:
            self._next_roll.cancel()
        if self._task is not None:
            with suppress(BaseException):
                await asyncio.shield(self._task)

    def close(self) -> None:
        """End the thread, after what it does now. Blocks for that."""
        if self._thread is not None:
            self._thread.shutdown()

    @property
    def has_thread(self) -> bool:
        """True if there is a thread to end."""
        return self._thread is not None

    async def _run(self) -> None:
        while not self._stopped:
            if self._is_full():
                await self._leave()
            number = self._next_to_gather()
            if number is not None:
                await self._gather(number)
            elif not self._is_full() or (self._next_to_leave() is None and not await self._roll()):
                return

    async def _roll(self) -> bool:
        """Have the log continue in a new segment if that helps, and the disk allows it; return whether it does."""
        if not self._can_roll() or self.begin_segment is None:
            return False
        if not await self.begin_segment():
            self._next_roll = self._loop.call_later(RETRY_SECONDS, self._on_next_roll)
        return self._next_roll is None

    def _on_next_roll(self) -> None:
        self._next_roll = None
        self._admission.update()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._wanted = self._call_bytes = 0
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stopped = True  # appends are refused at the limit, as without it
            logger.error("%s: records no longer leave memory", self._directory.path, exc_info=error)
        self._admission.update()

    # Gathering.

    def _next_to_gather(self) -> int | None:
        """Return the oldest complete segment that is not gathered yet and has live records, or None."""
        older, pins = self._space.complete, self._queues.pins
        newest = older[-1:]  # once: the log's thread may empty the list meanwhile
        if not newest or newest[0][0] <= self._newest_seen:
            return None
        if self._queues.memory_bytes <= self._gather_above and not self._is_full():
            return None
        for number, _ in older[bisect_right(older, (self._newest_seen, MAX_BYTES)) :]:
            if pins.is_needed(number) and number not in pins.gathered:
                return number
            self._newest_seen = number
        return None

    async def _gather(self, number: int) -> None:
        self._newest_seen = number
        collected = CollectedRuns()
        if not await self._take_steps(collect(self._queues, number, collected)):
            return  # a file with a part of its segment would be believed by the next opening
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "mrecordlog gather")
        write = partial(self._write, writes=self._has_disk_space(number))
        index, size = await self._loop.run_in_executor(
            self._thread, write, number, self._queues.opening, self._queues.last_batch, collected
        )
        if not self._queues.pins.is_needed(number):  # it was truncated, and maybe removed, meanwhile
            await self._loop.run_in_executor(self._thread, self._remove, number)
            return
        if size:
            self._space.note_gathered(number, size)
        self._queues.pins.add_gathered(index)
        self._admission.update()

    def _has_disk_space(self, number: int) -> bool:
        """Return whether the file of a segment leaves room for another segment below the limit of the disk."""
        size = next((size for older, size in self._space.complete if older == number), 0)
        return self._space.taken_bytes + 2 * size <= self._disk_bytes

    def _write(
        self, number: int, opening: int, batch: int, collected: CollectedRuns, *, writes: bool
    ) -> tuple[GatheredIndex, int]:
        """Write the file of a segment; without it if the disk refuses it, or not *writes*. Runs on the thread."""
        try:
            head = identify(self._directory, number, opening, batch)
        except (CorruptionError, OSError) as error:  # what was collected is whole; the next opening reads the segment
            if self._queues.pins.is_needed(number):  # otherwise it was truncated, and removed, meanwhile
                logger.warning("%s: segment %d cannot be identified: %s", self._directory.path, number, error)
            head = unidentified(number, opening, batch)
        gathering = Gathering(head)
        size, refusal = write_collected(self._directory, gathering, [collected], writes=writes)
        if refusal is not None and not self._was_refused:
            logger.warning(
                "%s: the gathered file of segment %d was not written (%s); it is made when it is read",
                *(self._directory.path, number, refusal),
            )
        self._was_refused = refusal is not None
        return gathering.index, size

    def _remove(self, number: int) -> None:
        with suppress(OSError):
            self._directory.files.unlink(gathered_path(self._directory.path, number))

    # Leaving.

    async def _leave(self) -> None:
        """Have gathered segments leave, oldest first, until the goal is reached."""
        while not self._stopped and self._queues.memory_bytes > self._goal():
            index = self._next_to_leave()
            if index is None:
                return
            if await self._take_steps(leave(self._queues, index)):
                self._left = {*self._left.intersection(self._queues.pins.segments), index.head.segment}

    def _next_to_leave(self) -> GatheredIndex | None:
        """Return the oldest segment whose records are in memory, if it is gathered: no other may leave before it."""
        pins = self._queues.pins
        number = min(pins.segments - self._left, default=None)
        return None if number is None else pins.gathered.get(number)

    async def _take_steps(self, steps: Iterator[None]) -> bool:
        """Take all *steps*, with rests between them; return whether all were taken, before the log is closed."""
        lock = self._queues.lock
        while True:
            if lock.acquire(blocking=False):  # otherwise the log's thread writes a table
                try:
                    until = perf_counter() + WORK_SECONDS
                    for _ in steps:
                        if perf_counter() >= until:
                            break
                    else:
                        return True
                finally:
                    lock.release()
                    self._admission.update()
            if self._stopped:
                return False
            await asyncio.sleep(REST_SECONDS)
