"""The segments of the log that is being read: opened with the lock or without it, their headers checked.

Without the lock, the writer may remove a segment at any time, and free its space or make its file another segment while
a reader still has it open. So what looks like damage may be a removed segment: it is one if the file lost its name
(`SegmentRemovedError`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mrecordlog_async.errors import CorruptionError, RecordLogError
from mrecordlog_async.format.header import Closed, HeaderError, SegmentHeader
from mrecordlog_async.format.parse import SegmentParser
from mrecordlog_async.recovery.recovered import LastRead
from mrecordlog_async.storage.directory import LogDirectory, naming
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import CLOSED_NAME, segment_name


class SegmentRemovedError(Exception):
    """The writer removed the segment before or while it was read. Only without the lock."""


class LogReplacedError(RecordLogError):
    """The directory was replaced by an older copy of the log since it was read. Only without the lock."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)

    def message(self) -> str:
        """Return what happened and what to do next."""
        return f"an older copy took the place of the log in {self.facts[0]}: read it again from the beginning"


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment that is being read."""

    handle: int
    header: SegmentHeader
    parser: SegmentParser

    @classmethod
    def of(cls, handle: int, header: SegmentHeader) -> OpenSegment:
        """Return the segment of *header*, to be read from its first batch on."""
        return cls(handle, header, SegmentParser(header.log_id, header.segment, header.first_batch))

    @property
    def number(self) -> int:
        """Return the segment's number."""
        return self.header.segment

    @property
    def name(self) -> str:
        """Return the segment's file name."""
        return segment_name(self.header.segment)


class SegmentFiles:
    """Opens the segments of one log and reads their headers; a damaged header or `CLOSED` is a CorruptionError.

    has_lock: the caller holds the lock, so no writer changes the files meanwhile.
    """

    def __init__(self, directory: LogDirectory, has_lock: bool) -> None:
        self.directory = directory
        self.has_lock = has_lock
        self._files = directory.files

    @contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """Open an older segment; the context manager closes it.

        Raises SegmentRemovedError if the writer removed it, even for damage that was found in it after that.
        """
        try:
            handle = self.directory.open(number)
        except FileNotFoundError:
            if self.has_lock:
                raise
            raise SegmentRemovedError from None
        try:
            with naming(self.directory.path_of(number)):
                yield handle
        except CorruptionError:
            if not self.has_lock and self.directory.was_removed(number):
                raise SegmentRemovedError from None
            raise
        finally:
            self._files.close(handle)

    def header(self, handle: int, number: int) -> SegmentHeader:
        """Read the header of segment *number* through the open *handle*."""
        try:
            return self.directory.header(handle, number)
        except HeaderError as error:
            raise CorruptionError(segment_name(number), 0, str(error)) from None

    def header_of(self, number: int, log_id: bytes) -> SegmentHeader:
        """Read the header of an older segment, which must belong to the log *log_id*; errors as in `opened`."""
        with self.opened(number) as handle:
            header = self.header(handle, number)
            if header.log_id != log_id:
                raise CorruptionError(segment_name(number), 0, "the segment belongs to another log")
            return header

    def closed(self) -> Closed | None:
        """Read `CLOSED`. None if a writer removed it since it was listed: the log is not closed any more."""
        try:
            return self.directory.closed()
        except HeaderError as error:
            raise CorruptionError(CLOSED_NAME, None, str(error)) from None

    def size(self, handle: int) -> int:
        """Return the size of an open segment in bytes."""
        return self._files.size(handle)

    def size_of(self, number: int) -> int:
        """Return the size of segment *number* in bytes."""
        with self.directory.opened(number) as handle:
            return self._files.size(handle)

    def write_out(self, handle: int) -> None:
        """Drop what is cached of the file, so that the next read comes from the medium."""
        if self.has_lock:
            # After a failed sync the page cache shows what the disk does not have: write out, drop, ask the disk.
            self._files.sync(handle)
        self._files.drop_cache(handle)

    def check_not_removed(self, number: int) -> None:
        """Raise FileNotFoundError if the last segment was removed. Call it before anything of it is believed."""
        if not self.has_lock and self.directory.was_removed(number):
            raise self.directory.removed(number)

    def check_not_rewritten(self, segment: OpenSegment, size: int) -> None:
        """Raise FileNotFoundError if the last segment's space was freed or used for another one while it was read."""
        if self.directory.was_rewritten(segment.handle, segment.number, size):
            raise self.directory.removed(segment.number)


def is_there(directory: LogDirectory, last: LastRead) -> bool | None:
    """Return whether the log still has what was read last; None if it does not have that segment."""
    try:
        with directory.opened(last.segment) as handle:
            start = last.end - len(last.content)
            return read_exact(directory.files, handle, len(last.content), start) == last.content
    except FileNotFoundError:
        return None


def sync_for_readers(files: FileSystem, handle: int) -> None:
    """Sync what was read before it is shown, so that no crash can take back what a reader has seen.

    A read-only file system needs no sync.
    """
    try:
        files.sync(handle)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):
            raise
