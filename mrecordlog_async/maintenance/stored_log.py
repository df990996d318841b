"""A log of any size, read in little memory: its positions first, its records from the disk when they are asked for.

1. Replay the whole log once for positions and places (`recovery.places`), with every check that opening it makes.
2. Read the records of a queue segment by segment (`recovery.place_reader`). Queues are read in groups that fit into
   `GROUP_BYTES`, so that thousands of small queues do not need one pass each; a larger queue is read alone, in pieces.

A writer may be running. What it truncates meanwhile may be missing from what is read later; what it appends meanwhile
is not shown before `refresh`. Blocking; no asyncio here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from mrecordlog_async.batches import check_limit
from mrecordlog_async.format.controls import Truncate
from mrecordlog_async.format.record import Append
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.memory.cutting import cut_stream
from mrecordlog_async.memory.queue import Queue, SegmentPins
from mrecordlog_async.memory.reads import times_between
from mrecordlog_async.model import QueueSummary, RecoveryProgress, RecoveryReport, Run, Times
from mrecordlog_async.options import MIB
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.recovery.place_reader import Bounded, Share, read_share, shares_of
from mrecordlog_async.recovery.places import placed
from mrecordlog_async.recovery.segment_files import SegmentRemovedError
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem

GROUP_BYTES = 32 * MIB
"""Queues are read together up to this many payload bytes, and a larger one in pieces of this size."""

RECORD_WEIGHT = 8
"""Bytes that a record counts for in a group, besides its payload."""


class QueueContents(NamedTuple):
    """A queue: its positions, and its records, which must be taken before those of the next queue."""

    name: str
    first_position: int
    next_position: int
    runs: Iterable[Run]


class StoredLog:
    """The queues of a log as they were on the disk when it was opened or last refreshed."""

    def __init__(self, log: ReadOnlyLog, directory: LogDirectory) -> None:
        """Use `open`."""
        self._log = log
        self._directory = directory

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        filesystem: FileSystem | None = None,
    ) -> StoredLog:
        """Read the positions of the log in *directory*; the arguments and errors are those of `ReadOnlyLog.open`."""
        at = LogDirectory.at(directory, filesystem)
        return cls(ReadOnlyLog.open_placed(directory, on_progress=on_progress, filesystem=filesystem), at)

    @property
    def recovery_report(self) -> RecoveryReport:
        """Return what opening the log would report."""
        return self._log.recovery_report

    def refresh(self) -> bool:
        """Read what a writer has stored since; return whether there was anything new. See `ReadOnlyLog.refresh`."""
        return self._log.refresh()

    @property
    def went_back(self) -> bool:
        """True if a refresh found an older copy of the log in its place. See `ReadOnlyLog`."""
        return self._log.went_back

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return self._log.list_queues()

    def queue_exists(self, queue: str) -> bool:
        """Return whether a queue of this name exists."""
        return self._log.queue_exists(queue)

    def queue_id(self, queue: str) -> int:
        """Return the incarnation of *queue*; raise QueueNotFoundError if there is none."""
        return self._log.queue_summary(queue).id

    def summary(self) -> dict[str, QueueSummary]:
        """Return the positions and sizes of every queue, by name in order.

        Raises:
            CorruptionError: A segment is damaged that was not when the log was opened.
        """
        self._count(self._queues())
        return self._log.summary()

    def settings(self, queue: str) -> QueueSettings:
        """Return options, seal and consumers of *queue*; raise QueueNotFoundError if there is none."""
        found = self._queue(queue)
        return QueueSettings.of(found.options, found.consumer_states())

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        return self._log.consumer_rules()

    def runs(
        self, queue: str, start: int | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Run]:
        """Yield the records of *queue* with positions *start* … *stop* - 1 as runs; at most the first *limit* records.

        Raises:
            QueueNotFoundError: No queue has this name.
            ValueError: *limit* is negative.
            LogReplacedError: An older copy took the place of the log since it was opened or refreshed.
            CorruptionError: A segment is damaged that was not when the log was opened.
        """
        found = self._queue(queue)
        runs = self._stream(found, start, stop)
        return runs if limit is None else cut_stream(runs, check_limit(limit))

    def position_at(self, queue: str, time: datetime) -> int:
        """Return the position of the first record stored at *time* or later; see `MultiRecordLog.position_at`."""
        return self._log.position_at(queue, time)

    def times(self, queue: str, start: int | None = None, stop: int | None = None) -> Times:
        """Return when records were stored; see `Inspection.times`."""
        return times_between(self._queue(queue), start, stop)

    def contents(self, queues: Iterable[str] | None = None) -> Iterator[QueueContents]:
        """Yield *queues* with their records, in the given order; by default all of them, sorted by name.

        Raises:
            QueueNotFoundError: No queue has one of these names.
            CorruptionError: A segment is damaged that was not when the log was opened.
        """
        names = self.list_queues() if queues is None else list(queues)
        chosen = [self._queue(name) for name in names]
        self._count(chosen)
        for group in _groups(chosen):
            yield from self._read_group(group)

    def close(self) -> None:
        """Release what was read; later reads raise LogClosedError."""
        self._log.close()

    def __enter__(self) -> StoredLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Queues.

    def _queues(self) -> list[Queue]:
        return list(self._log.recovered.queues)

    def _queue(self, name: str) -> Queue:
        self._log.first_position(name)  # raises if there is none
        queue = self._log.recovered.queues.get(name)
        assert queue is not None, "it was just read"
        return queue

    def _count(self, queues: Iterable[Queue]) -> None:
        """Count what truncates left of the places that they cut, and find the first record of each."""
        cut = {queue.id: queue for queue in queues if placed(queue).is_cut()}
        places = {queue.id: next(placed(queue).places()) for queue in cut.values()}
        found = {queue_id: [queue.first_position, 0, 0] for queue_id, queue in cut.items()}  # as `recount` takes it
        shares = shares_of({queue_id: Bounded((place,)) for queue_id, place in places.items()})
        for share, appends in self._appends(shares):
            if appends is None:
                for queue_id in share.wanted:
                    found.pop(queue_id, None)
                continue
            for queue_id, run, _ in appends:
                queue = cut[queue_id]
                if run.next_position > queue.first_position:
                    left = run.cut(queue.first_position, run.next_position)
                    first, records, size = found[queue_id]
                    first = first if records else left.first_position
                    found[queue_id] = [first, records + left.record_count, size + len(left.payload)]
        for queue_id, (first, records, size) in found.items():
            placed(cut[queue_id]).recount(first, records, size)

    # Records.

    def _appends(self, shares: Iterable[Share]) -> Iterator[tuple[Share, list[Append] | None]]:
        """Yield what is read of each share piece by piece; None if its segment was removed."""
        recovered = self._log.recovered
        for share in shares:
            try:
                for appends in read_share(self._directory, recovered.log_id, share, recovered.last):
                    yield share, appends
            except SegmentRemovedError:
                # A writer removes a segment only when all of it is truncated, which `refresh` has not read yet.
                self._truncate(share)
                yield share, None

    def _truncate(self, share: Share) -> None:
        """Treat what a removed segment held as truncated."""
        queues = self._log.recovered.queues
        for queue_id, (_, stop) in share.wanted.items():
            if queues.by_id(queue_id) is not None:
                queues.apply(share.segment, Truncate(queue_id, stop - 1))

    def _stream(self, queue: Queue, start: int | None, stop: int | None) -> Iterator[Run]:
        first = queue.first_position if start is None else max(start, queue.first_position)
        last = queue.next_position if stop is None else min(stop, queue.next_position)
        gathered = _gatherer(queue)
        places = placed(queue).places(first, last)
        for share, appends in self._appends(shares_of({queue.id: Bounded(places, first, last)})):
            for _, run, _ in appends or ():
                gathered.append(share.segment, run)
            if gathered.memory_bytes >= GROUP_BYTES or appends is None:
                if appends is not None:
                    yield from gathered.runs(None, None)
                gathered = _gatherer(queue)
        yield from gathered.runs(None, None)

    def _read_group(self, group: list[Queue]) -> Iterator[QueueContents]:
        """Read the queues of a group: one is read while it is taken, several are read at once."""
        if len(group) == 1:
            queue = group[0]
            yield QueueContents(queue.name, queue.first_position, queue.next_position, self._stream(queue, None, None))
            return
        gathered = {queue.id: _gatherer(queue) for queue in group}
        shares = shares_of({queue.id: Bounded(placed(queue).places()) for queue in group})
        for share, appends in self._appends(shares):
            for queue_id, run, _ in appends or ():
                gathered[queue_id].append(share.segment, run)
        for queue in group:
            runs = gathered[queue.id].runs(queue.first_position, queue.next_position)
            yield QueueContents(queue.name, queue.first_position, queue.next_position, runs)


def _gatherer(queue: Queue) -> Queue:
    """Return a queue in memory that joins runs as an open log does."""
    return Queue(queue.id, queue.name, SegmentPins())


def _groups(queues: Iterable[Queue]) -> Iterator[list[Queue]]:
    """Divide queues, in their order, into groups that fit into memory."""
    group: list[Queue] = []
    weight = 0
    for queue in queues:
        own = queue.store.held_bytes + RECORD_WEIGHT * queue.records
        if group and weight + own > GROUP_BYTES:
            yield group
            group, weight = [], 0
        group.append(queue)
        weight += own
    if group:
        yield group
