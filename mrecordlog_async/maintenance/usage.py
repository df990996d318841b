"""Counts the contents of each segment (batches, records, live and dead bytes), and the queues that keep it on the disk.

Reads past damage, as `salvage` does. Of each run it keeps only where the records end: four bytes per record. A record
is live if its queue has not truncated it at the end of the log. Everything else in a segment is dead; its space is
freed when no older live record exists.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from mrecordlog_async.format.header import public_log_id
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import (
    ConsumerDelete,
    ConsumerRule,
    Create,
    Delete,
    LogRecord,
    Opened,
    SetConsumer,
    SetOptions,
    Truncate,
)
from mrecordlog_async.format.runs import Append, Many, appends_of
from mrecordlog_async.format.table import Table
from mrecordlog_async.maintenance.damage import DamagedRange
from mrecordlog_async.maintenance.headers import LogHeaders, ProgressMeter, read_headers
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.maintenance.scan import SegmentScan
from mrecordlog_async.model import RecoveryProgress, Run
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.segment import segment_name


@dataclass(slots=True)
class LiveShare:
    """The live records that a queue has in one segment, and their payload bytes."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class SegmentUsage:
    """One segment.

    Attributes:
        number: the segment's number.
        name: its file name.
        file_bytes: the file's length.
        written_bytes: the bytes up to the end of its last batch.
        batches: how many whole batches it holds.
        records: how many records were appended in it, live or dead.
        bytes: the payload bytes of those records.
        first_time_ns: when its first batch was committed, in nanoseconds since 1970; 0 without one.
        last_time_ns: when its last batch was committed.
        damaged_bytes: acknowledged bytes that cannot be read.
        tail_bytes: bytes of an unfinished batch at the end of the log.
        live: by queue, the records that were not truncated.
    """

    number: int
    name: str
    file_bytes: int = 0
    written_bytes: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_time_ns: int = 0
    last_time_ns: int = 0
    damaged_bytes: int = 0
    tail_bytes: int = 0
    live: dict[str, LiveShare] = field(default_factory=dict)

    @property
    def live_records(self) -> int:
        """Return how many of its records are live."""
        return sum(share.records for share in self.live.values())

    @property
    def live_bytes(self) -> int:
        """Return the payload bytes of its live records."""
        return sum(share.bytes for share in self.live.values())


@dataclass(slots=True)
class QueueUsage:
    """A queue at the end of the log. first_segment: the oldest segment with a live record of it."""

    name: str
    first_position: int
    next_position: int
    first_segment: int | None = None
    records: int = 0
    bytes: int = 0
    settings: QueueSettings = field(default_factory=QueueSettings)


@dataclass(slots=True)
class Pin:
    """Segments *first* to *last* that only *queue* keeps. Truncating or deleting the queue frees them.

    settings: of the queue. Its slowest consumer is the reason if it keeps records until they are acknowledged.
    """

    queue: str
    first_position: int
    first: int
    last: int
    settings: QueueSettings = field(default_factory=QueueSettings)


@dataclass(slots=True)
class LogUsage:
    """A whole log.

    Attributes:
        log_id: identifies the log, as `MultiRecordLog.public_id` does.
        closed: the log was closed, and nothing was written since.
        segments: every segment, ascending.
        queues: every queue, sorted by name.
    """

    log_id: str
    closed: bool
    segments: list[SegmentUsage]
    queues: list[QueueUsage]

    @property
    def leftover(self) -> list[int]:
        """Return the segments older than any live record; the next commits, or the next open, delete them."""
        first = min((queue.first_segment for queue in self.queues if queue.first_segment is not None), default=None)
        end = self.segments[-1].number if first is None else first
        return [segment.number for segment in self.segments if segment.number < end]

    def pins(self) -> list[Pin]:
        """Return the ranges of segments that one queue alone keeps on the disk, oldest first.

        A segment stays while it, or an older one, holds a live record. So the queue with the oldest live record alone
        keeps every segment before the first one with a live record of another queue.
        """
        queues = {queue.name: queue for queue in self.queues}
        starts = sorted((queue.first_segment, queue.name) for queue in self.queues if queue.first_segment is not None)
        if not starts:
            return []
        first, name = starts[0]
        last = (starts[1][0] if len(starts) > 1 else self.segments[-1].number) - 1
        queue = queues[name]
        return [Pin(name, queue.first_position, first, last, queue.settings)] if first <= last else []


