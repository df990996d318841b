"""Copy a log as it is now, while it is in use: a backup that holds one consistent prefix.

Every call that was acknowledged before the snapshot began is in it whole; a call that came later is in it whole or not
at all. Finished segments never change, so they are hard links, which cost neither time nor space (copies on another
file system); only the last one is copied, up to its last whole batch. The service is not asked and does not wait.

A log never writes to a file with a second name, nor shortens it. So the log and its snapshot leave each other alone,
whichever of them goes on; only damage on the disk itself hits both. --copy makes copies of everything instead, as does
a target on another file system.

The snapshot is a log: open it, verify it, dump it. It has the original's identity, so keep it as a backup instead of
writing to both.

  mrecordlog snapshot ./wal ./backups/2026-01-31
  mrecordlog snapshot ./wal /mnt/backup/2026-01-31 --copy
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.output import plural, size
from mrecordlog_async.cli.rebuild import free_names, remove_directory, rename_durably
from mrecordlog_async.engine.open import _make_directory as make_directory
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import Closed, encode_closed
from mrecordlog_async.format.parse import Batch
from mrecordlog_async.maintenance.damage import Gap
from mrecordlog_async.maintenance.layout import read_layout
from mrecordlog_async.maintenance.scan import SegmentWalk
from mrecordlog_async.storage.filesystem import Buffer, FileSystem, OsFileSystem, read_exact, write_all
from mrecordlog_async.storage.segment import CLOSED_NAME, TEMPORARY_SUFFIX, list_segments, segment_name

ATTEMPTS_MAX = 20
"""How often it lists the segments again when the writer removed one meanwhile. What it has by then it keeps."""
COPY_BYTES = 8 << 20

CANNOT_LINK = frozenset((errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EMLINK))
"""Another file system, or one that does not link, or not this file: it is copied."""


class Copied(NamedTuple):
    """How a snapshot was made."""

    segments: int
    linked_bytes: int
    copied_bytes: int


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "snapshot",
        help="copy a log while it is in use",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", help="the log's directory; it is only read")
    parser.add_argument("target", help="directory to make")
    parser.add_argument("--copy", action="store_true", help="copy finished segments too instead of linking them")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Take the snapshot."""
    copied = snapshot(arguments.directory.rstrip("/"), arguments.target, link=not arguments.copy)
    if arguments.json:
        print(json.dumps({"target": arguments.target, **copied._asdict()}))
    else:
        print(
            f"snapshot of {plural(copied.segments, 'segment')} in {arguments.target}: "
            f"{size(copied.linked_bytes)} linked, {size(copied.copied_bytes)} copied"
        )
    return FINE


def snapshot(directory: str, target: str, *, link: bool = True, filesystem: FileSystem | None = None) -> Copied:
    """Copy the log in *directory* to *target*, which gets its name when it is complete and durable.

    Raises UsageError if *target* is taken, FileNotFoundError if there is no log, CorruptionError if its end is damaged.
    """
    files = filesystem or OsFileSystem()
    target, partial = free_names(files, target)
    _list(files, directory)
    make_directory(files, partial)
    try:
        copied = _Copier(files, directory, partial, link).copy()
    except BaseException:
        remove_directory(files, partial)
        raise
    rename_durably(files, partial, target)
    return copied


