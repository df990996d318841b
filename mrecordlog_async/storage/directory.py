"""The files of one log: its segments, their paths, their headers, and `CLOSED`.

Only `LogDirectory` decides whether a log exists, and retries a read when a writer adds or removes segments meanwhile.
The meaning of a segment's bytes is left to `format` and to the modules that read it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypeVar

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
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.lock_file import LOCK_NAME, has_mark
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import (
    CLOSED_NAME,
    TEMPORARY_SUFFIX,
    list_segments,
    read_pieces,
    segment_name,
    segment_number,
    segment_path,
    temporary_number,
)
from mrecordlog_async.support.paths import absolute

ATTEMPTS_MAX = 20
"""Times that a log is read if a writer keeps changing its files between the listing and the last read."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a log: its segments, ascending, and whether `CLOSED` exists.

    others: the names of all other files. Two listings that differ only in them are equal: a reader does not care.
    """

    segments: tuple[int, ...]
    has_closed: bool
    others: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_empty(self) -> bool:
        """Return whether there is no log, not even the end of one."""
        return not self.segments and not self.has_closed

    @property
    def stop(self) -> int:
        """Return the number after that of the last segment, which may be missing.

        A segment is made, under its temporary name, only after the one before it has its name.
        """
        made = [number for name in self.others if (number := temporary_number(name)) is not None]
        return max(self.segments[-1] + 1, *made) if made else self.segments[-1] + 1

    def check_last_is_here(self) -> None:
        """Raise CorruptionError if a later segment than the last one here was the log's last."""
        if self.stop > self.segments[-1] + 1:
            name, made = segment_name(self.stop - 1), segment_name(self.stop) + TEMPORARY_SUFFIX
            raise CorruptionError(name, None, f"the segment is missing, and {made} was made after it")

    @property
    def temporary(self) -> list[str]:
        """Return the names of segments and of a `CLOSED` that were being made."""
        return [
            name for name in self.others if name.endswith(TEMPORARY_SUFFIX) and name.startswith(("wal-", CLOSED_NAME))
        ]


