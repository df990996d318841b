"""Recreate queues position by position: the calls to make, and a new log that exists whole or not at all.

A log is built in `NAME.partial`, as every new directory, and synced by closing it. Its records are not kept in memory.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from mrecordlog_async.errors import LogFullError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.new_directory import new_directory
from mrecordlog_async.maintenance.placed_log import PlacedLog, open_placed_log
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.names import check_consumer_name, check_name
from mrecordlog_async.options import GIB, MIB, Limits, PersistPolicy
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem

QUEUES_AT_ONCE = 1_000
"""Queues are created in groups of this size, with one sync for each group."""

CALLS_BYTES = 4 * MIB
"""So many bytes are appended at once, and kept in memory until then."""

RECORD_WEIGHT = 64
CALL_WEIGHT = 2_048
"""What a record and an append count for in `CALLS_BYTES`, in addition to payloads: they are objects until written."""

BUILD_LIMITS = Limits(
    memory_bytes=1 << 62,
    disk_bytes=1 << 62,
    pending_bytes=4 * GIB,
    record_bytes=2 * GIB - 1,
    name_bytes=65_535,
    queues=1 << 62,
    consumers=1 << 62,
)
"""High enough that everything in the old log fits into the new one."""


class RebuiltLog(PlacedLog):
    """A new log that takes the names of an old one, also those that no other log would create."""

    def _check_name(self, queue: object) -> None:
        check_name(queue)

    def _check_consumer_name(self, queue: str, consumer: object) -> None:
        check_consumer_name(consumer)


class Truncate(NamedTuple):
    """Truncate up to and including *position*."""

    position: int


class QueueShape(NamedTuple):
    """A queue to create: its name, and its positions once all of its records are in it."""

    name: str
    first_position: int
    next_position: int

    def check(self) -> None:
        """Raise ValueError if the positions are outside this package's range."""
        if self.next_position > POSITION_MAX + 1:
            raise ValueError(
                f"queue {self.name!r}: its next position is {self.next_position}, but positions end at {POSITION_MAX}"
            )

    def check_written(self, next_position: int) -> None:
        """Raise ValueError unless a queue that was written up to *next_position* is complete."""
        if next_position != self.next_position:
            raise ValueError(
                f"queue {self.name!r}: its last records, up to position {self.next_position - 1}, are missing"
            )


class QueueCopy(NamedTuple):
    """A queue to recreate: its name, its positions, and its retained runs, ascending."""

    name: str
    first_position: int
    next_position: int
    runs: Iterable[Run]


def calls(queue: QueueCopy) -> Iterator[Truncate | Run]:
    """Yield the calls that give a new, empty queue the positions and records of *queue*.

    Raises ValueError if its positions are outside this package's range.
    """
    QueueShape(queue.name, queue.first_position, queue.next_position).check()
    if queue.first_position:
        yield Truncate(queue.first_position - 1)
    reached = queue.first_position
    for run in queue.runs:
        yield run
        reached = run.next_position
    if reached < queue.next_position:  # its last records were truncated while it was read, so all of them were
        yield Truncate(queue.next_position - 1)


async def write_queues(log: MultiRecordLog, queues: Sequence[QueueShape], runs: Iterable[tuple[str, Run]]) -> int:
    """Create *queues* in *log* and append *runs*, each with its queue's name; return how many records they hold.

    The runs of a queue ascend; those of different queues come in any order, such as the order of an old log.

    Raises:
        ValueError: The positions of a queue are outside this package's range, or its last records are missing.
    """
    rest = iter(queues)
    while group := list(islice(rest, QUEUES_AT_ONCE)):
        for queue in group:
            queue.check()
        await asyncio.gather(*(log.create_queue(queue.name) for queue in group))
        await asyncio.gather(
            *(log.truncate(queue.name, queue.first_position - 1) for queue in group if queue.first_position)
        )
    records = await _append_all(log, runs)
    for queue in queues:
        queue.check_written(log.next_position(queue.name))
    return records


async def _append_all(log: MultiRecordLog, runs: Iterable[tuple[str, Run]]) -> int:
    """Append *runs* in order, those of one queue that follow each other in one call; return the number of records."""
    records = 0
    for calls in _calls(runs):
        await asyncio.gather(*(log.append_records(call.queue, call.first_position, call.payloads) for call in calls))
        records += sum(len(call.payloads) for call in calls)
    return records


@dataclass(slots=True)
class _AppendCall:
    """An append of consecutive records that is still growing."""

    queue: str
    first_position: int
    payloads: list[bytes]


def _calls(runs: Iterable[tuple[str, Run]]) -> Iterator[list[_AppendCall]]:
    """Yield lists of appends of about `CALLS_BYTES` that may be made at once."""
    calls: list[_AppendCall] = []
    growing: dict[str, _AppendCall] = {}
    size = 0
    for queue, run in runs:
        call = growing.get(queue)
        if call is None or call.first_position + len(call.payloads) != run.first_position:
            call = growing[queue] = _AppendCall(queue, run.first_position, [])
            calls.append(call)
            size += CALL_WEIGHT
        call.payloads += run.payloads()
        size += len(run.payload) + RECORD_WEIGHT * run.record_count
        if size >= CALLS_BYTES:
            yield calls
            calls, size = [], 0
            growing.clear()
    if calls:
        yield calls


@asynccontextmanager
async def new_log(
    directory: str, segment_bytes: int = GIB, filesystem: FileSystem | None = None, *, like: str | None = None
) -> AsyncIterator[PlacedLog]:
    """Build a log that gets the name *directory* only when the block ends without an error.

    like: if root builds it, it belongs to the owner of this path; None for the owner of its parent.

    Raises:
        FileExistsError: *directory* exists, or is being built.
        FileNotFoundError: The log's directory was renamed, replaced or removed while it was built.
        OSError: The disk is full, or cannot be written.
    """
    files = filesystem or OsFileSystem()
    with new_directory(files, directory, like=like, takes_lock=False) as partial, _naming_full_disk(directory):
        async with await open_placed_log(
            partial,
            create=True,
            policy=PersistPolicy.never(),
            limits=BUILD_LIMITS,
            segment_bytes=segment_bytes,
            kind=RebuiltLog,
            filesystem=files,
        ) as log:
            yield log


@contextmanager
def _naming_full_disk(directory: str) -> Iterator[None]:
    """Say what a full disk means for a log in *directory* that nobody uses yet: there is nothing to truncate."""
    try:
        yield
    except LogFullError as error:
        if error.resource != "space":
            raise
        reason = "the disk is full; free disk space and retry"
        raise OSError(errno.ENOSPC, reason, directory) from error
