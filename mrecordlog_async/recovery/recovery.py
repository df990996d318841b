"""Opening: from the files of a directory to queues, and the judgement what a place that is no batch means.

1. Read the last segment first: its header and COMMITs name the oldest segment that is live.
2. Read those before it, oldest first. Each must be flawless up to the end that its successor's header states, and the
   state replayed from it must equal its successor's table: every segment proves the one before it.
3. Judge what lies behind the last whole batch of the last segment (`_judge`):

   | behind offset o | meaning | what is done |
   |---|---|---|
   | only zeros | clean end | go on at o |
   | other bytes, and no COMMIT as in the next row | torn tail: nobody was promised it | zero, report, go on at o |
   | a COMMIT, at any byte, that knows the batch due at o as durable | acknowledged data damaged | CorruptionError |
   | `CLOSED` names another end, or cannot be read | damage, or a removed segment | CorruptionError |
   | `CLOSED` names o, other bytes | written by nobody | zero it, report it, go on at o |
   | a read error | the medium, not the content | OSError |

4. Only then, and only with the lock, is anything changed: `zero_torn_tail` zeroes in place and syncs, then leftovers
   are removed.

A reader without the lock does 1 to 3 while a writer lives (`read_without_lock`): damage is read again once before it
is believed, and a segment that the writer removed before it was read is passed over together with all older ones: what
they held is truncated, and the batches that say so are read next (`live_reader`).

One older segment is open at a time, so a log of any number of segments is read with a handful of descriptors.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
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
from mrecordlog_async.format.parse import (
    COMMIT_FRAME_BYTES,
    MalformedError,
    SegmentParser,
    find_commits,
)
from mrecordlog_async.format.record import Table
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.recovery.recovered import Counts, RecoveredLog
from mrecordlog_async.recovery.replay import Replay
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import (
    CLOSED_NAME,
    list_segments,
    open_segment,
    read_pieces,
    segment_name,
)

Progress = Callable[[RecoveryProgress], None]


class Reading(NamedTuple):
    """A log as far as it could be read.

    first_table: the table of the oldest segment that was read. gone: the newest segment that was live when the log's
    end was read and was removed before its own turn, None where all of them were read.
    """

    recovered: RecoveredLog
    first_table: Table
    gone: int | None


class _GoneError(Exception):
    """The writer removed the segment while it was read."""


def read_log(
    files: FileSystem, directory: str, names: list[str], *, on_progress: Progress | None = None
) -> RecoveredLog | None:
    """Read the log in *directory*, whose entries are *names*; None if there is none.

    The caller holds the lock, so nothing moves and the medium can be asked instead of the cache.
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
    """Read the log in *directory* without the lock, as far as the writer leaves it there; otherwise as `read_log`.

    FileNotFoundError where *names* is out of date: list again.
    """
    return _read(files, directory, names, False, on_progress)


def check_nothing_is_missing(recovered: RecoveredLog, first_table: Table) -> None:
    """Check that records of segments before those read are all truncated, and that every queue holds its end."""
    oldest = recovered.older[0][0] if recovered.older else recovered.segment
    for entry in first_table.entries:
        queue = recovered.queues.by_id(entry.id)
        if entry.start < entry.next and queue is not None and queue.start < entry.next:
            raise CorruptionError(
                segment_name(oldest),
                None,
                f"queue {entry.name!r} misses positions {queue.start} to {entry.next - 1}: a segment was removed",
            )
    for queue in recovered.queues:
        if queue.start < queue.next and queue.held_end() != queue.next:
            raise CorruptionError(segment_name(oldest), None, f"queue {queue.name!r} misses position {queue.next - 1}")


