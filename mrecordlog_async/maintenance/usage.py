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
from itertools import chain

from mrecordlog_async.format.header import public_log_id
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import appends_of
from mrecordlog_async.maintenance.damage import DamagedRange
from mrecordlog_async.maintenance.headers import LogHeaders, ProgressMeter, read_headers
from mrecordlog_async.maintenance.lenient_replay import LenientReplay
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.maintenance.scan import SegmentScan
from mrecordlog_async.model import RecoveryProgress, Run
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.gathered_files import gathered_bytes
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
        gathered_bytes: the length of the gathered file next to it, from which records that left memory are read.
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
    gathered_bytes: int = 0
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
    """Scans all segments and counts. The queues are those that `LenientReplay` makes of what the scan yields."""

    def __init__(self, headers: LogHeaders, meter: ProgressMeter) -> None:
        self._headers = headers
        self._meter = meter
        self._replay = LenientReplay(keeps_payloads=False)
        self._ends: dict[tuple[int, int], _RecordEnds] = {}  # by segment and queue

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
                self._replay = LenientReplay(keeps_payloads=False)
                self._ends.clear()
        queues = {
            queue.id: QueueUsage(queue.name, queue.first_position, queue.next_position, settings=queue.settings)
            for queue in self._replay.finish()
            if not queue.name_lost
        }
        by_number = {segment.number: segment for segment in segments}
        for (number, queue_id), ends in sorted(self._ends.items()):
            if queue_id in queues:
                _count_live(by_number[number], queues[queue_id], ends)
        return LogUsage(public_log_id(headers.log_id), headers.closed is not None, segments, list(queues.values()))

    def _segment(self, scan: SegmentScan) -> SegmentUsage:
        segment = SegmentUsage(scan.number, segment_name(scan.number))
        for item in self._meter.watch(scan):
            # Before the batch is counted: a table ends queues that an earlier segment still had.
            self._replay.add(segment.name, item)
            if type(item) is ParsedBatch:
                self._count_batch(segment, item)
            elif type(item) is DamagedRange:
                segment.damaged_bytes += item.bytes
        segment.file_bytes, segment.written_bytes, segment.tail_bytes = scan.size, scan.end, scan.torn_bytes
        segment.gathered_bytes = gathered_bytes(self._headers.directory, scan.number)
        return segment

    def _count_batch(self, segment: SegmentUsage, batch: ParsedBatch) -> None:
        segment.batches += 1
        segment.first_time_ns = segment.first_time_ns or batch.commit.time_ns
        segment.last_time_ns = batch.commit.time_ns
        for queue_id, run, _ in chain.from_iterable(map(appends_of, batch.records)):
            segment.records += run.record_count
            segment.bytes += len(run.payload)
            ends = self._ends.setdefault((segment.number, queue_id), _RecordEnds())
            ends.runs.append(Run(run.first_position, run.offsets, b""))


def _count_live(segment: SegmentUsage, queue: QueueUsage, ends: _RecordEnds) -> None:
    """Add the live records that *queue* has in *segment* to both."""
    share = ends.share(queue.first_position)
    if not share.records:
        return
    segment.live[queue.name] = share
    queue.records += share.records
    queue.bytes += share.bytes
    if queue.first_segment is None:
        queue.first_segment = segment.number
