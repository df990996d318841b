"""Opening: from the files of a directory to queues, oldest live segment first.

1. Open the last segment and read its header: it names the oldest segment that was live when it began.
2. Replay the segments from there on, oldest first, into one state. Each must be intact up to the end that its
   successor's header states, and the state replayed from it must equal its successor's table: every segment proves the
   one before it. A segment that fails is remembered, and replay starts over after it.
3. Replay the last segment and judge what lies after its last whole batch (`torn_or_damaged.judge_end`):

   | row | after offset o | meaning | what is done |
   |---|---|---|---|
   | 1 | only zeros | clean end | continue at o |
   | 2 | other bytes, and no COMMIT as in row 3 | torn tail, never acknowledged | zero, report, continue at o |
   | 3 | a COMMIT, at any byte, that knows the batch due at o as durable | acknowledged data damaged | CorruptionError |
   | 4 | `CLOSED` names another end, or cannot be read | damage, or a removed segment | CorruptionError |
   | 5 | `CLOSED` names o, other bytes | written by nobody | zero, report, continue at o |
   | 6 | a read error | the medium, not the content | OSError |

4. Its COMMITs name the oldest live segment for certain. Only now is a failure of step 2 raised, if its segment is live:
   a dead one, which a crash kept from being removed, must not keep a log from opening.
5. Only then, and only with the lock, is anything changed: `zero_torn_tail` zeroes in place and syncs, then leftovers
   are removed.

A reader without the lock does 1 to 4 while a writer lives (`read_without_lock`): damage is read again once before it
is believed, and a segment that the writer removed before it was read is passed over together with all older ones: what
they held is truncated, and the batches that say so are read next (`live_reader`).

The last segment stays open, so that the writer does not give its space back meanwhile, and one older one at a time: a
log of any number of segments is read with a handful of descriptors.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import (
    CLOSED_BYTES,
    HEADER_BYTES,
    Closed,
    HeaderError,
    SegmentHeader,
    decode_closed,
    decode_header,
)
from mrecordlog_async.format.parse import MalformedError, SegmentParser
from mrecordlog_async.format.record import Table
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.recovery.recovered import Counts, RecoveredLog
from mrecordlog_async.recovery.replay import Replay
from mrecordlog_async.recovery.torn_or_damaged import ByteRange, SegmentEnd, judge_end
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import CLOSED_NAME, list_segments, open_segment, read_pieces, segment_name

Progress = Callable[[RecoveryProgress], None]


class Reading(NamedTuple):
    """A log as far as it could be read.

    first_table: the table of the oldest segment that was read. gone: the newest live segment that was removed before
    its turn, None where all of them were read.
    """

    recovered: RecoveredLog
    first_table: Table
    gone: int | None


class _GoneError(Exception):
    """The writer removed the segment while it was read."""


@dataclass(frozen=True, slots=True)
class _OpenSegment:
    """A segment that is being read."""

    handle: int
    header: SegmentHeader
    parser: SegmentParser

    @classmethod
    def of(cls, handle: int, header: SegmentHeader) -> _OpenSegment:
        return cls(handle, header, SegmentParser(header.log_id, header.segment, header.first_batch))

    @property
    def number(self) -> int:
        return self.header.segment

    @property
    def name(self) -> str:
        return segment_name(self.header.segment)


def read_log(
    files: FileSystem, directory: str, names: list[str], *, on_progress: Progress | None = None
) -> RecoveredLog | None:
    """Read the log in *directory*, whose entries are *names*; None if the directory has no log.

    The caller holds the lock, so nothing changes meanwhile and the cache can be dropped to read from the medium.
    Raises CorruptionError for damage and OSError for what cannot be read; changes nothing.
    """
    reading = _read(files, directory, names, True, on_progress)
    if reading is None:
        return None
    check_nothing_is_missing(reading.recovered, reading.first_table)
    return reading.recovered


def read_without_lock(
    files: FileSystem, directory: str, names: list[str], *, on_progress: Progress | None = None
) -> Reading | None:
    """Read the log in *directory* without the lock, as far as the writer has not removed it; otherwise as `read_log`.

    Raises FileNotFoundError where *names* is out of date: list again.
    """
    return _read(files, directory, names, False, on_progress)


def check_nothing_is_missing(recovered: RecoveredLog, first_table: Table) -> None:
    """Check that records of segments before those read are all truncated, and that every queue holds its end."""
    oldest = recovered.oldest_segment
    name = segment_name(oldest)
    for entry in first_table.entries:
        queue = recovered.queues.by_id(entry.id)
        if (
            entry.first_position < entry.next_position
            and queue is not None
            and queue.first_position < entry.next_position
        ):
            raise CorruptionError(
                name,
                None,
                f"positions {queue.first_position} to {entry.next_position - 1} of queue {entry.name!r} are missing: "
                "a segment file was removed",
            )
    for queue in recovered.queues:
        first_segment = queue.first_segment()
        if first_segment is not None and first_segment < oldest:
            raise CorruptionError(
                name, None, f"it is named as the oldest live segment, but queue {queue.name!r} has records before it"
            )
        if queue.first_position < queue.next_position and queue.held_end() != queue.next_position:
            raise CorruptionError(name, None, f"position {queue.next_position - 1} of queue {queue.name!r} is missing")


def _read(
    files: FileSystem, directory: str, names: list[str], owner: bool, on_progress: Progress | None
) -> Reading | None:
    numbers = list_segments(names)
    if not numbers:
        if CLOSED_NAME in names:
            raise CorruptionError(CLOSED_NAME, None, "a log was closed here, but all its segments are missing")
        return None
    return _LogReader(files, directory, numbers, CLOSED_NAME in names, owner, on_progress).read()


class _LogReader:
    """Reads one log once."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        numbers: list[int],
        has_closed: bool,
        owner: bool,
        on_progress: Progress | None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._numbers = numbers
        self._has_closed = has_closed
        self._owner = owner
        self._on_progress = on_progress
        self._bytes_total = 0
        self._bytes_read = 0
        self._counts = Counts()
        # What has been replayed so far, since the last segment that failed or was gone.
        self._replay = Replay(self._counts)
        self._older: list[tuple[int, int]] = []
        self._failures: list[tuple[int, CorruptionError | OSError]] = []  # by segment, oldest first
        self._gone: int | None = None

    def read(self) -> Reading:
        closed = self._read_closed() if self._has_closed else None
        handle = self._open(self._numbers[-1])
        try:
            last, size = self._begin_last(handle, closed)
            self._replay_older(last.header)
            recovered = self._replay_last(last, closed, size)
        finally:
            self._files.close(handle)
        self._raise_if_live_data_is_lost(last.header, recovered.oldest_segment)
        assert self._replay.first_table is not None
        return Reading(recovered, self._replay.first_table, self._gone)

    def _raise_if_live_data_is_lost(self, last: SegmentHeader, oldest: int) -> None:
        """Raise the first failure of a live segment; forget those of dead ones, which hold nothing that is needed."""
        if oldest > last.segment:
            raise CorruptionError(
                segment_name(last.segment),
                None,
                f"it names segment {oldest} as the oldest live one, but this is the last segment",
            )
        present = set(self._numbers)
        missing = next((number for number in range(oldest, last.segment) if number not in present), None)
        if missing is not None:
            raise CorruptionError(segment_name(missing), None, "the segment is missing, and it held live data")
        for number, error in self._failures:
            if number >= oldest:
                raise error
        if self._gone is not None and self._gone < oldest:
            self._gone = None

    # The segments before the last.

    def _replay_older(self, last: SegmentHeader) -> None:
        """Replay the segments that may be live, one at a time, oldest first."""
        header: SegmentHeader | None = None
        for number in range(self._first_to_read(last), last.segment):
            try:
                header = header or self._header_of(number, last.log_id)
                successor = last if number + 1 == last.segment else self._header_of(number + 1, last.log_id)
                size = self._replay_segment(header, successor)
            except _GoneError:
                self._start_over()
                # Segments are removed oldest first: whatever failed before it is dead as well.
                self._failures.clear()
                self._gone, header = number, None
            except (CorruptionError, OSError) as error:
                self._fail(number, error)
                header = None
            else:
                self._older.append((number, size))
                header = successor

    def _first_to_read(self, last: SegmentHeader) -> int:
        """Return the lowest segment that may be live and from which none is missing up to the last."""
        present = set(self._numbers)
        number = last.segment
        while number > last.oldest_segment and number - 1 in present:
            number -= 1
        return number

    def _replay_segment(self, header: SegmentHeader, successor: SegmentHeader) -> int:
        """Replay a segment that must be intact up to where *successor* says it ended; return its size."""
        handle = self._open_older(header.segment)
        segment = _OpenSegment.of(handle, header)
        parser = segment.parser
        try:
            self._replay_batches(segment, successor.previous_end)
            if (parser.end, parser.due_batch) != (successor.previous_end, successor.first_batch):
                raise CorruptionError(
                    segment.name,
                    parser.end,
                    f"batch {parser.due_batch} is damaged: the segment must be intact up to {successor.previous_end}",
                )
            return self._files.size(handle)
        except CorruptionError:
            self._check_not_gone(handle)
            raise
        finally:
            self._files.close(handle)

    def _fail(self, number: int, error: CorruptionError | OSError) -> None:
        """Remember that segment *number* cannot be read; whether that matters is known only at the end."""
        self._failures.append((number, error))
        self._start_over()

    def _start_over(self) -> None:
        """Forget what was replayed: the next segment's table is the state to start from."""
        self._replay = Replay(self._counts)
        self._older.clear()

    # The last segment.

    def _begin_last(self, handle: int, closed: Closed | None) -> tuple[_OpenSegment, int]:
        """Read the header of the last segment; return the segment and its size."""
        number = self._numbers[-1]
        if self._owner:
            # After a failed sync the page cache shows what the disk does not have: write out, drop, ask the disk.
            self._files.sync(handle)
        self._files.drop_cache(handle)
        size = self._files.size(handle)
        header = self._read_header(handle, number)
        if closed is not None and (closed.log_id, closed.segment) != (header.log_id, number):
            raise CorruptionError(
                segment_name(number),
                None,
                f"the log was closed in {segment_name(closed.segment)}, which is not the last segment here",
            )
        self._measure(header, size)
        return _OpenSegment.of(handle, header), size

    def _replay_last(self, segment: _OpenSegment, closed: Closed | None, size: int) -> RecoveredLog:
        header, parser = segment.header, segment.parser
        # Only what this segment's own COMMITs and header say about the oldest live segment counts.
        self._replay.oldest_segment = 0
        if not self._owner:
            # The writer went on while the older segments were read.
            self._files.drop_cache(segment.handle)
            size = max(size, self._files.size(segment.handle))
        torn_range = self._read_to_the_end(segment, closed, size)
        if not self._owner:
            self._check_not_cut(segment, size)
            sync_for_readers(self._files, segment.handle)
        replay = self._replay
        assert replay.queues is not None
        oldest = max(header.oldest_segment, replay.oldest_segment)
        return RecoveredLog(
            log_id=header.log_id,
            segment=header.segment,
            table_end=parser.table_end,
            end=parser.end,
            first_batch=header.first_batch,
            last_batch=parser.due_batch - 1,
            oldest_segment=oldest,
            size=size,
            queues=replay.queues,
            torn_range=torn_range,
            closed=closed is not None,
            older=[(number, older_size) for number, older_size in self._older if number >= oldest],
            leftovers=[number for number in self._numbers if number < oldest],
            counts=self._counts,
        )

    def _read_to_the_end(self, segment: _OpenSegment, closed: Closed | None, size: int) -> ByteRange | None:
        """Read whole batches and judge what lies after them; return where that is not zero.

        While a writer runs, half of a batch may have been read before it was complete: what looks like damage is read
        again once from there.
        """
        parser = segment.parser
        stop = min(size, closed.end) if closed is not None else size
        doubted = -1
        while True:
            try:
                self._replay_batches(segment, stop)
                end = SegmentEnd.of(segment.number, parser)
                return judge_end(self._files, segment.handle, end, closed, size)
            except CorruptionError as error:
                in_a_whole_batch = error.offset is None or error.offset < parser.end
                if self._owner or parser.end == doubted or in_a_whole_batch:
                    raise
                doubted = parser.end
                parser.resume()

    # Any segment.

    def _replay_batches(self, segment: _OpenSegment, stop: int) -> None:
        """Read *segment* from where its parser is up to *stop*, applying each batch as it comes."""
        parser, name, number, replay = segment.parser, segment.name, segment.number, self._replay
        begun = parser.table is not None
        try:
            for base, piece in read_pieces(self._files, segment.handle, parser.end, stop):
                self._advance(len(piece))
                for batch in parser.feed(piece, base):
                    if not begun:
                        begun = self._begin(segment)
                        replay = self._replay
                    replay.add(name, number, batch)
                if parser.stopped:
                    break
        except MalformedError as error:
            raise CorruptionError(name, error.offset, error.reason) from None
        if not begun:
            self._begin(segment)

    def _begin(self, segment: _OpenSegment) -> bool:
        """Go on with the table of *segment*, which must be what the segment before it left."""
        table = segment.parser.table
        if table is None:
            raise CorruptionError(segment.name, HEADER_BYTES, "its table of queues is damaged")
        try:
            self._replay.begin(segment.name, table)
        except CorruptionError as error:
            # Nothing here is damaged by itself: it matters only if the segment before is live.
            self._fail(segment.number - 1, error)
            self._replay.begin(segment.name, table)
        return True

    # Files.

    def _open(self, number: int) -> int:
        return open_segment(self._files, self._directory, number)

    def _open_older(self, number: int) -> int:
        try:
            return self._open(number)
        except FileNotFoundError:
            if self._owner:
                raise
            raise _GoneError from None

    def _header_of(self, number: int, log_id: bytes) -> SegmentHeader:
        """Read the header of an older segment."""
        handle = self._open_older(number)
        try:
            header = self._read_header(handle, number)
            if header.log_id != log_id:
                raise CorruptionError(segment_name(number), 0, "the segment belongs to another log")
            return header
        except CorruptionError:
            self._check_not_gone(handle)
            raise
        finally:
            self._files.close(handle)

    def _check_not_gone(self, handle: int) -> None:
        """Raise _GoneError where what looks like damage is a removed segment whose space is being given back."""
        if not self._owner and not self._files.links(handle):
            raise _GoneError

    def _check_not_cut(self, segment: _OpenSegment, size: int) -> None:
        """Raise FileNotFoundError where the last segment was removed and its space given back while it was read."""
        if not self._files.links(segment.handle) and self._files.size(segment.handle) < size:
            raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was read", segment.name)

    def _read_header(self, handle: int, number: int) -> SegmentHeader:
        name = segment_name(number)
        try:
            header = decode_header(read_exact(self._files, handle, HEADER_BYTES, 0))
        except HeaderError as error:
            raise CorruptionError(name, 0, str(error)) from None
        if header.segment != number:
            raise CorruptionError(name, 0, f"the file holds segment {header.segment}")
        return header

    def _read_closed(self) -> Closed:
        handle = self._files.open(f"{self._directory}/{CLOSED_NAME}", write=False)
        try:
            return decode_closed(read_exact(self._files, handle, CLOSED_BYTES + 1, 0))
        except HeaderError as error:
            raise CorruptionError(CLOSED_NAME, None, str(error)) from None
        finally:
            self._files.close(handle)

    def _measure(self, last: SegmentHeader, last_size: int) -> None:
        """Work out how many bytes there are to read."""
        self._bytes_total = last_size
        for number in range(self._first_to_read(last), last.segment):
            with contextlib.suppress(OSError):  # raised when it is read, if it is live
                self._bytes_total += self._size_of(number)

    def _size_of(self, number: int) -> int:
        handle = self._open(number)
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

    def _advance(self, length: int) -> None:
        self._bytes_read += length
        if self._on_progress is not None:
            self._on_progress(RecoveryProgress(self._bytes_read, max(self._bytes_total, self._bytes_read)))


def sync_for_readers(files: FileSystem, handle: int) -> None:
    """Sync what was read before it is shown, so that no crash can take back what a reader has seen.

    A read-only file system needs no sync.
    """
    try:
        files.sync(handle)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):
            raise
