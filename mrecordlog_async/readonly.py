"""`ReadOnlyLog`: a read-only view of a log directory. It takes no lock, and a writer may be running.

Used by the command line and by Spark on files. Blocking: it reads the directory once and shows that state; `refresh`
picks up new records. Everything it shows is on the disk, so no crash can undo what was read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain

from mrecordlog_async.batches import check_bounds, check_limit
from mrecordlog_async.errors import LogClosedError, RecordsOnDiskError
from mrecordlog_async.memory.cutting import cut_stream
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.reads import QueueLookup, held_between, position_of, summarize, time_at
from mrecordlog_async.memory.runs import as_runs
from mrecordlog_async.memory.settings import consumer_summaries, options_of
from mrecordlog_async.memory.store import RetainedStores
from mrecordlog_async.memory.stored_times import position_at
from mrecordlog_async.model import (
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
from mrecordlog_async.recovery.follower import Follower, LostTrackError
from mrecordlog_async.recovery.live_reader import read_live_log
from mrecordlog_async.recovery.positions import PositionStores
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.segment_files import is_there
from mrecordlog_async.recovery.segment_reader import QueueContents, SegmentReader
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem


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
        self, directory: LogDirectory, recovered: RecoveredLog, seconds: float, *, keeps_records: bool
    ) -> None:
        """Use `open`."""
        self.directory = directory.path
        self.recovered = recovered
        self.recovery_report: RecoveryReport = recovered.report(seconds)
        self._log_directory = directory
        self._lookup = QueueLookup(recovered.queues)
        self._keeps_records = keeps_records
        self._follow(0)
        self.went_back = False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        keep_records: bool = True,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        filesystem: FileSystem | None = None,
    ) -> ReadOnlyLog:
        """Read the log in *directory*.

        A batch that a running writer has not finished is not shown. Needs a handful of descriptors, regardless of the
        number of segments. If a writer removes segments faster than they can be read, records it truncated meanwhile
        may already be missing, while records it appended meanwhile are not shown yet.

        Args:
            directory: Where the log's files are.
            keep_records: Keep all records in memory. False keeps only positions, so a log of any size needs little
                memory: `read` and `read_runs` read the records from the disk, and `range` raises RecordsOnDiskError.
            on_progress: Called while segments are read.
            filesystem: Replaces the operating system's files, for tests.

        Returns:
            The log as it is on the disk.

        Raises:
            FileNotFoundError: There is no log in *directory*.
            CorruptionError: Acknowledged data is damaged.
            OSError: A file cannot be read.
        """
        begun, log = time.perf_counter(), LogDirectory.at(directory, filesystem)
        recovered = read_live_log(log, on_progress, RetainedStores if keep_records else PositionStores)
        return cls(log, recovered, time.perf_counter() - begun, keeps_records=keep_records)

    def _follow(self, failed_looks: int) -> None:
        """Continue from `recovered`."""
        recovered = self.recovered
        self._follower = Follower(self._log_directory, recovered, failed_looks)
        self._reader = SegmentReader(self._log_directory, recovered.log_id, recovered.queues, lambda: recovered.last)

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
            return self._follower.read_on()
        except LostTrackError:
            return self._read_again()

    def _read_again(self) -> bool:
        before = self.recovered
        recovered = read_live_log(self._log_directory, None, RetainedStores if self._keeps_records else PositionStores)
        failed_looks = self._follower.failed_looks
        self.went_back |= self._is_older_copy(before, recovered)
        self.recovered, self._lookup.queues = recovered, recovered.queues
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
        held = held_between(self._in_memory(queue), start, stop, limit)
        return chain.from_iterable(run.records() for run in held)

    def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Sequence[Run]:
        """Return the records that `range` yields as runs; see `MultiRecordLog.runs`."""
        return as_runs(held_between(self._in_memory(queue), start, stop, limit))

    def read(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records that `range` yields, those that are not in memory from the disk.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all that were read when this is called.
            limit: At most this many records; None for all.

        Raises:
            QueueNotFoundError: No queue has this name.
            ValueError: *limit* is negative.
            LogReplacedError: An older copy took the place of the log since it was opened or refreshed.
            CorruptionError: A segment is damaged that was not when the log was opened.
            OSError: The disk refuses a read.
        """
        return chain.from_iterable(run.records() for run in self.read_runs(queue, start, stop, limit=limit))

    def read_runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterable[Run]:
        """Yield the records that `read` yields as runs. What a writer has truncated since may be missing."""
        if self._keeps_records:
            return self.runs(queue, start, stop, limit=limit)
        found = self._lookup.find(queue)
        first = position_of(found, start)
        check_bounds(first, stop)
        runs = self._reader.runs(found, first, stop)
        return runs if limit is None else cut_stream(runs, check_limit(limit))

    def contents(self, queues: Iterable[str] | None = None) -> Iterator[QueueContents]:
        """Yield *queues* with their records, in the given order; by default all of them, sorted by name.

        The log was opened without its records: they are read from the disk, those of many queues together.

        Raises:
            QueueNotFoundError: No queue has one of these names.
            CorruptionError: A segment is damaged that was not when the log was opened.
        """
        return self._reader.contents(
            [self.state_of(name) for name in (self.list_queues() if queues is None else queues)]
        )

    def state_of(self, queue: str) -> Queue:
        """Return what the log knows of *queue*, for the tools of this package; raise QueueNotFoundError without one."""
        return self._lookup.find(queue)

    def _in_memory(self, queue: str) -> Queue:
        """Return *queue*, whose records are in memory if it has any."""
        found = self._lookup.find(queue)
        if not self._keeps_records and found.records:
            raise RecordsOnDiskError(queue, found.first_position, found.next_position)
        return found

    def _counted(self, queues: Iterable[Queue]) -> None:
        """Count the records and bytes of *queues*."""
        if not self._keeps_records:
            self._reader.count(queues)

    def queue_exists(self, queue: str) -> bool:
        """Return whether a queue of this name exists."""
        return self._lookup.get(queue) is not None

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        self._lookup.check_readable()
        return self._lookup.queues.names()

    def queue_summary(self, queue: str) -> QueueSummary:
        """Return the positions and sizes of one queue."""
        found = self._lookup.find(queue)
        self._counted((found,))
        return summarize(found)

    def summary(self) -> dict[str, QueueSummary]:
        """Return the positions and sizes of every queue, by name in order."""
        self._lookup.check_readable()
        self._counted(self.recovered.queues)
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
        return time_at(self._in_memory(queue), position)

    def position_at(self, queue: str, time: datetime) -> int:
        """Return the first position that was stored at *time* or later; see `MultiRecordLog.position_at`."""
        return position_at(self._lookup.find(queue), tick_of_time(time))

    def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*. Whether it is sealed is in its summary."""
        return options_of(self._lookup.find(queue).options)

    def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand, by name in order; see `MultiRecordLog.consumers`."""
        found = self._in_memory(queue)
        return {one.consumer: one for one in consumer_summaries(found, sorted(found.consumers))}

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        self._lookup.check_readable()
        return sorted((rule.pattern, rule.name) for rule in self._lookup.queues.rules.of_patterns())

    # The end.

    def close(self) -> None:
        """Release what was read; later reads raise LogClosedError."""
        self._lookup.closed = LogClosedError

    def __enter__(self) -> ReadOnlyLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
