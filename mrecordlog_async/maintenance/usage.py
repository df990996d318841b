"""What each segment of a log holds, and which queues keep it: batches, records, live and dead bytes.

Reads like `salvage`, around damage, and keeps of a run only where its records end: four bytes a record. Live is what a
queue has not truncated at the end of the log; everything else in a segment is dead and waits for the oldest live record
in front of it to go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from mrecordlog_async.format.parse import Batch
from mrecordlog_async.format.record import Append, Create, Delete, LogRecord, Table, Truncate
from mrecordlog_async.maintenance.damage import Gap
from mrecordlog_async.maintenance.layout import Layout, Meter, read_layout
from mrecordlog_async.maintenance.scan import SegmentWalk
from mrecordlog_async.model import RecoveryProgress, Run
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.segment import list_segments, segment_name

ATTEMPTS_MAX = 20
"""How often the segments are listed again when the writer removed the last of them before its turn."""


@dataclass(slots=True)
class Share:
    """What a queue has in a segment that is still live."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class SegmentSurvey:
    """One segment. file_bytes: its length; written_bytes: up to its last batch; records and bytes: of its appends."""

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
    live: dict[str, Share] = field(default_factory=dict)

    @property
    def live_records(self) -> int:
        """Return how many of its records are live."""
        return sum(share.records for share in self.live.values())

    @property
    def live_bytes(self) -> int:
        """Return the payload bytes of its live records."""
        return sum(share.bytes for share in self.live.values())


@dataclass(slots=True)
class QueueSurvey:
    """A queue at the end of the log. first_segment: the oldest one with a live record of it."""

    name: str
    first_position: int
    next_position: int
    first_segment: int | None = None
    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Pin:
    """Segments first … last that only *queue* keeps: without its records up to its next segment they could go."""

    queue: str
    first_position: int
    first: int
    last: int


@dataclass(slots=True)
class Survey:
    """A whole log. closed: it was closed, and nothing was written since."""

    log_id: str
    closed: bool
    segments: list[SegmentSurvey]
    queues: list[QueueSurvey]

    @property
    def leftover(self) -> list[int]:
        """Return the segments older than any live record: they go with the next commits, or at the next open."""
        first = min((queue.first_segment for queue in self.queues if queue.first_segment is not None), default=None)
        end = self.segments[-1].number if first is None else first
        return [segment.number for segment in self.segments if segment.number < end]

    def pins(self) -> list[Pin]:
        """Return stretches of segments that are on the disk for one queue alone, oldest first.

        A segment stays as long as a live record lies in it or in an older one. So the queue with the oldest live record
        alone keeps everything up to where the second one begins.
        """
        starts = sorted(
            (queue.first_segment, queue.name, queue.first_position)
            for queue in self.queues
            if queue.first_segment is not None
        )
        if not starts:
            return []
        first, name, position = starts[0]
        last = (starts[1][0] if len(starts) > 1 else self.segments[-1].number) - 1
        return [Pin(name, position, first, last)] if first <= last else []


def survey(files: FileSystem, directory: str, on_progress: Callable[[RecoveryProgress], None] | None = None) -> Survey:
    """Survey the log in *directory*, also while a writer is at work; FileNotFoundError if there is none.

    Segments that are removed before their turn are left out, with all older ones.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        numbers = list_segments(files.names(directory))
        if not numbers:
            raise FileNotFoundError(2, "there is no log in this directory", directory)
        try:
            layout = read_layout(files, directory, numbers)
            found = _Surveyor(layout, Meter(layout.total_bytes, on_progress)).survey()
        except FileNotFoundError:
            if attempt == ATTEMPTS_MAX:
                raise
            continue
        damaged = any(segment.damaged_bytes for segment in found.segments)
        if not damaged or attempt == ATTEMPTS_MAX or list_segments(files.names(directory)) == numbers:
            return found
    raise AssertionError("the last attempt returns or raises")


class _Lengths:
    """Where the records of the runs that a queue has in one segment end."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def share(self, start: int) -> Share:
        """Return what lies at or behind position *start*."""
        share = Share()
        first = bisect_right(self.runs, start, key=lambda run: run.next_position)
        for run in self.runs[first:]:
            ends = memoryview(run.offsets).cast("i")
            dead = max(start - run.first_position, 0)
            share.records += run.records - dead
            share.bytes += ends[run.records] - ends[dead]
        return share


