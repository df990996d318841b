"""Making a queue anew, position by position: the calls for it, and a new log that is there whole or not at all.

A log is built beside its final name, in `NAME.partial`, synced by closing it, and renamed: an interrupted import or
repair leaves nothing that could be taken for the whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple

from mrecordlog_async.cli.exit_codes import UsageError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.options import GIB, Limits, PersistPolicy
from mrecordlog_async.storage.filesystem import FileSystem, OsFileSystem

PARTIAL_SUFFIX = ".partial"
QUEUES_AT_ONCE = 1_000
"""Queues are made together in groups of this size: one sync for all of them."""

BUILD_LIMITS = Limits(
    memory_bytes=1 << 62,
    disk_bytes=1 << 62,
    pending_bytes=4 * GIB,
    record_bytes=2 * GIB - 1,
    name_bytes=65_535,
    queues=1 << 62,
)
"""What was in a log goes into the new one, whatever its size."""


class Truncate(NamedTuple):
    """Truncate up to and including *position*."""

    position: int


class QueueCopy(NamedTuple):
    """A queue to be made: its name, its positions, and the runs it retains, ascending."""

    name: str
    start: int
    next: int
    runs: Iterable[Run]


def calls(queue: QueueCopy) -> Iterator[Truncate | Run]:
    """Yield what brings a new, empty queue to the positions and records of *queue*.

    ValueError where its positions lie outside this package's range.
    """
    if queue.next > POSITION_MAX + 1:
        raise ValueError(
            f"queue {queue.name!r}: its next position is {queue.next}, but positions here end at {POSITION_MAX}"
        )
    if queue.start:
        yield Truncate(queue.start - 1)
    behind = queue.start
    for run in queue.runs:
        yield run
        behind = run.next_position
    if behind < queue.next:
        raise ValueError(f"queue {queue.name!r}: its last records, up to position {queue.next - 1}, are not there")


async def copy_queues(log: MultiRecordLog, queues: Iterable[QueueCopy]) -> int:
    """Make *queues* in *log*; return how many records they hold."""
    records = 0
    rest = iter(queues)
    while group := list(islice(rest, QUEUES_AT_ONCE)):
        await asyncio.gather(*(log.create_queue(queue.name) for queue in group))
        for queue in group:
            for call in calls(queue):
                if isinstance(call, Truncate):
                    await log.truncate(queue.name, call.position)
                else:
                    await log.append_records(queue.name, call.first_position, call.payloads())
                    records += call.records
    return records


@asynccontextmanager
async def new_log(
    directory: str, segment_bytes: int = GIB, filesystem: FileSystem | None = None
) -> AsyncIterator[MultiRecordLog]:
    """Build a log that takes its name *directory* only when the block ends well; UsageError if the name is taken."""
    files = filesystem or OsFileSystem()
    directory, partial = free_names(files, directory)
    async with MultiRecordLog.open(
        partial,
        persist_policy=PersistPolicy.never(),
        limits=BUILD_LIMITS,
        segment_bytes=segment_bytes,
        filesystem=files,
    ) as log:
        yield log
    rename_durably(files, partial, directory)


def free_names(files: FileSystem, directory: str) -> tuple[str, str]:
    """Return the absolute name of a directory to be made and the one it is built under; UsageError if one is taken."""
    directory = os.path.abspath(directory)
    partial = directory + PARTIAL_SUFFIX
    if _names(files, directory):
        raise UsageError(f"{directory} is not empty: name a directory that does not exist yet")
    parent, name = os.path.split(partial)
    if name in _names(files, parent):
        raise UsageError(f"{partial} is there, left by a run that was interrupted: remove it and try again")
    return directory, partial


def rename_durably(files: FileSystem, partial: str, directory: str) -> None:
    """Give a complete directory its name, and see to it that both outlast a power cut."""
    _sync_directory(files, partial)
    files.rename(partial, directory)
    _sync_directory(files, os.path.dirname(directory))


def remove_directory(files: FileSystem, directory: str) -> None:
    """Remove a directory of files, and the files."""
    for name in files.names(directory):
        files.unlink(f"{directory}/{name}")
    files.remove_directory(directory)


def _names(files: FileSystem, directory: str) -> list[str]:
    try:
        return files.names(directory)
    except FileNotFoundError:
        return []


def _sync_directory(files: FileSystem, path: str) -> None:
    handle = files.open_directory(path)
    try:
        files.sync_directory(handle)
    finally:
        files.close(handle)
