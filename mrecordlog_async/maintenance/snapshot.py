"""Copy a log while it is in use: a backup that holds one consistent prefix of it.

1. Create a hard link to every finished segment in the target. The writer may then remove the segment, but does not
   change its bytes.
2. Read the last segment, which shows where the log ends and which segments are live there. Copy it.
3. Keep the live segments, as links or as copies made from the links. If links are impossible, a segment may be removed
   before it is copied. In that case start again with the log's new end; segments already copied are not copied again.
4. Write the end to `CLOSED`, sync everything, and give the target its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import Closed, encode_closed
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.maintenance.damage import DamagedRange
from mrecordlog_async.maintenance.headers import LogHeaders, read_headers
from mrecordlog_async.maintenance.new_directory import new_directory
from mrecordlog_async.maintenance.scan import SegmentScan
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.directory import Listing, LogDirectory, naming
from mrecordlog_async.storage.filesystem import Buffer, FileSystem, read_exact, write_all
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, segment_name
from mrecordlog_async.support.disk_errors import is_refusal

COPY_BYTES = 8 << 20
"""Files are copied in pieces of this size."""


class Snapshot(NamedTuple):
    """Report about a new snapshot: its segments, and the bytes that were linked and copied."""

    segments: int
    linked_bytes: int
    copied_bytes: int


def snapshot(
    directory: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    link: bool = True,
    check: bool = False,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> Snapshot:
    """Copy the log in *directory* to *target*, even while a service writes to it.

    The snapshot contains every call that was acknowledged before it began. A later call is in it whole or not at all.
    *target* gets its name when it is complete and durable. It is a log like any other, with the identity of the
    original. Blocks, but takes no lock, so the writer does not wait.

    Args:
        directory: the log's directory; it is only read.
        target: the directory to create; missing parents are created too.
        link: create hard links to finished segments, which never change, instead of copies. If a link is impossible,
            for example on another file system, the segment is copied.
        check: read every byte of the snapshot before it gets its name, as `verify` does. Otherwise only the last
            segment is read, and damage in the others is not noticed.
        on_progress: called with the bytes checked so far.
        filesystem: the disk to work on; the operating system's by default.

    Returns:
        How many segments the snapshot has, and how many bytes were linked and copied.

    Raises:
        FileExistsError: *target* is not empty, or `TARGET.partial` exists: a killed snapshot left it, or another
            process is writing it.
        FileNotFoundError: there is no log in *directory*.
        CorruptionError: the end of the log is damaged, a segment is missing, or with *check* any of it is damaged. The
            target is removed.
        OSError: the disk could not be read or written. The target is removed, unless that fails too.
    """
    source = LogDirectory.at(directory, filesystem)
    files = source.files
    source.list_log()
    with new_directory(files, target, like=source.path) as partial:
        copier = _Copier(source, LogDirectory(files, partial), link)
        made = copier.copy()
        if check:
            copier.check(on_progress)
    return made


class _Copier:
    """Gathers one prefix of *source* in *target*; see the steps above."""

    def __init__(self, source: LogDirectory, target: LogDirectory, link: bool) -> None:
        self._files = source.files
        self._source = source
        self._target = target
        self._link = link
        self._can_link = True
        self._linked: set[int] = set()
        self._copied: dict[int, int] = {}  # bytes by finished segment
        self._last = -1
        self._last_bytes = 0

    def copy(self) -> Snapshot:
        """Copy until the target holds a whole prefix; return what was done."""
        return self._source.read_while_it_moves(self._copy)

    def check(self, on_progress: Callable[[RecoveryProgress], None] | None) -> None:
        """Read every byte of the target. An error names a linked segment as in the source: the link is removed."""
        try:
            ReadOnlyLog.open(
                self._target.path, keep_records=False, on_progress=on_progress, filesystem=self._files
            ).close()
        except OSError as error:
            linked = {self._link_path(number): number for number in self._linked}
            if error.filename in linked:
                error.filename = self._source.path_of(linked[error.filename])
            raise

    def _copy(self, listing: Listing) -> Snapshot:
        self._remove_last()
        self._link_finished(listing.segments[:-1])
        closed, live = self._copy_last(listing)
        for number in live:
            self._take(number)
        return self._finish(closed, live)

    def _remove_last(self) -> None:
        """Remove an earlier attempt's copy of the segment that was the last one then: it is incomplete."""
        if self._last >= 0:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._target.path_of(self._last))
            self._last = -1

    def _link_finished(self, numbers: Iterable[int]) -> None:
        """Link the finished segments, at once and before anything is read."""
        for number in numbers:
            if self._can_link and number not in self._linked and number not in self._copied:
                try:
                    self._files.link(self._source.path_of(number), self._link_path(number))
                    self._linked.add(number)
                except FileNotFoundError:
                    continue  # it no longer holds live records, as the log's end will show
                except OSError as error:
                    # Another file system, one without links, or a file that must not be linked: it is copied.
                    if not is_refusal(error):
                        raise
                    self._can_link = False

    def _copy_last(self, listing: Listing) -> tuple[Closed, range]:
        """Copy the last segment up to its last whole batch; return that end, and the live segments before it."""
        last = listing.segments[-1]
        headers = read_headers(self._source, [last])
        live = range(headers.oldest, last)
        _check_nothing_is_missing(listing, headers, live)
        scan = headers.scan(last)
        last_batch = _last_batch(scan)
        self._last = last
        name = self._source.path_of(last)
        self._last_bytes = _copy_head(self._files, name, self._target.path_of(last), scan.end, name)
        return Closed(headers.log_id, last, scan.end, last_batch), live

    def _take(self, number: int) -> None:
        """Give a finished segment its name in the target."""
        if number in self._copied or (self._link and number in self._linked):
            return
        name = self._source.path_of(number)
        source = self._link_path(number) if number in self._linked else name
        self._copied[number] = _copy_head(self._files, source, self._target.path_of(number), None, name)

    def _finish(self, closed: Closed, live: range) -> Snapshot:
        """Remove what is not part of the prefix, and write where the prefix ends."""
        kept = {*live, closed.segment}
        for number in self._linked:
            if not self._link or number not in kept:
                self._files.unlink(self._link_path(number))
        for number in self._copied.keys() - kept:
            self._files.unlink(self._target.path_of(number))
        _write_durably(self._files, self._target.closed_path, [encode_closed(closed)])
        linked = sum(self._linked_bytes(number) for number in live if number not in self._copied)
        copied = sum(self._copied[number] for number in kept & self._copied.keys())
        return Snapshot(len(kept), linked, copied + self._last_bytes)

    def _linked_bytes(self, number: int) -> int:
        handle = _open(self._files, self._link_path(number), self._source.path_of(number))
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

    def _link_path(self, number: int) -> str:
        """Return the path of a link: the segment's name, or a temporary one if a copy will get that name."""
        return self._target.path_of(number) + ("" if self._link else TEMPORARY_SUFFIX)