def usage(
    directory: str | os.PathLike[str],
    *,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> LogUsage:
    """Count what each segment of the log in *directory* holds, and which queues keep it on the disk.

    Blocks, but takes no lock, so a service may use the log. If the writer removes a segment before it is read, the
    result omits it and all older ones. Damaged bytes are counted and skipped.

    Args:
        directory: the log's directory.
        on_progress: called with the bytes read so far, after each batch.
        filesystem: the disk to read from; the operating system's by default.

    Returns:
        Every segment and every queue, with counts of batches, records and bytes.

    Raises:
        FileNotFoundError: there is no log in *directory*.
        CorruptionError: no segment is left, or none has a header that can be read.
        OSError: the disk could not be read.
    """
    log = LogDirectory.at(directory, filesystem)

    def read(listing: Listing) -> LogUsage:
        headers = read_headers(log, listing.segments)
        return _UsageCounter(headers, ProgressMeter(headers.total_bytes, on_progress)).count()

    return log.read_while_it_moves(read, lambda found: not any(segment.damaged_bytes for segment in found.segments))


class _RecordEnds:
    """The ends of a queue's records in one segment."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def share(self, start: int) -> LiveShare:
        """Return the records at position *start* and after it."""
        share = LiveShare()
        first = bisect_right(self.runs, start, key=lambda run: run.next_position)
        for run in self.runs[first:]:
            ends = memoryview(run.offsets).cast("i")
            dead = max(start - run.first_position, 0)
            share.records += run.record_count - dead
            share.bytes += ends[run.record_count] - ends[dead]
        return share


class _UsageCounter:
    """Scans all segments and counts."""

    def __init__(self, headers: LogHeaders, meter: ProgressMeter) -> None:
        self._headers = headers
        self._meter = meter
        self._queues: dict[int, QueueUsage] = {}
        self._ends: dict[tuple[int, int], _RecordEnds] = {}

    def count(self) -> LogUsage:
        headers = self._headers
        segments: list[SegmentUsage] = []
        for number in headers.numbers:
            if number < headers.oldest and number not in headers.headers:
                continue  # a dead file that does not read as its own segment counts as absent
            try:
                segments.append(self._segment(headers.scan(number)))
            except FileNotFoundError:
                if number == headers.numbers[-1]:
                    raise
                segments.clear()  # the writer removed it, so nothing in it, or before it, is live
                self._queues.clear()
                self._ends.clear()
        by_number = {segment.number: segment for segment in segments}
        for (number, queue_id), lengths in sorted(self._ends.items()):
            self._count_live(by_number[number], queue_id, lengths)
        queues = sorted(self._queues.values(), key=lambda queue: queue.name)
        return LogUsage(public_log_id(headers.log_id), headers.closed is not None, segments, queues)

    def _segment(self, scan: SegmentScan) -> SegmentUsage:
        segment = SegmentUsage(scan.number, segment_name(scan.number))
        for item in self._meter.watch(scan):
            if type(item) is ParsedBatch:
                self._batch(segment, item)
            elif type(item) is Table:
                self._table(item)
            elif type(item) is DamagedRange:
                segment.damaged_bytes += item.bytes
        segment.file_bytes, segment.written_bytes, segment.tail_bytes = scan.size, scan.end, scan.torn_bytes
        return segment

    def _batch(self, segment: SegmentUsage, batch: ParsedBatch) -> None:
        segment.batches += 1
        segment.first_time_ns = segment.first_time_ns or batch.commit.time_ns
        segment.last_time_ns = batch.commit.time_ns
        for record in batch.records:
            self._apply(segment, record)

    def _apply(self, segment: SegmentUsage, record: LogRecord) -> None:
        match record:
            case Create(queue_id, name):
                for old in [known for known, queue in self._queues.items() if queue.name == name]:
                    del self._queues[old]  # the DELETE of the older queue is damaged
                self._queues[queue_id] = QueueUsage(name, 0, 0)
            case Append() | Many():
                for append in appends_of(record):
                    self._append(segment, self._queues.get(append.id), append)
            case Delete(queue_id):
                self._queues.pop(queue_id, None)
            case Truncate() | SetConsumer() | ConsumerDelete() | SetOptions():
                queue = self._queues.get(record.id)
                if queue is not None:
                    self._set(queue, record)
            case ConsumerRule() | Opened():
                pass  # of no queue
            case _:
                assert_never(record)

    def _set(self, queue: QueueUsage, record: Truncate | SetConsumer | ConsumerDelete | SetOptions) -> None:
        queue.settings.apply(record)
        if isinstance(record, Truncate) and record.position >= queue.first_position:
            queue.first_position = record.position + 1
            queue.next_position = max(queue.next_position, queue.first_position)

    def _append(self, segment: SegmentUsage, queue: QueueUsage | None, record: Append) -> None:
        run = record.run
        segment.records += run.record_count
        segment.bytes += len(run.payload)
        if queue is None:  # the CREATE is damaged
            return
        if queue.first_position == 0 == queue.next_position:
            queue.first_position = run.first_position
        queue.next_position = run.next_position
        lengths = self._ends.setdefault((segment.number, record.id), _RecordEnds())
        lengths.runs.append(Run(run.first_position, run.offsets, b""))

    def _table(self, table: Table) -> None:
        queues = {}
        for entry in table.entries:
            queue = self._queues.get(entry.id) or QueueUsage(entry.name, entry.first_position, entry.next_position)
            queue.first_position, queue.next_position = entry.first_position, entry.next_position
            queue.settings = QueueSettings.of(entry.options, entry.consumers)
            queues[entry.id] = queue
        self._queues = queues

    def _count_live(self, segment: SegmentUsage, queue_id: int, lengths: _RecordEnds) -> None:
        queue = self._queues.get(queue_id)
        if queue is None:
            return
        share = lengths.share(queue.first_position)
        if not share.records:
            return
        segment.live[queue.name] = share
        queue.records += share.records
        queue.bytes += share.bytes
        if queue.first_segment is None:
            queue.first_segment = segment.number