def _read(
    files: FileSystem, directory: str, names: list[str], owner: bool, on_progress: Progress | None
) -> Reading | None:
    numbers = list_segments(names)
    if not numbers:
        if CLOSED_NAME in names:
            raise CorruptionError(CLOSED_NAME, None, "a log was closed here, but there is no segment")
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
        self._log_id = b""  # once the last segment's header is read
        self._bytes_total = 0
        self._bytes_read = 0
        self._counts = Counts()

    def read(self) -> Reading:
        last = self._numbers[-1]
        closed = self._read_closed() if self._has_closed else None
        handle = self._open(last)
        try:
            recovered, header, table = self._read_last(handle, last, closed)
        finally:
            self._files.close(handle)
        oldest = recovered.oldest_segment
        recovered.leftovers = [number for number in self._numbers if number < oldest]
        first_table, gone = self._read_older(recovered, header, table, range(oldest, last))
        recovered.counts = self._counts
        return Reading(recovered, first_table, gone)

    # The last segment.

    def _read_last(self, handle: int, number: int, closed: Closed | None) -> tuple[RecoveredLog, SegmentHeader, Table]:
        name = segment_name(number)
        if self._owner:
            # After a failed sync the page cache shows what the disk does not have: write out, drop, ask the disk.
            self._files.sync(handle)
        self._files.forget_cache(handle)
        size = self._files.size(handle)
        header = self._read_header(handle, number)
        self._log_id = header.log_id
        if closed is not None and (closed.log_id, closed.segment) != (header.log_id, number):
            raise CorruptionError(
                name,
                None,
                f"the log was closed in {segment_name(closed.segment)}, which is not the last segment here",
            )
        self._measure(header.oldest_segment, size)
        parser = SegmentParser(header.log_id, number, header.first_batch)
        replay = Replay(self._counts)
        torn_range = self._read_to_the_end(handle, name, number, parser, replay, closed, size)
        if not self._owner:
            self._check_not_cut(handle, number, size)
            sync_for_readers(self._files, handle)
        assert replay.queues is not None and replay.first_table is not None
        oldest = max(header.oldest_segment, replay.oldest_segment)
        if oldest > number:
            raise CorruptionError(name, None, f"it names segment {oldest} as live, but is itself the last one")
        recovered = RecoveredLog(
            log_id=header.log_id,
            segment=number,
            table_end=parser.table_end,
            end=parser.end,
            first_batch=header.first_batch,
            last_batch=parser.due_batch - 1,
            oldest_segment=oldest,
            size=size,
            queues=replay.queues,
            torn_range=torn_range,
            closed=closed is not None,
        )
        return recovered, header, replay.first_table

    def _read_to_the_end(
        self,
        handle: int,
        name: str,
        number: int,
        parser: SegmentParser,
        replay: Replay,
        closed: Closed | None,
        size: int,
    ) -> tuple[int, int] | None:
        """Read whole batches and judge what lies behind them; return where that is not zero.

        Beside a living writer, half of a batch may have been read while it was being written: what looks like damage
        is read again once from there.
        """
        stop = min(size, closed.end) if closed is not None else size
        doubted = -1
        while True:
            try:
                self._replay_batches(handle, name, number, parser, replay, stop)
                return self._judge(handle, name, number, parser, closed, size)
            except CorruptionError as error:
                in_a_whole_batch = error.offset is None or error.offset < parser.end
                if self._owner or parser.end == doubted or in_a_whole_batch:
                    raise
                doubted = parser.end
                parser.resume()

    def _replay_batches(
        self, handle: int, name: str, number: int, parser: SegmentParser, replay: Replay, stop: int
    ) -> None:
        """Read a segment from where *parser* stands up to *stop*, replaying each batch as it comes."""
        begun = parser.table is not None
        try:
            for base, piece in read_pieces(self._files, handle, parser.end, stop):
                self._advance(len(piece))
                for batch in parser.feed(piece, base):
                    if not begun:
                        begun = self._begin(name, parser, replay)
                    replay.add(name, number, batch)
                if parser.stopped:
                    break
        except MalformedError as error:
            raise CorruptionError(name, error.offset, error.reason) from None
        if not begun:
            self._begin(name, parser, replay)

    def _begin(self, name: str, parser: SegmentParser, replay: Replay) -> bool:
        if parser.table is None:
            raise CorruptionError(name, HEADER_BYTES, "its table of queues is damaged")
        replay.begin(name, parser.table)
        return True

    def _judge(
        self, handle: int, name: str, number: int, parser: SegmentParser, closed: Closed | None, size: int
    ) -> tuple[int, int] | None:
        """Say what lies behind the last whole batch: where it is not zero, or CorruptionError. See the table above."""
        end, due = parser.end, parser.due_batch
        if closed is not None and (end, due - 1) != (closed.end, closed.last_batch):
            raise CorruptionError(
                name,
                end,
                f"the log was closed behind batch {closed.last_batch} at offset {closed.end}, which is not here",
            )
        torn_range: tuple[int, int] | None = None
        carry, log_id = b"", parser.log_id
        for base, piece in read_pieces(self._files, handle, end, size):
            start = max(end - base, 0)
            data = piece[start:] if start else piece
            stripped = data.rstrip(b"\0")
            if stripped:
                at = base + start
                first = torn_range[0] if torn_range else at + len(data) - len(data.lstrip(b"\0"))
                torn_range = first, at + len(stripped)
            if closed is None and (stripped or carry):
                # A COMMIT may itself end in zeros: its last bytes are a clock's highest.
                searched = carry + data[: len(stripped) + COMMIT_FRAME_BYTES]
                for commit in find_commits(searched, base + start - len(carry), log_id, number):
                    if commit.durable_batch >= due:
                        raise CorruptionError(
                            name,
                            end,
                            f"batch {due} was acknowledged and is damaged: batch {commit.batch} behind it says so",
                        )
            carry = data[1 - COMMIT_FRAME_BYTES :] if stripped else b""
        return torn_range

    # The segments before it.

    def _read_older(
        self, recovered: RecoveredLog, last_header: SegmentHeader, last_table: Table, numbers: range
    ) -> tuple[Table, int | None]:
        """Read the live segments before the last, one at a time, and join what they hold to *recovered*.

        Returns the first one's table, and the newest segment that was removed before it could be read.
        """
        missing = next((number for number in numbers if number not in self._numbers), None)
        if missing is not None:
            raise CorruptionError(segment_name(missing), None, "the segment is missing, and it held live data")
        replay, gone = Replay(self._counts), None
        header: SegmentHeader | None = None
        for number in numbers:
            try:
                header = header or self._header_of(number)
                successor = last_header if number + 1 == last_header.segment else self._header_of(number + 1)
                size = self._replay_older(number, header, successor, replay)
            except _GoneError:
                # All that it and those before it held is truncated: begin anew behind it.
                replay, gone, header = Replay(self._counts), number, None
                recovered.older.clear()
                continue
            recovered.older.append((number, size))
            header = successor
        if replay.queues is None:
            return last_table, gone
        replay.begin(segment_name(recovered.segment), last_table)
        assert replay.first_table is not None
        recovered.queues.adopt(replay.queues)
        return replay.first_table, gone

    def _replay_older(self, number: int, header: SegmentHeader, successor: SegmentHeader, replay: Replay) -> int:
        """Replay a segment that must be flawless up to where *successor* says it ended; return its size."""
        name = segment_name(number)
        handle = self._open_older(number)
        try:
            parser = SegmentParser(header.log_id, number, header.first_batch)
            self._replay_batches(handle, name, number, parser, replay, successor.previous_end)
            if (parser.end, parser.due_batch) != (successor.previous_end, successor.first_batch):
                raise CorruptionError(
                    name,
                    parser.end,
                    f"batch {parser.due_batch} is damaged: the segment must be flawless up to {successor.previous_end}",
                )
            return self._files.size(handle)
        except CorruptionError:
            self._check_not_gone(handle)
            raise
        finally:
            self._files.close(handle)

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

    def _header_of(self, number: int) -> SegmentHeader:
        """Read the header of an older segment."""
        handle = self._open_older(number)
        try:
            header = self._read_header(handle, number)
            if header.log_id != self._log_id:
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

    def _check_not_cut(self, handle: int, number: int, size: int) -> None:
        """Raise FileNotFoundError where the last segment was removed and its space given back while it was read."""
        if not self._files.links(handle) and self._files.size(handle) < size:
            raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was read", segment_name(number))

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

    def _measure(self, oldest: int, last_size: int) -> None:
        """Work out how many bytes there are to read."""
        self._bytes_total = last_size
        for number in self._numbers[:-1]:
            if number >= oldest:
                with contextlib.suppress(FileNotFoundError):  # its turn tells what that means
                    handle = self._open(number)
                    self._bytes_total += self._files.size(handle)
                    self._files.close(handle)

    def _advance(self, length: int) -> None:
        self._bytes_read += length
        if self._on_progress is not None:
            self._on_progress(RecoveryProgress(self._bytes_read, max(self._bytes_total, self._bytes_read)))


def sync_for_readers(files: FileSystem, handle: int) -> None:
    """Bring what was read to the medium before it is shown: what a reader has seen stays.

    On a read-only file system there is nothing to bring.
    """
    try:
        files.sync(handle)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):
            raise
