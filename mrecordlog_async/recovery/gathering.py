"""Makes gathered files: of what was collected in memory, or by one pass over a segment; and checks whether one fits.

A segment is identified by its log, its number, its end and the checksums of its own table and of the next one's. Both
tables are read for that, with the checksums of their frames, but they are not decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import sleep

from crc32c import crc32c

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.frame import BLOCK_BYTES, FULL, LAST, Buffer, read_frame, segment_seed
from mrecordlog_async.format.gathered import GatheredHead, GatheredIndex, Gathering
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, SegmentHeader
from mrecordlog_async.format.parse import MalformedError, SegmentParser
from mrecordlog_async.format.runs import appends_of
from mrecordlog_async.memory.collected import CollectedRuns
from mrecordlog_async.memory.pieces import HeldRun
from mrecordlog_async.memory.store import RetainedStore
from mrecordlog_async.memory.times import TICK_NS
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Times
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import read_exact
from mrecordlog_async.storage.gathered_files import gathered_path, write_gathered
from mrecordlog_async.storage.segment import segment_name


def identify(directory: LogDirectory, number: int, opening: int = 0, batch: int = 0) -> GatheredHead:
    """Return the head that a gathered file of segment *number* must have; the segment after it must exist.

    *opening*, *batch*: the state whose retained records are in it; see `format.gathered`.

    Raises:
        CorruptionError: A header or a table is damaged.
        OSError: A segment cannot be read.
    """
    own, own_table = _table_of(directory, number)
    following, next_table = _table_of(directory, number + 1)
    if following.log_id != own.log_id:
        raise CorruptionError(segment_name(number + 1), 0, "the segment belongs to another log")
    return GatheredHead(own.log_id, number, following.previous_end, own_table, next_table, opening, batch)


def _table_of(directory: LogDirectory, number: int) -> tuple[SegmentHeader, int]:
    """Return the header of a segment, and the checksum of its table, whose frames are checked."""
    with directory.opened(number) as handle:
        header = _header(directory, handle, number)
        seed, at, checksum = segment_seed(header.log_id, number), HEADER_BYTES, 0
        while True:
            base = at - at % BLOCK_BYTES
            block = memoryview(read_exact(directory.files, handle, 2 * BLOCK_BYTES, base))
            frame = read_frame(block, base, at - base, seed)
            if frame is None:
                raise CorruptionError(segment_name(number), at, "its table of queues is damaged")
            checksum = crc32c(frame.payload, checksum)
            if frame.kind in (FULL, LAST):
                return header, checksum
            at = frame.end


def _header(directory: LogDirectory, handle: int, number: int) -> SegmentHeader:
    try:
        return directory.header(handle, number)
    except HeaderError as error:
        raise CorruptionError(segment_name(number), 0, str(error)) from None


def write_collected(
    directory: LogDirectory, head: GatheredHead, collected: CollectedRuns
) -> tuple[GatheredIndex, int, OSError | None]:
    """Write the gathered file of what was collected. Other threads may run after each place.

    Returns:
        The index, the size of the file, and the error with which the disk refused it, or None: the index is whole then
        as well.
    """
    gathering = Gathering(head)
    parts = _parts(gathering, collected)
    try:
        size = write_gathered(directory.files, gathered_path(directory.path, head.segment), parts)
    except OSError as error:
        for _ in parts:
            pass
        return gathering.index, 0, error
    return gathering.index, size, None


def index_of(head: GatheredHead, collected: CollectedRuns) -> GatheredIndex:
    """Return the index that the gathered file of what was collected would have; write nothing."""
    gathering = Gathering(head)
    for _ in _parts(gathering, collected):
        pass
    return gathering.index


def _parts(gathering: Gathering, collected: CollectedRuns) -> Iterator[Sequence[Buffer]]:
    yield [gathering.index.head.encode()]
    for queue_id, runs, times in collected.queues():
        for part in gathering.add_queue(queue_id, runs, times):
            yield part
            sleep(0)  # otherwise the event loop waits 5 ms for the interpreter whenever it wakes up
    yield gathering.end()


def collect_segment(directory: LogDirectory, head: GatheredHead) -> CollectedRuns:
    """Collect all records of the segment that *head* names, by one pass over it. Takes as much memory as they do.

    Raises:
        CorruptionError: It is damaged before its end.
        OSError: It cannot be read.
    """
    number, queues = head.segment, _SegmentQueues()
    with directory.opened(number) as handle:
        parser = SegmentParser(head.log_id, number, _header(directory, handle, number).first_batch)
        try:
            for base, piece in directory.pieces(handle, 0, head.end):
                for batch in parser.feed(piece, base):
                    queues.add(batch.records, batch.commit.time_ns // TICK_NS)
        except MalformedError as error:
            raise CorruptionError(segment_name(number), error.offset, error.reason) from None
        directory.files.drop_cache(handle)
    if parser.end != head.end:
        raise CorruptionError(segment_name(number), parser.end, f"batch {parser.due_batch} is damaged")
    return queues.collected()


class _SegmentQueues:
    """The records of a segment by queue, joined to runs as memory joins them."""

    def __init__(self) -> None:
        self._stores: dict[int, tuple[RetainedStore, Times]] = {}

    def add(self, records: Sequence[object], tick: int) -> None:
        """Add the records of a batch that was stored at *tick*."""
        for record in records:
            for queue_id, run, _ in appends_of(record):
                found = self._stores.get(queue_id)
                if found is None:
                    found = self._stores[queue_id] = RetainedStore(queue_id), Times.none()
                store, times = found
                store.append(run, len(run[1]) // OFFSET_BYTES - 1, len(run[2]), False)
                times.add(run[0], tick)

    def collected(self) -> CollectedRuns:
        """Return them in order."""
        found = CollectedRuns()
        for queue_id in sorted(self._stores):
            store, times = self._stores.pop(queue_id)
            found.begin(queue_id)
            runs: list[HeldRun] = store.pieces(0, POSITION_MAX + 1)
            found.add_runs(runs)
            found.add_times(times)
        return found
