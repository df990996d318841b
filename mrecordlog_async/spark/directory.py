"""Batch read of a log directory, closed or while a writer is running: one task per segment, without a service.

The driver opens the log read-only to find out what is live and where each segment ends. Each task reads one segment,
parses its batches and keeps the runs of live positions. Driver and tasks must see the same directory: use this on one
machine or on a shared file system. If the writer deletes a segment meanwhile, its task fails, because its records were
truncated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import HeaderError, SegmentHeader
from mrecordlog_async.format.parse import Batch, MalformedError, SegmentParser
from mrecordlog_async.format.runs import appends_of
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.spark.blocks import record_batches
from mrecordlog_async.spark.offsets import DataLossError, refuse_unknown_queues, resolve_position, select
from mrecordlog_async.spark.option_values import LATEST
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.reader import NothingPartition
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.segment import segment_name

SERVER = ""
"""The value of the column `server` for rows from a directory."""


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """One segment up to *end*, and what to read from it: queue id → (queue, start, stop)."""

    directory: str
    segment: int
    end: int
    log_id: bytes
    wanted: dict[int, tuple[str, int, int]]


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
            OptionError: the options name a queue that does not exist.
        """
        options = self._options
        assert options.path is not None, "the data source chose this reader by its path"
        with ReadOnlyLog.open(options.path) as log:
            wanted = self._wanted(log)
            parts = [
                SegmentPart(log.directory, number, end, log.recovered.log_id, held)
                for number, end in _segment_ends(log)
                if (held := _held(log.recovered.queues, number, wanted))
            ]
        return [SegmentPartition(part) for part in parts] or [NothingPartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment."""
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return record_batches(SERVER, read_segment(partition.value), payload=self._options.payload)

    def _wanted(self, log: ReadOnlyLog) -> dict[int, tuple[str, int, int]]:
        options, wanted, losses = self._options, dict[int, tuple[str, int, int]](), list[str]()
        listing = select(log.summary().values(), options.subscription)
        refuse_unknown_queues({}, {SERVER: listing}, (SERVER,), options.subscription, options.starting, options.ending)
        for queue, summary in listing.items():
            start, loss = resolve_position(options.starting, SERVER, summary)
            stop, lost = resolve_position(options.ending, SERVER, summary, absent=LATEST)
            losses += [each for each in (loss, lost) if each is not None]
            if start < stop:
                wanted[summary.id] = (queue, start, stop)
        if losses and options.fail_on_data_loss:
            raise DataLossError("; ".join(losses))
        return wanted


def read_segment(part: SegmentPart) -> Iterator[Block]:
    """Yield the wanted runs of one segment, in the order in which they were written.

    Raises:
        DataLossError: the segment was deleted, or belongs to another log.
        CorruptionError: the segment is damaged.
    """
    directory = LogDirectory.at(part.directory)
    files, name = directory.files, segment_name(part.segment)
    handle, header = _open(directory, part.segment)
    try:
        if header.log_id != part.log_id:
            raise DataLossError(
                f"{name} in {part.directory} belongs to a different log than when the read was planned; read again"
            )
        parser = SegmentParser(header.log_id, part.segment, header.first_batch)
        for base, piece in directory.pieces(handle, parser.end, part.end):
            for batch in parser.feed(piece, base):
                yield from _blocks(batch, part)
        if parser.end != part.end:
            if not files.links(handle):  # the segment was deleted
                raise _removed(name, part.directory)
            raise CorruptionError(
                name, parser.end, f"the segment was intact up to {part.end} when the read was planned"
            )
    except MalformedError as error:
        raise CorruptionError(name, error.offset, error.reason) from None
    finally:
        files.close(handle)


def _segment_ends(log: ReadOnlyLog) -> Iterator[tuple[int, int]]:
    """Yield every live segment and the offset after its last batch, which the next segment's header states."""
    contents, directory = log.recovered, LogDirectory.at(log.directory)
    for number, _ in contents.older:
        handle, successor = _open(directory, number + 1)
        directory.files.close(handle)
        yield number, successor.previous_end
    yield contents.end.segment, contents.end.offset


def _held(queues: Queues, segment: int, wanted: dict[int, tuple[str, int, int]]) -> dict[int, tuple[str, int, int]]:
    """Return the part of *wanted* that is in *segment*."""
    live = {queue.id for queue in queues if segment in queue.segments()}
    return {queue_id: bounds for queue_id, bounds in wanted.items() if queue_id in live}


def _open(directory: LogDirectory, segment: int) -> tuple[int, SegmentHeader]:
    name = segment_name(segment)
    try:
        handle = directory.open(segment)
    except FileNotFoundError:
        raise _removed(name, directory.path) from None
    try:
        return handle, directory.header(handle, segment)
    except HeaderError as error:
        removed = not directory.files.links(handle)
        directory.files.close(handle)
        raise _removed(name, directory.path) if removed else CorruptionError(name, 0, str(error)) from None


def _removed(name: str, directory: str) -> DataLossError:
    return DataLossError(f"{name} in {directory} was removed while it was read: its records were truncated; read again")


def _blocks(batch: Batch, part: SegmentPart) -> Iterator[Block]:
    for queue_id, run, _ in chain.from_iterable(map(appends_of, batch.records)):
        queue, start, stop = part.wanted.get(queue_id, ("", 0, 0))
        if run.first_position < stop and run.next_position > start:
            run = run.cut(start, stop)
            offsets, payload = memoryview(run.offsets), memoryview(run.payload)
            yield Block(queue, queue_id, run.first_position, run.record_count, offsets, payload)
