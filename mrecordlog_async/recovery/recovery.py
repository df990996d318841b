"""Read a log: from the files of a directory to queues, oldest live segment first.

1. Open the last segment and read its header: it names the oldest segment that was live when it began. A spare whose
   number is higher by two or more says that the last segment is missing.
2. Replay the segments from there on, oldest first, into one state. Each must be intact up to the end that its
   successor's header states, and the state replayed from it must equal its successor's table: every segment proves the
   one before it. A segment that fails is remembered, and replay starts over after it (`replay`).
3. Replay the last segment and judge what lies after its last whole batch, which ends at offset o
   (`torn_or_damaged.judge_end`):

   | row | at and after o | meaning | what is done |
   |---|---|---|---|
   | 1 | no frame of this segment at o, and none of its COMMITs after o | the end of the log | zero, continue at o |
   | 2 | one of the two, and no COMMIT as in row 3 | torn tail: an unfinished batch | zero, report, continue at o |
   | 3 | a COMMIT, at any byte, that names the batch due at o as durable | acknowledged data damaged | CorruptionError |
   | 4 | `CLOSED` names another end, or cannot be read | damage, or a removed segment | CorruptionError |
   | 5 | `CLOSED` names an older segment, or o and the batch due there follows | outdated `CLOSED` | CorruptionError |
   | 6 | `CLOSED` names o, and no such batch follows | the end of the log | continue at o |
   | 7 | a read error | the medium, not the content | OSError |

4. Its COMMITs name the oldest live segment for certain. Only now is a failure of step 2 raised, if its segment is live:
   a dead one, which a crash kept from being removed, must not keep a log from opening.
5. Only then, and only with the lock, is anything changed: `cleanup` zeroes what follows o in place and syncs, then
   removes leftovers.

A reader without the lock does steps 1 to 4 while a writer runs (`read_without_lock`). It reads damage a second time
before it believes it, and the header again after the last byte: the file may be another segment by then. It skips a
segment that the writer removed before it was read, and all older ones: their records are truncated, and the batches
that truncated them are read later (`live_reader`).

The last segment stays open, so that the writer does not free its space meanwhile. Older ones are opened one at a time:
a log of any number of segments is read with a handful of descriptors.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import Closed, SegmentHeader
from mrecordlog_async.format.table import Table
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.store import RetainedStores
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.recovery.beyond_memory import (
    GatheredFirst,
    MemoryBound,
    MemoryBounds,
    SegmentTooLargeError,
    has_state,
)
from mrecordlog_async.recovery.recovered import LastRead, RecoveredLog
from mrecordlog_async.recovery.replay import NewStores, SegmentChain
from mrecordlog_async.recovery.segment_files import OpenSegment, SegmentFiles, SegmentRemovedError, sync_for_readers
from mrecordlog_async.recovery.torn_or_damaged import LogTail, SegmentEnd, check_closed_segment, judge_end
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.segment import LogEnd, segment_name

logger = logging.getLogger("mrecordlog_async")

Progress = Callable[[RecoveryProgress], None]


class Reading(NamedTuple):
    """A log as far as it could be read.

    first_table: the table of the oldest segment that was read. removed: the newest live segment that the writer removed
    before its turn, None if all of them were read.
    """

    recovered: RecoveredLog
    first_table: Table
    removed: int | None


def read_log(
    directory: LogDirectory,
    listing: Listing,
    *,
    on_progress: Progress | None = None,
    new_stores: NewStores = RetainedStores,
    bounds: MemoryBounds | None = None,
) -> RecoveredLog:
    """Read the log in *directory*, whose files are *listing*. Changes nothing.

    The caller holds the lock, so nothing changes meanwhile and the cache can be dropped to read from the medium.
    *new_stores* decides what is kept of the records, and *bounds* how many of them in memory; all by default.

    Raises:
        FileNotFoundError: There is no log.
        CorruptionError: Acknowledged data is damaged.
        SegmentTooLargeError: The last segment is larger than *bounds* allow. It must be completed first.
        OSError: A file cannot be read.
    """
    directory.check_log(listing)
    files = SegmentFiles(directory, has_lock=True)
    reading = _read_believed(files, listing, on_progress, new_stores, bounds)
    try:
        check_nothing_is_missing(reading.recovered, reading.first_table)
    except CorruptionError as error:
        if bounds is None or not bounds.by_index or not reading.recovered.queues.pins.gathered:
            raise
        # Only the segments count: no gathered file keeps a log from opening.
        logger.warning("%s: the gathered files are not used: %s", directory.path, error)
        bounds = bounds._replace(by_index=False)
        return read_log(directory, listing, on_progress=on_progress, new_stores=new_stores, bounds=bounds)
    return reading.recovered


def read_without_lock(
    directory: LogDirectory,
    listing: Listing,
    *,
    on_progress: Progress | None = None,
    new_stores: NewStores = RetainedStores,
) -> Reading:
    """Read the log in *directory* without the lock, as far as the writer has not removed it.

    *listing* has segments; *new_stores* decides what is kept of the records. Raises what `read_log` does;
    FileNotFoundError as well if *listing* is out of date.
    """
    return _LogReader(SegmentFiles(directory, has_lock=False), listing, on_progress, new_stores).read()


def _read_believed(
    files: SegmentFiles,
    listing: Listing,
    on_progress: Progress | None,
    new_stores: NewStores,
    bounds: MemoryBounds | None,
) -> Reading:
    """Read a log once; again if a gathered file is of a state that it does not have, or a segment is too large.

    The caller holds the lock. Raises SegmentTooLargeError if that is the last one.
    """
    if bounds is None:
        return _LogReader(files, listing, on_progress, new_stores).read()
    first = GatheredFirst(files.directory, bounds)
    while True:
        try:
            reading = _LogReader(files, listing, on_progress, new_stores, bounds, first).read()
        except SegmentTooLargeError as error:
            if error.segment == listing.segments[-1]:
                raise
            first.replayed_from = error.segment + 1
        else:
            if not first.by_index or _is_believed(reading.recovered):
                return reading
            first.by_index = False


class _LogReader:
    """Reads one log once."""

    def __init__(
        self,
        files: SegmentFiles,
        listing: Listing,
        on_progress: Progress | None,
        new_stores: NewStores = RetainedStores,
        bounds: MemoryBounds | None = None,
        first: GatheredFirst | None = None,
    ) -> None:
        self._files = files
        self._first = first
        self._bound = None
        if bounds is not None and first is not None:
            self._bound = MemoryBound(files.directory, bounds)
            self._bound.strict_from = first.replayed_from if bounds.is_strict else None
        self._gathered: dict[int, int] = {}  # sizes of the gathered files that are used
        self._listing = listing
        self._on_progress = on_progress
        self._bytes_total = 0
        self._bytes_read = 0
        self._chain = SegmentChain(new_stores, self._bound)

    def read(self) -> Reading:
        closed = self._files.closed() if self._listing.has_closed else None
        self._listing.check_last_is_here()
        number = self._listing.segments[-1]
        with self._files.directory.opened(number) as handle:
            last, size = self._begin_last(handle, number, closed)
            self._replay_older(last.header)
            recovered = self._replay_last(last, closed, size)
        chain = self._chain
        chain.check_live_segments(set(self._listing.segments), last.header, recovered.oldest_segment)
        assert chain.state.first_table is not None
        return Reading(recovered, chain.state.first_table, chain.removed)

    # The segments before the last.

    def _replay_older(self, last: SegmentHeader) -> None:
        """Replay the segments that may be live, one at a time, oldest first."""
        header: SegmentHeader | None = None
        for number in range(self._skip_gathered(self._first_to_read(last), last), last.segment):
            try:
                header = header or self._files.header_of(number, last.log_id)
                successor = last if number + 1 == last.segment else self._files.header_of(number + 1, last.log_id)
                size = self._replay_segment(header, successor)
            except SegmentRemovedError:
                self._chain.skip_removed(number)
                header = None
            except (CorruptionError, OSError) as error:
                self._chain.fail(number, error)
                header = None
            else:
                self._chain.older.append((number, size))
                header = successor

    def _skip_gathered(self, first: int, last: SegmentHeader) -> int:
        """Take over the segments from *first* on that are gathered; return the one after them."""
        if self._first is None:
            return first
        for number in range(first, last.segment):
            found = self._first.find(number)
            if found is None or found.places.head.log_id != last.log_id:
                return number
            self._chain.state.gathered.append(found.places)
            self._chain.older.append((number, found.segment_bytes))
            if found.file_bytes:
                self._gathered[number] = found.file_bytes
        return last.segment

    def _first_to_read(self, last: SegmentHeader) -> int:
        """Return the lowest segment that may be live and from which none is missing up to the last."""
        present = set(self._listing.segments)
        number = last.segment
        while number > last.oldest_segment and number - 1 in present:
            number -= 1
        return number

    def _replay_segment(self, header: SegmentHeader, successor: SegmentHeader) -> int:
        """Replay a segment that must be intact up to where *successor* says it ended; return its size."""
        with self._files.opened(header.segment) as handle:
            segment = OpenSegment.of(handle, header)
            parser = segment.parser
            self._chain.replay(segment, self._pieces(segment, successor.previous_end))
            if (parser.end, parser.due_batch) != (successor.previous_end, successor.first_batch):
                raise CorruptionError(
                    segment.name,
                    parser.end,
                    f"batch {parser.due_batch} is damaged: the segment must be intact up to {successor.previous_end}",
                )
            return self._files.size(handle)

    # The last segment.

    def _begin_last(self, handle: int, number: int, closed: Closed | None) -> tuple[OpenSegment, int]:
        """Read the header of the last segment; return the segment and its size."""
        self._files.write_out(handle)
        size = self._files.size(handle)
        header = self._files.header(handle, number)
        self._files.check_not_removed(number)  # the size is that of the whole segment
        if closed is not None:
            check_closed_segment(header, closed)
        self._measure(header, size)
        return OpenSegment.of(handle, header), size

    def _replay_last(self, segment: OpenSegment, closed: Closed | None, size: int) -> RecoveredLog:
        """Replay the last segment and judge its end (step 3); return the log as it is after that."""
        # Only what this segment's own COMMITs and header say about the oldest live segment counts.
        self._chain.state.oldest_segment = 0
        if not self._files.has_lock:
            # The writer continued while the older segments were read.
            self._files.write_out(segment.handle)
            size = max(size, self._files.size(segment.handle))
        tail = self._read_to_the_end(segment, closed, size)
        if not self._files.has_lock:
            self._files.check_not_rewritten(segment, size)
            sync_for_readers(self._files.directory.files, segment.handle)
            self._files.directory.sync_name()
        return self._recovered(segment, size, tail, closed is not None)

    def _read_to_the_end(self, segment: OpenSegment, closed: Closed | None, size: int) -> LogTail:
        """Read whole batches and judge what follows them.

        While a writer runs, half of a batch may have been read before it was complete: what looks like damage is read
        again once from there, and `CLOSED` with it, which the writer may have removed or replaced since.
        """
        parser = segment.parser
        doubted = -1
        while True:
            stop = min(size, closed.end) if closed is not None else size
            try:
                self._chain.replay(segment, self._pieces(segment, stop))
                end = SegmentEnd.of(parser)
                return judge_end(self._files.directory.files, segment.handle, end, closed, size)
            except CorruptionError as error:
                in_a_whole_batch = error.offset is None or error.offset < parser.end
                if self._files.has_lock or parser.end == doubted or in_a_whole_batch:
                    raise
                doubted = parser.end
                parser.resume()
                closed = self._files.closed() if closed is not None else None

    def _recovered(self, segment: OpenSegment, size: int, tail: LogTail, is_closed: bool) -> RecoveredLog:
        header, parser, chain = segment.header, segment.parser, self._chain
        assert chain.state.queues is not None
        oldest = max(header.oldest_segment, chain.state.oldest_segment)
        return RecoveredLog(
            log_id=header.log_id,
            end=LogEnd(
                segment=header.segment,
                table_end=parser.table_end,
                offset=parser.end,
                first_batch=header.first_batch,
                last_batch=parser.due_batch - 1,
                durable_batch=parser.due_batch - 1,  # it was synced: with the lock before it was read, else after
            ),
            oldest_segment=oldest,
            size=size,
            queues=chain.state.queues,
            tail=tail,
            closed=is_closed,
            last=LastRead(header.segment, parser.end, parser.last_bytes()),
            older=[(number, older_size) for number, older_size in chain.older if number >= oldest],
            leftovers=[number for number in self._listing.segments if number < oldest],
            counts=chain.counts,
            gathered={**self._gathered, **(self._bound.files if self._bound is not None else {})},
            jump=chain.state.jump,
        )

    # Bytes.

    def _pieces(self, segment: OpenSegment, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of *segment* from where its parser stands up to *stop*, and report the progress."""
        for base, piece in self._files.directory.pieces(segment.handle, segment.parser.end, stop):
            self._bytes_read += len(piece)
            if self._on_progress is not None:
                self._on_progress(RecoveryProgress(self._bytes_read, max(self._bytes_total, self._bytes_read)))
            yield base, piece

    def _measure(self, last: SegmentHeader, last_size: int) -> None:
        """Work out how many bytes there are to read."""
        self._bytes_total = last_size
        for number in range(self._first_to_read(last), last.segment):
            with contextlib.suppress(OSError):  # raised when it is read, if it is live
                self._bytes_total += self._files.size_of(number)


