"""Batch read of a log directory, closed or while a writer is running: one task per segment, without a service.

The driver reads the positions of the log, without its records, to find out where the live ones are. Each task reads one
segment from the first batch that is wanted to the last one, piece by piece: a directory of any size needs little memory
(see `recovery.place_reader`). Driver and tasks must see the same directory: use this on one machine or on a shared file
system. If the writer removes a segment during the read, its task fails, because its records were truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.stored_times import times_of
from mrecordlog_async.model import Times
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.recovery.place_reader import Bounded, Share, read_share, shares_of
from mrecordlog_async.recovery.places import placed
from mrecordlog_async.recovery.recovered import LastRead
from mrecordlog_async.recovery.segment_files import SegmentRemovedError
from mrecordlog_async.spark.positions.offsets import (
    DataLossError,
    Listing,
    refuse_unknown_queues,
    resolve_position,
    select,
)
from mrecordlog_async.spark.rows.blocks import record_batches
from mrecordlog_async.spark.settings.option_values import LATEST, GivenPositions
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.moments import check_past, is_past
from mrecordlog_async.spark.source.reader import MAKE_AGAIN, NothingPartition
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.segment import segment_name

SERVER = ""
"""The value of the column `server` for rows from a directory."""


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """The part of one segment to read, and by the ids of its queues: their names, and when the records were stored."""

    directory: str
    log_id: bytes
    last: LastRead | None
    share: Share
    names: dict[int, str]
    times: dict[int, Times]


class SegmentPartition(InputPartition):
    """A segment as Spark carries it."""

    def __init__(self, value: SegmentPart) -> None:
        super().__init__(value)
        self.value: SegmentPart = value


class DirectoryReader(DataSourceReader):
    """Reads a log directory as a table."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Decide what is read, and return one partition for each segment that contains any of it.

        Raises:
            RecordLogError: the directory holds no log, or a damaged one.
            DataLossError: the options name positions that are no longer retained.
            OptionError: the options name a queue that does not exist, or startingTimestamp is in the future.
        """
        options = self._options
        assert options.path is not None, "the data source chose this reader by its path"
        with ReadOnlyLog.open_placed(options.path) as log:
            wanted = self._wanted(log)
            bounded = {
                queue_id: Bounded(placed(queue).places(start, stop), start, stop)
                for queue_id, (queue, start, stop) in wanted.items()
            }
            queues = {queue_id: queue for queue_id, (queue, _, _) in wanted.items()}
            parts = [_part(log, share, queues) for share in shares_of(bounded)]
        return [SegmentPartition(part) for part in parts] or [NothingPartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment."""
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return record_batches(SERVER, read_segment(partition.value), payload=self._options.payload)

    def _wanted(self, log: ReadOnlyLog) -> dict[int, tuple[Queue, int, int]]:
        options, wanted, losses = self._options, dict[int, tuple[Queue, int, int]](), list[str]()
        listing = select(log.summary().values(), options.subscription)
        starting, ending = _bounds(log, listing, options)
        refuse_unknown_queues({}, {SERVER: listing}, (SERVER,), options.subscription, starting, ending)
        for name, summary in listing.items():
            start, loss = resolve_position(starting, SERVER, summary)
            stop, lost = resolve_position(ending, SERVER, summary, absent=LATEST)
            losses += [each for each in (loss, lost) if each is not None]
            queue = log.recovered.queues.get(name)
            assert queue is not None, "it was just listed"
            if start < stop:
                wanted[queue.id] = (queue, start, stop)
        if losses and options.fail_on_data_loss:
            raise DataLossError("; ".join(losses))
        return wanted


def _bounds(log: ReadOnlyLog, listing: Listing, options: Options) -> tuple[str | GivenPositions, str | GivenPositions]:
    """Return where reading begins and ends, with the positions of times. Raises OptionError for a future start."""
    starting, ending = options.starting, options.ending
    if isinstance(starting, datetime):
        check_past(starting)
        starting = _positions_at(log, listing, starting)
    if isinstance(ending, datetime):
        ending = _positions_at(log, listing, ending) if is_past(ending) else "latest"
    return starting, ending


def _positions_at(log: ReadOnlyLog, listing: Listing, time: datetime) -> GivenPositions:
    return {SERVER: {queue: log.position_at(queue, time) for queue in listing}}


def _part(log: ReadOnlyLog, share: Share, queues: Mapping[int, Queue]) -> SegmentPart:
    names = {queue_id: queues[queue_id].name for queue_id in share.wanted}
    times = {queue_id: times_of(queues[queue_id], start, stop) for queue_id, (start, stop) in share.wanted.items()}
    return SegmentPart(log.directory, log.recovered.log_id, log.recovered.last, share, names, times)


def read_segment(part: SegmentPart) -> Iterator[Block]:
    """Yield the wanted runs of one segment, in the order in which they were written.

    Raises:
        DataLossError: the segment was removed.
        LogReplacedError: an older copy took the place of the log.
        CorruptionError: the segment is damaged, or belongs to another log.
    """
    try:
        for appends in read_share(LogDirectory.at(part.directory), part.log_id, part.share, part.last):
            for queue_id, run, _ in appends:
                held = memoryview(run.offsets), memoryview(run.payload), part.times[queue_id]
                yield Block(part.names[queue_id], queue_id, run.first_position, run.record_count, *held)
    except SegmentRemovedError:
        name = segment_name(part.share.segment)
        raise DataLossError(
            f"{name} in {part.directory} was removed: its records were truncated; {MAKE_AGAIN}"
        ) from None
