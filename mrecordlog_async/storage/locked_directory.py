"""The directory of a log that this process has locked: everything that only the lock's holder may change in it.

The directory stays open, because a new name, a rename or a removal is durable only after a sync of the directory.
Files are named by path. If somebody renames the directory of an open log, its path may name another log; if somebody
removes `LOCK`, another process can lock a new one. So before a file gets a name or loses it, both are checked.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence

from mrecordlog_async.format.frame import Buffer, encode_frames, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, Closed, SegmentHeader, encode_closed, encode_header
from mrecordlog_async.options import KIB
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.end_note import LAST_END_BYTES_MAX, LAST_END_NAME, EndNote, decode_end_note
from mrecordlog_async.storage.filesystem import write_all
from mrecordlog_async.storage.lock import take_lock
from mrecordlog_async.storage.lock_file import LOCK_NAME, write_mark
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, LinkCount, SegmentFile, segment_path

RESERVE_BYTES = 64 * KIB
"""Space after every batch that only truncate and delete may use, so that they succeed on a full disk."""


class LockedDirectory:
    """A log's directory, open, and its lock. It belongs to the log's thread.

    log: the directory as everybody may read it, without the lock.
    """

    __slots__ = ("_handle", "_lock_handle", "_lock_names", "files", "log", "path")

    def __init__(self, directory: LogDirectory, handle: int, lock_handle: int) -> None:
        """Use `take`."""
        self.log = directory
        self.files = directory.files
        self.path = directory.path
        self._handle = handle
        self._lock_handle = lock_handle
        self._lock_names = LinkCount(self.files, lock_handle)

    @classmethod
    def take(cls, directory: LogDirectory) -> LockedDirectory:
        """Open *directory* and lock it.

        Raises:
            FileNotFoundError: The directory does not exist.
            LogLockedError: Another process, or another log of this one, holds the lock.
            OSError: A system call failed.
        """
        handle = directory.files.open_directory(directory.path)
        try:
            return cls(directory, handle, take_lock(directory))
        except BaseException:
            directory.files.close(handle)
            raise

    def mark(self) -> None:
        """Note that the directory holds a log, one of whose segments has its name on the medium."""
        write_mark(self.files, self._lock_handle)

    def path_of(self, number: int) -> str:
        """Return the path of segment *number*."""
        return segment_path(self.path, number)

    @property
    def lock_handle(self) -> int:
        """The open file LOCK."""
        return self._lock_handle

    def sync(self) -> None:
        """Wait until the directory's entries are on the medium."""
        self.files.sync_directory(self._handle)

    def check_place(self) -> None:
        """Raise FileNotFoundError unless the path still names this directory, and its lock still has its file."""
        if not self.files.is_at(self._handle, self.path):
            reason = "the directory of the open log was renamed, replaced or removed; move it back"
            raise FileNotFoundError(errno.ENOENT, reason, self.path)
        if self.is_lock_removed():
            reason = f"{LOCK_NAME} was removed while the log is open; close it"
            raise FileNotFoundError(errno.ENOENT, reason, self.path)

    def is_lock_removed(self) -> bool:
        """Return whether the lock has lost its file, so that another process can lock a new one.

        Raises OSError if the system does not report it.
        """
        self._lock_names.read()
        return self._lock_names.is_removed

    def capacity_bytes(self) -> int:
        """Return the size of the file system in bytes, 0 if it does not report one."""
        try:
            return self.files.space_of(self._handle)[0]
        except OSError:
            return 0

    def recycles(self) -> bool:
        """Return whether the file system is one on which dead segments are used again; False if it does not say."""
        try:
            return self.files.recycles(self._handle)
        except OSError:
            return False

    def lists(self, path: str) -> bool:
        """Return whether the directory has a file at *path*; True if it cannot be listed."""
        try:
            return path.rpartition("/")[2] in self.files.list_names(self.path)
        except OSError:
            return True

    def create_temporary(self, path: str) -> tuple[str, int]:
        """Create an empty file that becomes *path* once it is whole; return its temporary path and its handle.

        One that a crash or an error left is removed first, durably: later its number could say that one is missing.
        """
        self.check_place()
        temporary = path + TEMPORARY_SUFFIX
        try:
            return temporary, self.files.create(temporary)
        except FileExistsError:
            self.files.unlink(temporary)
            self.sync()
            return temporary, self.files.create(temporary)

    def write_closed(self, closed: Closed) -> bool:
        """Record where the log ends. If this fails, nothing is lost: the next open finds the end by itself.

        Returns False if `CLOSED` certainly does not exist.
        """
        may_exist = False
        with contextlib.suppress(OSError):
            temporary, handle = self.create_temporary(self.log.closed_path)
            try:
                write_all(self.files, handle, [encode_closed(closed)], 0)
                self.files.sync(handle)
            finally:
                self.files.close(handle)
            may_exist = True
            self.files.rename(temporary, self.log.closed_path)
            self.sync()
        return may_exist

    def remove_closed(self) -> None:
        """Remove `CLOSED`, durably, before the next batch: a log that has both does not open."""
        self.files.unlink(self.log.closed_path)
        self.sync()

    def read_end_note(self) -> EndNote:
        """Return what earlier openings noted of their ends."""
        with contextlib.suppress(OSError):
            handle = self.files.open(f"{self.path}/{LAST_END_NAME}", write=False)
            try:
                return decode_end_note(self.files.read(handle, LAST_END_BYTES_MAX, 0))
            finally:
                self.files.close(handle)
        return EndNote()

    def note_end(self, note: EndNote, *, aside: bool = False) -> None:
        """Note something for the next opening, if that works. With *aside*, it may be called on the event loop."""
        if not self._lock_names.is_removed:  # another process may own the directory by now
            self.files.note(self._handle, LAST_END_NAME, note.encode(), aside=aside)

    def handles(self) -> list[int]:
        """Return the open handles: a forked child closes its copies."""
        return [self._handle, self._lock_handle]

    def close(self) -> None:
        """Close the directory, then release the lock."""
        # First: the numbers are those of other files soon. A note may still come; a forked child closes them.
        handle, lock_handle = self._handle, self._lock_handle
        self._handle = self._lock_handle = -1
        # The lock last: another opener must find nothing of this log in use.
        try:
            self.files.close(handle)
        finally:
            self.files.close(lock_handle)


def write_preamble(file: SegmentFile, header: SegmentHeader, table: Sequence[Buffer]) -> int:
    """Write a segment's header and table; return the offset where its first batch begins."""
    buffers: list[Buffer] = [encode_header(header)]
    end = encode_frames(table, HEADER_BYTES, segment_seed(header.log_id, header.segment), buffers)
    file.reserve(end + RESERVE_BYTES, end + RESERVE_BYTES)
    file.write([b"".join(buffers)], 0)
    return end


def make_first_segment(directory: LockedDirectory, log_id: bytes, table: Sequence[Buffer]) -> tuple[SegmentFile, int]:
    """Create segment 0 of a new log, durable with its name; return it and the offset where its first batch begins."""
    path = directory.path_of(0)
    file = SegmentFile(directory.files, *directory.create_temporary(path), 0)
    try:
        end = write_preamble(file, SegmentHeader(log_id, 0, 1, 0, 0), table)
        # Durable before it has its name: a segment without an intact header and table is damage.
        file.sync()
        directory.files.rename(file.path, path)
        file.path = path
        directory.sync()
    except BaseException:
        file.close()
        raise
    return file, end