def _is_believed(recovered: RecoveredLog) -> bool:
    """Return whether the log has the states that the gathered files in use are of."""
    openings, last_batch = recovered.queues.openings, recovered.end.last_batch
    return all(has_state(index.head, openings, last_batch) for index in recovered.queues.pins.gathered.values())


def check_nothing_is_missing(recovered: RecoveredLog, first_table: Table) -> None:
    """Check that records of segments before those read are all truncated, and that every queue holds its end.

    Args:
        recovered: the log that was read.
        first_table: the table of the oldest segment that was read.

    Raises:
        CorruptionError: A queue lacks records.
    """
    name = segment_name(recovered.oldest_segment)
    _check_first_table(recovered, first_table, name)
    for queue in recovered.queues:
        _check_queue(queue, recovered.oldest_segment, name)


def _check_first_table(recovered: RecoveredLog, first_table: Table, name: str) -> None:
    """Raise CorruptionError if a queue needs records that only a segment before the oldest one can hold."""
    for entry in first_table.entries:
        queue, next_position = recovered.queues.by_id(entry.id), entry.next_position
        if queue is None or entry.first_position == next_position:
            continue
        if queue.first_position < next_position and queue.memory_first < next_position:
            raise CorruptionError(
                name,
                None,
                f"positions {queue.first_position} to {next_position - 1} of queue {entry.name!r} are missing: "
                "a segment file was removed",
            )


def _check_queue(queue: Queue, oldest: int, name: str) -> None:
    first_segment = queue.first_segment()
    if first_segment is not None and first_segment < oldest:
        raise CorruptionError(
            name, None, f"it is named as the oldest live segment, but queue {queue.name!r} has records before it"
        )
    if queue.first_position < queue.next_position and queue.held_end() != queue.next_position:
        raise CorruptionError(name, None, f"position {queue.next_position - 1} of queue {queue.name!r} is missing")
