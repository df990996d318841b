"""Recreate queues position by position: the calls to make, and a new log that exists whole or not at all.

A log is built in `NAME.partial`, next to its final name. It is synced by closing it, and then renamed, so an
interrupted import or repair leaves no incomplete log under the final name. Only this module opens a log for writing, so
only this module needs asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.new_directory import free_names, rename_durably
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.options import GIB, Limits, PersistPolicy
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem

QUEUES_AT_ONCE = 1_000
"""Queues are created in groups of this size, with one sync for each group."""

BUILD_LIMITS = Limits(
    memory_bytes=1 << 62,
    disk_bytes=1 << 62,
    pending_bytes=4 * GIB,
    record_bytes=2 * GIB - 1,
    name_bytes=65_535,
    queues=1 << 62,
)
"""High enough that everything in the old log fits into the new one."""


class Truncate(NamedTuple):
    """Truncate up to and including *position*."""

    position: int


class QueueCopy(NamedTuple):
    """A queue to create: its name, its positions, and its retained runs, ascending."""

    name: str
    first_position: int
    next_position: int
    runs: Iterable[Run]


def calls(queue: QueueCopy) -> Iterator[Truncate | Run]:
    """Yield the calls that give a new, empty queue the positions and records of *queue*.

    Raises:
        ValueError: Its positions are outside this package's range, or its last records are missing.
    """
    if queue.next_position > POSITION_MAX + 1:
        raise ValueError(
            f"queue {queue.name!r}: its next position is {queue.next_position}, but positions end at {POSITION_MAX}"
        )
    if queue.first_position:
        yield Truncate(queue.first_position - 1)
    reached = queue.first_position
    for run in queue.runs:
        yield run
        reached = run.next_position
    if reached < queue.next_position:
        raise ValueError(
            f"queue {queue.name!r}: its last records, up to position {queue.next_position - 1}, are missing"
        )


async def copy_queues(log: MultiRecordLog, queues: Iterable[QueueCopy]) -> int:
    """Create *queues* in *log*; return how many records they hold."""
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
                    records += call.record_count
    return records


@asynccontextmanager
async def new_log(
    directory: str, segment_bytes: int = GIB, filesystem: FileSystem | None = None
) -> AsyncIterator[MultiRecordLog]:
    """Build a log that gets the name *directory* only when the block ends without an error.

    Raises:
        FileExistsError: *directory* exists.
    """
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