class LogDirectory:
    """The directory of one log, read through *files*."""

    __slots__ = ("files", "path")

    def __init__(self, files: FileSystem, path: str) -> None:
        self.files = files
        self.path = path

    @classmethod
    def at(cls, path: str | os.PathLike[str], filesystem: FileSystem | None = None) -> LogDirectory:
        """Return the log directory at *path*; *filesystem* is for tests."""
        return cls(filesystem or OsFileSystem(), os.fsdecode(path)).absolute()

    def absolute(self) -> LogDirectory:
        """Return the directory with an absolute path. Blocks: it asks the system for the working directory.

        Raises ValueError; see `support.paths`.
        """
        return LogDirectory(self.files, absolute(self.path, is_used=self._has_log))

    def _has_log(self, path: str) -> bool:
        with suppress(OSError):
            return not LogDirectory(self.files, path).list().is_empty
        return False

    def sync_name(self) -> None:
        """Wait until the directory's own name is on the medium: a program that renamed it may have died before.

        Nothing is synced if this user may not read the parent, or if the file system is read-only.
        """
        try:
            sync_names(self.files, self.path)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
                raise

    # Names.

    def path_of(self, number: int) -> str:
        """Return the path of segment *number*."""
        return segment_path(self.path, number)

    @property
    def closed_path(self) -> str:
        """Return the path of `CLOSED`, which states where the log ended when it was closed."""
        return f"{self.path}/{CLOSED_NAME}"

    # Which files exist.

    def list(self) -> Listing:
        """List the log's files. The directory must exist; it may be empty."""
        names = self.files.list_names(self.path)
        others = (name for name in names if name != CLOSED_NAME and segment_number(name) is None)
        return Listing(tuple(list_segments(names)), CLOSED_NAME in names, tuple(sorted(others)))

    def list_log(self) -> Listing:
        """List the log's files.

        Raises:
            FileNotFoundError: There is no log.
            CorruptionError: Only `CLOSED` or `LOCK` is left of a log.
        """
        listing = self.list()
        self.check_log(listing)
        return listing

    def check_log(self, listing: Listing) -> None:
        """Raise the errors of `list_log` unless *listing* has segments."""
        if not listing.segments and listing.has_closed:
            raise CorruptionError(CLOSED_NAME, None, "a log was closed here, but all its segments are missing")
        if not listing.segments:
            self.check_nothing_was_lost(listing)
            raise self.no_log()

    def check_nothing_was_lost(self, listing: Listing) -> None:
        """Raise CorruptionError if *listing* is empty although the directory has held a log."""
        lock = f"{self.path}/{LOCK_NAME}"
        # Listed again: a writer that has just begun the log made its segment before the mark.
        if listing.is_empty and has_mark(self.files, lock) and self.list().is_empty:
            held = (
                f"{self.path!r} held a log, and all its segments are missing, as in a copy that was made file by file"
            )
            raise CorruptionError(
                LOCK_NAME, None, f"{held}; restore it from a snapshot, or delete LOCK to begin a new log"
            )

    def no_log(self) -> FileNotFoundError:
        """Return the error for a directory without a log."""
        return FileNotFoundError(errno.ENOENT, "there is no log in this directory", self.path)

    def removed(self, number: int) -> FileNotFoundError:
        """Return the error for a segment that the writer removed while it was being read."""
        return FileNotFoundError(errno.ENOENT, "the segment was removed while it was read", self.path_of(number))

    def read_while_it_moves(
        self, read: Callable[[Listing], Found], is_settled: Callable[[Found], bool] = lambda found: True
    ) -> Found:
        """Call *read* with a listing and return its result, without the lock, while a writer may change the segments.

        A missing file, damage, or a result that is not *is_settled* counts only if the files are unchanged afterwards.
        Otherwise the log is listed and read again, up to `ATTEMPTS_MAX` times.

        Args:
            read: Reads the files that the listing names.
            is_settled: Returns False for a result that a changing log may explain, such as damage that it reports.

        Returns:
            What *read* returned last.

        Raises:
            FileNotFoundError: There is no log, or *read* missed a file although nothing changed.
            CorruptionError: *read* found damage although nothing changed, or only `CLOSED` is left of a log.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            listing = self.list()
            is_last_attempt = attempt == ATTEMPTS_MAX
            try:
                self.check_log(listing)
                found = read(listing)
            except (FileNotFoundError, CorruptionError):
                if is_last_attempt or self.list() == listing:
                    raise
                continue
            if is_settled(found) or is_last_attempt or self.list() == listing:
                return found
        raise AssertionError("the last attempt returns or raises")

    # What they contain.

    def open(self, number: int) -> int:
        """Open segment *number* for reading; the caller must close the handle.

        Raises FileNotFoundError if there is none, OSError if a directory or a link has its name.
        """
        path = self.path_of(number)
        try:
            return self.files.open(path, write=False)
        except IsADirectoryError:
            raise IsADirectoryError(errno.EISDIR, "a directory has the name of a segment; move it away", path) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            reason = (
                "a symbolic link has the name of a segment; put the file itself in its place, or move the link away"
            )
            raise OSError(errno.ELOOP, reason, path) from None

    @contextmanager
    def opened(self, number: int) -> Iterator[int]:
        """Open segment *number* for reading; the context manager closes it, and names it in an OSError."""
        handle = self.open(number)
        try:
            with naming(self.path_of(number)):
                yield handle
        finally:
            self.files.close(handle)

    def header(self, handle: int, number: int) -> SegmentHeader:
        """Read the header of segment *number* through the open *handle*.

        Raises:
            HeaderError: It is damaged, or states another number.
        """
        header = decode_header(read_exact(self.files, handle, HEADER_BYTES, 0))
        if header.segment != number:
            raise HeaderError(f"the file holds segment {header.segment}")
        return header

    def header_of(self, number: int) -> SegmentHeader:
        """Read the header of segment *number*, with the errors of `open` and `header`."""
        with self.opened(number) as handle:
            return self.header(handle, number)

    def was_removed(self, number: int) -> bool:
        """Return whether the writer removed segment *number*, or made its file another segment, since it was opened.

        Call it after the last byte was read. A file loses its name first: while it has it, all bytes are its own.
        """
        try:
            self.files.close(self.open(number))
        except FileNotFoundError:
            return True
        return False

    def was_rewritten(self, handle: int, number: int, size: int) -> bool:
        """Return whether the file of segment *number*, open as *handle*, is another segment or shorter than *size*.

        A segment that only lost its name still holds its bytes.
        """
        self.files.drop_cache(handle)
        try:
            header = decode_header(read_exact(self.files, handle, HEADER_BYTES, 0))
        except HeaderError:
            return self.files.size(handle) < size
        return header.segment != number or self.files.size(handle) < size

    def space(self) -> tuple[int, int]:
        """Return the size of the file system and what is free of it; see `FileSystem.space_of`."""
        handle = self.files.open_directory(self.path)
        try:
            return self.files.space_of(handle)
        finally:
            self.files.close(handle)

    def pieces(self, handle: int, offset: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of an open segment in whole blocks, from the block of *offset* up to *stop*."""
        return read_pieces(self.files, handle, offset, stop)

    def closed(self) -> Closed | None:
        """Read `CLOSED`. Returns None if the log was not closed; raises HeaderError if the file is damaged."""
        try:
            handle = self.files.open(self.closed_path, write=False)
        except FileNotFoundError:
            return None
        try:
            with naming(self.closed_path):
                return decode_closed(read_exact(self.files, handle, CLOSED_BYTES + 1, 0))
        finally:
            self.files.close(handle)


# Any directory or file.


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Name *path* in an OSError of a call on an open file, which names none: "No space left on device"."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise


def make_directories(files: FileSystem, path: str) -> None:
    """Create the directory *path* and its missing parents, each durable in its own parent (see also `sync_names`)."""
    try:
        files.make_directory(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directories(files, os.path.dirname(path))
        with suppress(FileExistsError):  # another process was faster
            files.make_directory(path)
    sync_parent(files, path)


def sync_names(files: FileSystem, path: str) -> None:
    """Wait until the name of the directory *path*, which is absolute, and those of its parents are on the medium.

    The process that created or renamed one of them may have died before it was. An error is raised only for the name of
    *path* itself: the directories above its parent may belong to another user, or to another disk.
    """
    sync_parent(files, path)
    for above in PurePath(path).parents[1:]:
        with suppress(OSError):
            sync_directory(files, str(above))


def sync_parent(files: FileSystem, path: str) -> None:
    """Wait until the name of the directory *path* is on the medium."""
    sync_directory(files, os.path.dirname(path) or "/")


def sync_directory(files: FileSystem, path: str) -> None:
    """Wait until the entries of the directory *path* are on the medium."""
    handle = files.open_directory(path)
    try:
        files.sync_directory(handle)
    finally:
        files.close(handle)
