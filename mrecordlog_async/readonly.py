"""`ReadOnlyLog`: a read-only view of a log directory. It takes no lock, and a writer may be running.

Used by the command line and by Spark on files. Blocking: it reads the directory once and shows that state; `refresh`
picks up new records. Everything it shows is on the disk, so no crash can undo what was read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import chain

from mrecordlog_async.batches import check_bounds
from mrecordlog_async.errors import LogClosedError, RecordsOnDiskError
from mrecordlog_async.format.gathered import GatheredHead
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.reads import QueueLookup, held_between, summarize, time_at
from mrecordlog_async.memory.runs import as_runs
from mrecordlog_async.memory.settings import consumer_summaries, options_of
from mrecordlog_async.memory.store import RetainedStores
from mrecordlog_async.memory.stored_times import position_at, position_from
from mrecordlog_async.model import (
    POSITION_MAX,
    ConsumerSummary,
    QueueSummary,
    Record,
    RecoveryProgress,
    RecoveryReport,
    Run,
    Start,
    tick_of_time,
)
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.recovery.beyond_memory import MemoryBound, MemoryBounds, has_state
from mrecordlog_async.recovery.follower import Follower, LostTrackError
from mrecordlog_async.recovery.gathered_reader import GatheredReader, wanted_runs
from mrecordlog_async.recovery.live_reader import read_live_log
from mrecordlog_async.recovery.places import PlacedStores
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.replay import NewStores
from mrecordlog_async.recovery.segment_files import is_there
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem

READ_BYTES = 1 << 20
"""Bytes that are read at a time."""


class ReadOnlyLog:
    """The queues of a log as they were on the disk when it was opened or last refreshed.

    Reads do what those of the same name of `MultiRecordLog` do. After `close` they raise LogClosedError.

    Attributes:
        directory: Absolute path of the log's directory.
        recovery_report: What reading it found.
        went_back: Whether a refresh found an older copy of the log in its place. Records that were read before may then
            not be in it, and their positions may have other records.
    """

    def __init__(
        self,
        directory: LogDirectory,
        recovered: RecoveredLog,
        seconds: float,
        new_stores: NewStores = RetainedStores,
        bounds: MemoryBounds | None = None,
    ) -> None:
        """Use `open`."""
        self.directory = directory.path
        self.recovered = recovered
        self.recovery_report: RecoveryReport = recovered.report(seconds)
        self._log_directory = directory
        self._lookup = QueueLookup(recovered.queues)
        self._new_stores = new_stores
        self._bounds = bounds
        self._follow(0)
        self.went_back = False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        memory_bytes: int | None = None,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        filesystem: FileSystem | None = None,
    ) -> ReadOnlyLog:
        """Read the log in *directory*.

        A batch that a running writer has not finished is not shown. Needs a handful of descriptors, regardless of the
        number of segments. If a writer removes segments faster than they can be read, records it truncated meanwhile
        may already be missing, while records it appended meanwhile are not shown yet.

        Args:
            directory: Where the log's files are.
            memory_bytes: Keep about this much of the newest records in memory, and a segment more; `read` reads the
                others from the disk, and `range` raises RecordsOnDiskError for them. None keeps all.
            on_progress: Called while segments are read.
            filesystem: Replaces the operating system's files, for tests.

        Returns:
            The log as it is on the disk.

        Raises:
            FileNotFoundError: There is no log in *directory*.
            CorruptionError: Acknowledged data is damaged.
            OSError: A file cannot be read.
        """
        bounds = None if memory_bytes is None else MemoryBounds(memory_bytes, by_index=True, is_usual=True)
        return cls._open(LogDirectory.at(directory, filesystem), on_progress, RetainedStores, bounds)

    @classmethod
    def open_placed(
        cls,
        directory: str | os.PathLike[str],
        *,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        filesystem: FileSystem | None = None,
    ) -> ReadOnlyLog:
        """Open a log without its records, as `maintenance.stored_log` does: see `recovery.places`.

        Positions are known. Reading a record finds none, and the sizes of a queue that was truncated are too large.
        """
        return cls._open(LogDirectory.at(directory, filesystem), on_progress, PlacedStores)

    @classmethod
    def _open(
        cls,
        directory: LogDirectory,
        on_progress: Callable[[RecoveryProgress], None] | None,
        new_stores: NewStores,
        bounds: MemoryBounds | None = None,
    ) -> ReadOnlyLog:
        begun = time.perf_counter()
        recovered = read_live_log(directory, on_progress, new_stores, bounds)
        return cls(directory, recovered, time.perf_counter() - begun, new_stores, bounds)

    def _follow(self, failed_looks: int) -> None:
        """Continue from `recovered`."""
        directory, bounds = self._log_directory, self._bounds
        memory_bytes = 0 if bounds is None else bounds.memory_bytes
        bound = None if bounds is None else MemoryBound(directory, bounds, writes=False)
        self._follower = Follower(directory, self.recovered, failed_looks, bound)
        self._gathered = GatheredReader(directory, self._fits, may_write=lambda size: False, memory_bytes=memory_bytes)
        self._gathered.count_cuts(self.recovered.queues)

    def _fits(self, found: GatheredHead, wanted: GatheredHead) -> bool:
        """Return whether a gathered file has the records of a segment that this log retains."""
        openings, last_batch = self.recovered.queues.openings, self.recovered.end.last_batch
        return found.whole == wanted.whole and has_state(found, openings, last_batch)

    def refresh(self) -> bool:
        """Read what a running writer has stored since. Records already returned do not change.

        The cost depends on the new data, not on the size of the log. The whole log is read again only if segments
        were written and removed between two calls, or if something looks damaged.

        Returns:
            True if there was anything new.

        Raises:
            LogClosedError: This log was closed.
            CorruptionError: As for `open`, as are FileNotFoundError and OSError.
        """
        self._lookup.check_readable()
        try:
            is_new = self._follower.read_on()
            self._gathered.count_cuts(self.recovered.queues)
            return is_new
        except LostTrackError:
            return self._read_again()
        finally:
            for segment in self._gathered.open_segments():
                if segment not in self.recovered.queues.pins.gathered:
                    self._gathered.close(segment)

    def _read_again(self) -> bool:
        before = self.recovered
        recovered = read_live_log(self._log_directory, None, self._new_stores, self._bounds)
        failed_looks = self._follower.failed_looks
        self.went_back |= self._is_older_copy(before, recovered)
        self.recovered, self._lookup.queues = recovered, recovered.queues
        self._gathered.close_all()
        self._follow(failed_looks)
        return (recovered.log_id, recovered.last) != (before.log_id, before.last)

    def _is_older_copy(self, before: RecoveredLog, now: RecoveredLog) -> bool:
        """Return whether the log that is there is not what the log that was read became."""
        last = before.last
        if last is None or before.log_id != now.log_id:
            return False
        found = is_there(self._log_directory, last)
        if found is not None:
            return not found
        # The segment was removed, or there never was one. Each opening that stored something has a random number.
        openings, known = before.queues.openings[-1:], now.queues.openings
        oldest = known[0].first_batch if known else 0
        return now.end.segment < last.segment or any(
            opening not in known for opening in openings if opening.first_batch >= oldest
        )

    # Reading.

    def range(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records of *queue* with positions *start* … *stop* - 1; see `MultiRecordLog.range`."""
        held = held_between(self._lookup.find(queue), start, stop, limit)
        return chain.from_iterable(run.records() for run in held)

    def read(self, queue: str, start: Start | None = None, stop: int | None = None) -> Iterator[Record]:
        """Yield the records that `range` yields, those that are not in memory from the disk.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all that were read when this is called.

        Raises:
            QueueNotFoundError: No queue has this name.
            FileNotFoundError: A writer has truncated the records since: `refresh`.
            CorruptionError: Records on the disk are damaged.
            OSError: The disk refuses a read.
        """
        found = self._lookup.find(queue)
        position = self._start_of(found, start)
        check_bounds(position, stop)
        end = found.next_position if stop is None else min(stop, found.next_position)
        return self._records(found, found.first_position if position is None else position, end)

    def _records(self, queue: Queue, position: int, end: int) -> Iterator[Record]:
        while (wanted := wanted_runs(queue, position, end, READ_BYTES)) is not None:
            found = self._gathered.read(wanted)
            for run in found.runs:
                yield from run.records()
            position = found.next_position
        for run in queue.held(max(position, queue.memory_first), end):
            yield from run.records()

    def _start_of(self, queue: Queue, start: Start | None) -> int | None:
        """Return the position that *start* means; for a time, read the place in which it is."""
        if not isinstance(start, datetime):
            return start
        tick, position = tick_of_time(start), queue.first_position
        while True:
            try:
                return position_from(queue, position, tick, is_exact=True)
            except RecordsOnDiskError as error:
                wanted = wanted_runs(queue, error.position, POSITION_MAX, 1)
                assert wanted is not None, "the time changes inside a place on the disk"
                found = self._gathered.read(wanted)
                for at, _, stored in found.times.spans(wanted.start, found.next_position):
                    if stored >= tick:
                        return at
                position = found.next_position

    def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Sequence[Run]:
        """Return the records that `range` yields as runs; see `MultiRecordLog.runs`."""
        return as_runs(held_between(self._lookup.find(queue), start, stop, limit))

    def queue_exists(self, queue: str) -> bool:
        """Return whether a queue of this name exists."""
        return self._lookup.get(queue) is not None

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        self._lookup.check_readable()
        return self._lookup.queues.names()

    def queue_summary(self, queue: str) -> QueueSummary:
        """Return the positions and sizes of one queue."""
        return summarize(self._lookup.find(queue))

    def summary(self) -> dict[str, QueueSummary]:
        """Return the positions and sizes of every queue, by name in order."""
        return self._lookup.summaries()

    def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated: its next position if it is empty."""
        return self._lookup.find(queue).first_position

    def last_position(self, queue: str) -> int | None:
        """Return the position before the next one, even if it is truncated; None if that is 0."""
        next_position = self._lookup.find(queue).next_position
        return next_position - 1 if next_position else None

    def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets."""
        return self._lookup.find(queue).next_position

    def time_of(self, queue: str, position: int) -> datetime | None:
        """Return when the record of *queue* at *position* was stored; see `MultiRecordLog.time_of`."""
        return time_at(self._lookup.find(queue), position)

    def position_at(self, queue: str, time: datetime) -> int:
        """Return the first position that was stored at *time* or later; see `MultiRecordLog.position_at`."""
        return position_at(self._lookup.find(queue), tick_of_time(time))

    def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*. Whether it is sealed is in its summary."""
        return options_of(self._lookup.find(queue).options)

    def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand, by name in order; see `MultiRecordLog.consumers`."""
        found = self._lookup.find(queue)
        return {one.consumer: one for one in consumer_summaries(found, sorted(found.consumers))}

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        self._lookup.check_readable()
        return sorted((rule.pattern, rule.name) for rule in self._lookup.queues.rules.of_patterns())

    # The end.

    def close(self) -> None:
        """Release what was read; later reads raise LogClosedError."""
        self._lookup.closed = LogClosedError
        self._gathered.close_all()

    def __enter__(self) -> ReadOnlyLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
