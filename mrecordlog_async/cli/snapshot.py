"""Copy a log as it is now, while it is in use: a backup that holds one consistent prefix.

Every call that was acknowledged before the snapshot began is in it whole; a call that came later is in it whole or not
at all. Finished segments never change, so they are hard links, which cost neither time nor space (copies on another
file system); only the last one is copied, up to its last whole batch. The service is not asked and does not wait.

A hard link outlasts the writer's removing the segment, not damage to its bytes: the two names share them. --copy makes
copies of everything instead, as does a target on another file system.

The snapshot is a log: open it, verify it, dump it. It has the original's identity, so keep it as a backup instead of
writing to both.

  mrecordlog snapshot ./wal ./backups/2026-01-31
  mrecordlog snapshot ./wal /mnt/backup/2026-01-31 --copy
"""

from __future__ import annotations

import argparse
import errno
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mrecordlog_async.cli.exits import FINE
from mrecordlog_async.cli.moves import free_names, remove_directory, rename_durably
from mrecordlog_async.cli.show import plural, size
from mrecordlog_async.engine.gap import Gap
from mrecordlog_async.engine.layout import Layout, read_layout
from mrecordlog_async.engine.opening import _make_directory as make_directory
from mrecordlog_async.engine.walk import SegmentWalk
from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import Closed, encode_closed
from mrecordlog_async.format.parse import Batch
from mrecordlog_async.storage.filesystem import Buffer, FileSystem, OsFileSystem, read_exact, write_all
from mrecordlog_async.storage.segment import CLOSED_NAME, list_segments, segment_name

ATTEMPTS_MAX = 20
"""How often it begins again when the writer removed a segment meanwhile."""
COPY_BYTES = 8 << 20


class Prefix(NamedTuple):
    """What a snapshot holds: finished segments, and the last one up to *end*."""

    finished: list[int]
    closed: Closed


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
    """Copy the log in *directory* to *target*, which gets its name when it is complete and durable."""
    files = filesystem or OsFileSystem()
    target, partial = free_names(files, target)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        make_directory(files, partial)
        try:
            copied = _copy(files, directory, _prefix(files, directory), partial, link)
            break
        except FileNotFoundError:
            remove_directory(files, partial)
            if attempt == ATTEMPTS_MAX:
                raise
        except BaseException:
            remove_directory(files, partial)
            raise
    rename_durably(files, partial, target)
    return copied


def _prefix(files: FileSystem, directory: str) -> Prefix:
    """Find where the log ends now, by its last segment alone."""
    numbers = list_segments(files.names(directory))
    if not numbers:
        raise CorruptionError(directory, None, "there is no segment in this directory")
    layout = read_layout(files, directory, numbers)
    last = numbers[-1]
    walk = layout.walk(last)
    last_batch = _last_batch(walk)
    _check_finished(layout, last)
    finished = list(range(layout.oldest, last))
    return Prefix(finished, Closed(layout.log_id, last, walk.end, last_batch))


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


def _check_finished(layout: Layout, last: int) -> None:
    for number in range(layout.oldest, last):
        if number not in layout.numbers:
            raise FileNotFoundError(errno.ENOENT, "the segment is missing", segment_name(number))


def _copy(files: FileSystem, directory: str, prefix: Prefix, target: str, link: bool) -> Copied:
    linked = copied = 0
    for number in prefix.finished:
        source, copy = f"{directory}/{segment_name(number)}", f"{target}/{segment_name(number)}"
        if link and _link(files, source, copy):
            linked += _size(files, copy)
        else:
            copied += _copy_head(files, source, copy, _size(files, source))
    name = segment_name(prefix.closed.segment)
    copied += _copy_head(files, f"{directory}/{name}", f"{target}/{name}", prefix.closed.end)
    _write_durably(files, f"{target}/{CLOSED_NAME}", [encode_closed(prefix.closed)])
    return Copied(len(prefix.finished) + 1, linked, copied)


def _link(files: FileSystem, source: str, target: str) -> bool:
    try:
        files.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            return False
        raise
    return True


def _size(files: FileSystem, path: str) -> int:
    handle = files.open(path, write=False)
    try:
        return files.size(handle)
    finally:
        files.close(handle)


def _copy_head(files: FileSystem, source: str, target: str, length: int) -> int:
    """Copy the first *length* bytes and sync them."""
    reader = files.open(source, write=False)
    try:
        _write_durably(files, target, _pieces(files, reader, source, length))
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