def _check_nothing_is_missing(listing: Listing, headers: LogHeaders, live: range) -> None:
    """Raise CorruptionError if opening the log would, because its last segment or a live one is missing.

    The snapshot gets its own `CLOSED`, so nothing in it would show where the log ended.
    """
    last = listing.segments[-1]
    listing.check_last_is_here()
    if headers.damage:
        raise CorruptionError(headers.damage[0].segment, None, headers.damage[0].reason)
    if headers.stop > last + 1:
        closed_in = segment_name(headers.stop - 1)
        raise CorruptionError(closed_in, None, "the segment is missing, and the log was closed in it")
    present = frozenset(listing.segments)
    missing = next((number for number in live if number not in present), None)
    if missing is not None:
        raise CorruptionError(segment_name(missing), None, "the segment is missing, and it held live data")


def _last_batch(scan: SegmentScan) -> int:
    """Return the number of the segment's last batch. Raises CorruptionError if the segment is damaged."""
    last_batch = -1
    for item in scan.items():
        if type(item) is DamagedRange:
            raise CorruptionError(segment_name(scan.number), item.offset, f"{item.reason}; see `mrecordlog verify`")
        if type(item) is ParsedBatch:
            last_batch = item.commit.batch
    if last_batch < 0:
        assert scan.header is not None, "a damaged header is a damaged range"
        last_batch = scan.header.first_batch - 1
    return last_batch


# Files.


def _open(files: FileSystem, path: str, name: str) -> int:
    """Open a file for reading; an error calls it *name*, because *path* may be a link that is removed again."""
    try:
        return files.open(path, write=False)
    except OSError as error:
        error.filename = name
        raise


def _copy_head(files: FileSystem, source: str, target: str, length: int | None, name: str) -> int:
    """Copy the first *length* bytes, None for all, and sync them; return how many.

    Args:
        files: The disk.
        source: The file to copy, which may be a link that is removed again.
        target: The file to create.
        length: How many bytes.
        name: What an error calls the source.

    Raises:
        FileNotFoundError: *source* was removed; its space may be freed, or hold another segment. No copy is left.
    """
    reader = _open(files, source, name)
    try:
        length = files.size(reader) if length is None else length
        with contextlib.suppress(FileNotFoundError):
            files.unlink(target)  # left by an earlier attempt
        try:
            _write_durably(files, target, _pieces(files, reader, name, length))
        except CorruptionError:
            if not _was_removed(files, source):
                raise
        if _was_removed(files, source):
            files.unlink(target)
            raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was copied", source)
    finally:
        files.close(reader)
    return length


def _was_removed(files: FileSystem, path: str) -> bool:
    """Return whether the writer removed the file. It may use it for another segment only after that."""
    try:
        files.close(files.open(path, write=False))
    except FileNotFoundError:
        return True
    return False


def _pieces(files: FileSystem, reader: int, name: str, length: int) -> Iterator[Buffer]:
    at = 0
    while at < length:
        with naming(name):
            piece = read_exact(files, reader, min(length - at, COPY_BYTES), at)
        if not piece:
            raise CorruptionError(name.rpartition("/")[2], at, "the file became shorter")
        yield piece
        at += len(piece)


def _write_durably(files: FileSystem, path: str, pieces: Iterable[Buffer]) -> None:
    """Create a file from *pieces*, and wait until it is on the disk."""
    writer, at = files.create(path), 0
    try:
        for piece in pieces:
            write_all(files, writer, [piece], at)
            at += len(piece)
        files.sync(writer)
    finally:
        files.close(writer)