class _Surveyor:
    """Walks all segments and counts."""

    def __init__(self, layout: Layout, meter: Meter) -> None:
        self._layout = layout
        self._meter = meter
        self._queues: dict[int, QueueSurvey] = {}
        self._lengths: dict[tuple[int, int], _Lengths] = {}

    def survey(self) -> Survey:
        layout = self._layout
        segments: list[SegmentSurvey] = []
        for number in layout.numbers:
            try:
                segments.append(self._segment(layout.walk(number)))
            except FileNotFoundError:
                if number == layout.numbers[-1]:
                    raise
                segments.clear()  # the writer removed it: nothing in it, or before it, is live
                self._queues.clear()
                self._lengths.clear()
        by_number = {segment.number: segment for segment in segments}
        for (number, queue_id), lengths in sorted(self._lengths.items()):
            self._count_live(by_number[number], queue_id, lengths)
        queues = sorted(self._queues.values(), key=lambda queue: queue.name)
        return Survey(layout.log_id.hex(), layout.closed is not None, segments, queues)

    def _segment(self, walk: SegmentWalk) -> SegmentSurvey:
        segment = SegmentSurvey(walk.number, segment_name(walk.number))
        for item in self._meter.watch(walk):
            if type(item) is Batch:
                self._batch(segment, item)
            elif type(item) is Table:
                self._table(item)
            elif type(item) is Gap:
                segment.damaged_bytes += item.bytes
        segment.file_bytes, segment.written_bytes, segment.tail_bytes = walk.size, walk.end, walk.tail
        return segment

    def _batch(self, segment: SegmentSurvey, batch: Batch) -> None:
        segment.batches += 1
        segment.first_time_ns = segment.first_time_ns or batch.commit.time_ns
        segment.last_time_ns = batch.commit.time_ns
        for record in batch.records:
            self._apply(segment, record)

    def _apply(self, segment: SegmentSurvey, record: LogRecord) -> None:
        if type(record) is Create:
            for old in [known for known, queue in self._queues.items() if queue.name == record.name]:
                del self._queues[old]  # its delete is damaged
            self._queues[record.id] = QueueSurvey(record.name, 0, 0)
            return
        queue = self._queues.get(record.id)
        if type(record) is Append:
            self._append(segment, queue, record)
        elif type(record) is Truncate and queue is not None and record.position >= queue.first_position:
            queue.first_position = record.position + 1
            queue.next_position = max(queue.next_position, queue.first_position)
        elif type(record) is Delete:
            self._queues.pop(record.id, None)

    def _append(self, segment: SegmentSurvey, queue: QueueSurvey | None, record: Append) -> None:
        run = record.run
        segment.records += run.records
        segment.bytes += len(run.payload)
        if queue is None:  # its create is damaged
            return
        if queue.first_position == 0 == queue.next_position:
            queue.first_position = run.first_position
        queue.next_position = run.next_position
        lengths = self._lengths.setdefault((segment.number, record.id), _Lengths())
        lengths.runs.append(Run(run.first_position, run.offsets, b""))

    def _table(self, table: Table) -> None:
        queues = {}
        for entry in table.entries:
            queue = self._queues.get(entry.id) or QueueSurvey(entry.name, entry.start, entry.next)
            queue.first_position, queue.next_position = entry.start, entry.next
            queues[entry.id] = queue
        self._queues = queues

    def _count_live(self, segment: SegmentSurvey, queue_id: int, lengths: _Lengths) -> None:
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
