"""Makes gathered files: of what was collected in memory, or by passes over a segment; and checks whether one fits.

A segment that memory has room for takes one pass. Otherwise one pass measures it, and each further one collects a part
of its queues.

A segment is identified by its log, its number, its end and the checksums of its own table and of the next one's. Both
tables are read for that, with the checksums of their frames, but they are not decoded.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import sleep

from crc32c import crc32c

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.frame import BLOCK_BYTES, FULL, LAST, Buffer, read_frame, segment_seed
from mrecordlog_async.format.gathered import GatheredHead, Gathering
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, SegmentHeader
from mrecordlog_async.format.parse import MalformedError, ParsedBatch, SegmentParser
from mrecordlog_async.format.record import LOG_ID_BYTES, appends_of
from mrecordlog_async.memory.collected import CollectedRuns, held_run
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.store import RetainedStore
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, TICK_NS, Times
from mrecordlog_async.recovery.segment_reader import batches_in
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import read_exact
from mrecordlog_async.storage.gathered_files import gathered_path, write_gathered
from mrecordlog_async.storage.segment import segment_name

KEPT_FREE = 0.05
"""This part of the file system is kept free of gathered files: they can be made again, and segments cannot."""

PIECES_OF_PART = 16
"""A queue that is larger than a part is divided at about this fraction of one."""

NO_LOG_ID = bytes(LOG_ID_BYTES)

_FIRST, _LAST = (-1, 0), (1 << 64, 0)  # before and after all queue ids


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


def unidentified(number: int, opening: int, batch: int) -> GatheredHead:
    """Return the head of the gathered file of a segment that cannot be identified now: no later opening believes it."""
    return GatheredHead(NO_LOG_ID, number, 0, 0, 0, opening, batch)


def _table_of(directory: LogDirectory, number: int) -> tuple[SegmentHeader, int]:
    """Return the header of a segment, and the checksum of its table, whose frames are checked."""
    with _opened(directory, number) as handle:
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


@contextmanager
def _opened(directory: LogDirectory, number: int) -> Iterator[int]:
    """Open a segment; FileNotFoundError if what looks damaged was removed, and its bytes may be of another segment."""
    with directory.opened(number) as handle:
        try:
            yield handle
        except CorruptionError:
            directory.files.close(directory.open(number))  # raises if it lost its name, which it does first
            raise


def _header(directory: LogDirectory, handle: int, number: int) -> SegmentHeader:
    try:
        return directory.header(handle, number)
    except HeaderError as error:
        raise CorruptionError(segment_name(number), 0, str(error)) from None


def write_collected(
    directory: LogDirectory, gathering: Gathering, parts: Iterable[CollectedRuns], *, writes: bool = True
) -> tuple[int, OSError | None]:
    """Write the gathered file of what was collected, in parts that are in order; without *writes* only lay it out.

    A part is in the index of *gathering* when the next one is wanted. Other threads may run meanwhile. Raises what
    *parts* raise.

    Returns:
        The size of the file, and the error with which the disk refused it, or None: the index is whole then as well,
        and the size 0.
    """
    size, refusal, head = 0, None, gathering.index.head
    buffers = _buffers(gathering, parts)
    if writes:
        try:
            _check_room(directory, head.end)
            size = write_gathered(directory.files, gathered_path(directory.path, head.segment), buffers)
        except OSError as error:
            refusal = error
    for _ in buffers:
        pass
    if refusal is not None and not gathering.is_whole:
        raise refusal  # it was not the file that was refused, but a read of the segment
    return size, refusal


def _check_room(directory: LogDirectory, size: int) -> None:
    """Raise OSError if a file of *size* bytes would take the last space, which segments need."""
    whole, free = directory.space()
    if whole and free - size < KEPT_FREE * whole:
        raise OSError(errno.ENOSPC, f"the last {KEPT_FREE:.0%} of the file system are kept free")


def _buffers(gathering: Gathering, parts: Iterable[CollectedRuns]) -> Iterator[Sequence[Buffer]]:
    buffers: Sequence[Buffer] = [gathering.index.head.encode()]
    yield buffers
    for queue_id, runs, times in chain.from_iterable(map(CollectedRuns.queues, parts)):
        for buffers in gathering.add_queue(queue_id, runs, times):
            yield buffers
            sleep(0)  # otherwise the event loop waits 5 ms for the interpreter whenever it wakes up
        runs = buffers = ()  # before the next part is collected: there is memory for one
    yield gathering.end()


class SegmentParts:
    """The records of a complete segment in parts, each of which is collected by one pass over the segment.

    A part has the records from one queue and position to another, in the order of queue ids and positions.
    """

    def __init__(self, directory: LogDirectory, head: GatheredHead, bytes_max: int) -> None:
        """Divide the segment that *head* names into parts of about *bytes_max* bytes: one pass, unless one is enough.

        Raises:
            CorruptionError: It is damaged before its end.
            OSError: It cannot be read.
        """
        self.head = head
        self._directory = directory
        self._starts = [_FIRST] if head.end <= bytes_max else self._divide(bytes_max)
        self._kept = -1, CollectedRuns()

    def __iter__(self) -> Iterator[CollectedRuns]:
        """Collect one part after another. Raises what the constructor does."""
        return map(self._collect, range(len(self._starts)))

    def runs(self, queue_id: int, start: int, stop: int) -> tuple[list[HeldRun], Times]:
        """Return runs of a queue that have any of positions *start* … *stop* - 1, from the first one on, and the times.

        Of one part, which is kept. Raises what the constructor does.
        """
        for number in range(bisect_right(self._starts, (queue_id, start)) - 1, len(self._starts)):
            if self._starts[number] >= (queue_id, stop):
                break
            if self._kept[0] != number:
                self._kept = -1, CollectedRuns()  # before the next part is collected: there is memory for one
                self._kept = number, self._collect(number)
            stored, times = self._kept[1].queue(queue_id)
            runs = [run for run in map(held_run, stored) if run.next_position > start and run.first_position < stop]
            if runs:
                return runs, times
        return [], Times.none()

    def _collect(self, number: int) -> CollectedRuns:
        """Collect a part; its records are joined to runs as memory joins them."""
        start, stop = self._starts[number], self._starts[number + 1] if number + 1 < len(self._starts) else _LAST
        stores: dict[int, tuple[RetainedStore, Times]] = {}
        for batch in self._batches():
            tick = batch.commit.time_ns // TICK_NS
            for queue_id, run, _ in chain.from_iterable(map(appends_of, batch.records)):
                if start <= (queue_id, run[0]) < stop:
                    if queue_id not in stores:
                        stores[queue_id] = RetainedStore(queue_id), Times.none()
                    store, times = stores[queue_id]
                    store.append(run, len(run[1]) // OFFSET_BYTES - 1, len(run[2]), False)
                    times.add(run[0], tick)
        found = CollectedRuns()
        for queue_id in sorted(stores):
            store, times = stores.pop(queue_id)
            found.begin(queue_id)
            found.add_runs(store.pieces(0, POSITION_MAX + 1))
            found.add_times(times)
        return found

    def _divide(self, bytes_max: int) -> list[tuple[int, int]]:
        """Return where each part begins."""
        pieces: dict[int, list[tuple[int, int]]] = {}  # of each queue, where they begin and their bytes
        for batch in self._batches():
            for queue_id, run, _ in chain.from_iterable(map(appends_of, batch.records)):
                size = len(run[1]) + len(run[2])
                found = pieces.setdefault(queue_id, [(run[0], 0)])
                first, before = found[-1]
                if before + size > bytes_max // PIECES_OF_PART:
                    found.append((run[0], size))
                else:
                    found[-1] = first, before + size
        starts, total = [_FIRST], 0
        for queue_id in sorted(pieces):
            for position, size in pieces[queue_id]:
                if total and total + size > bytes_max:
                    starts.append((queue_id, position))
                    total = 0
                total += size
        return starts

    def _batches(self) -> Iterator[ParsedBatch]:
        """Yield the batches of the segment, which must be intact up to its end."""
        directory, head, number = self._directory, self.head, self.head.segment
        with _opened(directory, number) as handle:
            parser = SegmentParser(head.log_id, number, _header(directory, handle, number).first_batch)
            try:
                yield from batches_in(parser, directory.pieces(handle, 0, head.end))
            except MalformedError as error:
                raise CorruptionError(segment_name(number), error.offset, error.reason) from None
            if parser.end != head.end:
                raise CorruptionError(segment_name(number), parser.end, f"batch {parser.due_batch} is damaged")
            directory.files.drop_cache(handle)