class _Copier:
    """Gathers one prefix of a log in *target*.

    1. Give every finished segment a second name there: the writer may then remove it, and leaves its bytes alone.
    2. Read the last segment: it says where the log ends, and which segments are live there. Copy it.
    3. Keep those that are live: as links, or as copies made from the links. Where no link can be made, a segment may be
       gone before it is copied. Then begin again with the log's new end; what is copied is not copied again.
    """

    def __init__(self, files: FileSystem, directory: str, target: str, link: bool) -> None:
        self._files = files
        self._directory = directory
        self._target = target
        self._link = link
        self._can_link = True
        self._linked: set[int] = set()
        self._copied: dict[int, int] = {}  # bytes by finished segment
        self._last = -1
        self._last_bytes = 0

    def copy(self) -> Copied:
        """Return what was done once the target holds a whole prefix."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            numbers = _list(self._files, self._directory)
            try:
                self._forget_last()
                self._hold(numbers[:-1])
                closed, live = self._copy_last(numbers[-1])
                for number in live:
                    self._take(number)
                return self._finish(closed, live)
            except (FileNotFoundError, CorruptionError):
                if attempt == ATTEMPTS_MAX or _list(self._files, self._directory) == numbers:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _forget_last(self) -> None:
        """Remove the copy of what was the last segment in an earlier attempt: it is not whole."""
        if self._last >= 0:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(f"{self._target}/{segment_name(self._last)}")
            self._last = -1

    def _hold(self, numbers: list[int]) -> None:
        """Link the finished segments, at once and before anything is read."""
        for number in numbers:
            if self._can_link and number not in self._linked and number not in self._copied:
                try:
                    self._files.link(self._source(number), self._link_name(number))
                    self._linked.add(number)
                except FileNotFoundError:
                    continue  # nothing in it is live any more, as the log's end will tell
                except OSError as error:
                    if error.errno not in CANNOT_LINK:
                        raise
                    self._can_link = False

    def _copy_last(self, last: int) -> tuple[Closed, range]:
        """Copy the last segment up to its last whole batch; return that end, and the live segments before it."""
        layout = read_layout(self._files, self._directory, [last])
        walk = layout.walk(last)
        last_batch = _last_batch(walk)
        copy = f"{self._target}/{segment_name(last)}"
        self._last = last
        self._last_bytes = _copy_head(self._files, self._source(last), copy, walk.end)
        return Closed(layout.log_id, last, walk.end, last_batch), range(layout.oldest, last)

    def _take(self, number: int) -> None:
        """Have a finished segment under its name."""
        if number in self._copied or (self._link and number in self._linked):
            return
        source = self._link_name(number) if number in self._linked else self._source(number)
        self._copied[number] = _copy_head(self._files, source, f"{self._target}/{segment_name(number)}", None)

    def _finish(self, closed: Closed, live: range) -> Copied:
        """Remove what is not part of the prefix, and note where it ends."""
        kept = {*live, closed.segment}
        for number in self._linked:
            if not self._link or number not in kept:
                self._files.unlink(self._link_name(number))
        for number in self._copied.keys() - kept:
            self._files.unlink(f"{self._target}/{segment_name(number)}")
        _write_durably(self._files, f"{self._target}/{CLOSED_NAME}", [encode_closed(closed)])
        linked = sum(_size(self._files, self._link_name(number)) for number in live if number not in self._copied)
        copied = sum(self._copied[number] for number in kept & self._copied.keys())
        return Copied(len(kept), linked, copied + self._last_bytes)

    def _source(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    def _link_name(self, number: int) -> str:
        """Return the name of a link: the segment's own, or a temporary one where a copy takes that."""
        return f"{self._target}/{segment_name(number)}{'' if self._link else TEMPORARY_SUFFIX}"


def _list(files: FileSystem, directory: str) -> list[int]:
    numbers = list_segments(files.names(directory))
    if not numbers:
        raise FileNotFoundError(errno.ENOENT, "there is no log in this directory", directory)
    return numbers


def _last_batch(walk: SegmentWalk) -> int:
    last_batch = -1
    for item in walk.items():
        if type(item) is Gap:
            raise CorruptionError(segment_name(walk.number), item.offset, f"{item.reason}; see `mrecordlog verify`")
        if type(item) is Batch:
            last_batch = item.commit.batch
    if last_batch < 0:
        assert walk.header is not None, "a damaged header is a gap"
        last_batch = walk.header.first_batch - 1
    return last_batch


def _size(files: FileSystem, path: str) -> int:
    handle = files.open(path, write=False)
    try:
        return files.size(handle)
    finally:
        files.close(handle)


def _copy_head(files: FileSystem, source: str, target: str, length: int | None) -> int:
    """Copy the first *length* bytes, None for all, and sync them; return how many.

    FileNotFoundError, and no copy, where *source* is removed: its space may be given back while it is read.
    """
    reader = files.open(source, write=False)
    try:
        length = files.size(reader) if length is None else length
        with contextlib.suppress(FileNotFoundError):
            files.unlink(target)  # of an earlier attempt
        try:
            _write_durably(files, target, _pieces(files, reader, source, length))
        except CorruptionError:
            if files.links(reader):
                raise
        if not files.links(reader):
            files.unlink(target)
            raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was copied", source)
    finally:
        files.close(reader)
    return length


def _pieces(files: FileSystem, reader: int, source: str, length: int) -> Iterator[Buffer]:
    at = 0
    while at < length:
        piece = read_exact(files, reader, min(length - at, COPY_BYTES), at)
        if not piece:
            raise CorruptionError(source.rpartition("/")[2], at, "the file became shorter")
        yield piece
        at += len(piece)


def _write_durably(files: FileSystem, path: str, pieces: Iterable[Buffer]) -> None:
    """Make a file of *pieces*, and wait until it is on the medium."""
    writer, at = files.create(path), 0
    try:
        for piece in pieces:
            write_all(files, writer, [piece], at)
            at += len(piece)
        files.sync(writer)
    finally:
        files.close(writer)
