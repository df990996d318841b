"""The one way to copy queues to another log: first their positions, then their records, then their settings.

The order of the steps decides what they may refuse or remove:

1. Queues, each truncated to its first position: `write_queues`.
2. Records. A queue's limits would refuse some of them, its seal all of them.
3. Options, before the consumers: to keep records until they are acknowledged removes none while there is no consumer.
4. Consumers, each at its position, moved into what the queue retains. The slowest comes first: to move one, such as a
   rule has made, removes what all those that exist by then have acknowledged. Position and owner are stored in one
   record, so no crash leaves a consumer of a new queue without its owner. Its epoch is new: nobody holds it.
5. The seal.
6. Rules, when every queue has its consumers: a rule gives one only to queues that lack it. So a queue that matches has
   the consumer afterwards, from its first record on, even where it was deleted for this queue alone.

Times of records and the last appends of producers begin again in the other log. A new log (`new_log`) is built in
`NAME.partial`, as every new directory, and synced by closing it. Its records are not kept in memory.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from mrecordlog_async.engine.running import EngineOptions
from mrecordlog_async.errors import (
    ConsumerOwnedError,
    LogFullError,
    PositionAheadError,
    PositionTruncatedError,
    QueueSealedError,
    RecordTooLargeError,
)
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.changing import open_to_change
from mrecordlog_async.maintenance.new_directory import new_directory
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.options import GIB, MIB, Limits, PersistPolicy, QueueOptions
from mrecordlog_async.patterns import is_pattern
from mrecordlog_async.record_log import RecordLog
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem

QUEUES_AT_ONCE = 1_000
"""Queues are created in groups of this size, with one sync for each group."""

CALLS_BYTES = 4 * MIB
"""This many bytes are appended at once, and kept in memory until then."""

RECORD_WEIGHT = 64
CALL_WEIGHT = 2_048
"""Bytes that a record and an append count for in `CALLS_BYTES`, besides payloads: they are objects until written."""

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


async def write_queues(log: MultiRecordLog, queues: Sequence[QueueShape], runs: Iterable[tuple[str, Run]]) -> int:
    """Create *queues* in *log* and append *runs*, each with its queue's name; return how many records they hold.

    The runs of a queue ascend; those of different queues come in any order, such as the order of an old log.

    Raises:
        ValueError: The positions of a queue are outside this package's range, or its last records are missing.
    """
    rest = iter(queues)
    while group := list(islice(rest, QUEUES_AT_ONCE)):
        # All of a group before its first call: what is outside the range must not leave half of a queue.
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
) -> AsyncIterator[MultiRecordLog]:
    """Build a log that gets the name *directory* only when the block ends without an error.

    like: if root builds it, it belongs to the owner of this path; None for the owner of its parent.

    Raises:
        FileExistsError: *directory* exists, or is being built.
        FileNotFoundError: The log's directory was renamed, replaced or removed while it was built.
        OSError: The disk is full, or cannot be written.
    """
    files = filesystem or OsFileSystem()
    with new_directory(files, directory, like=like, takes_lock=False) as partial, _naming_full_disk(directory):
        # It takes the names of an old log, even those that no other log would create.
        options = EngineOptions(PersistPolicy.never(), BUILD_LIMITS, any_name=True)
        built = await open_to_change(partial, options, create=True, segment_bytes=segment_bytes, filesystem=files)
        async with built.log as log:
            yield log


@contextmanager
def _naming_full_disk(directory: str) -> Iterator[None]:
    """Say what a full disk means for a log in *directory* that nobody uses yet: there is nothing to truncate."""
    try:
        yield
    except (LogFullError, RecordTooLargeError) as error:
        if (error.resource if isinstance(error, LogFullError) else error.limit) not in ("space", "the file system"):
            raise
        full = "has no inodes left (see `df -i`)" if getattr(error, "unit", "") == "inodes" else "is full"
        reason = f"the disk {full}; free disk space and retry"
        raise OSError(errno.ENOSPC, reason, directory) from error


SETTINGS_AT_ONCE = 100
"""The settings of this many queues are made durable together."""


class Carried(NamedTuple):
    """A queue and what to set for it. created: see `carry_settings`."""

    queue: str
    settings: QueueSettings
    created: bool = True


async def carry_settings(log: RecordLog, queue: str, settings: QueueSettings, created: bool = True) -> None:
    """Set the options, the consumers and the seal of *queue*, which has its records.

    Args:
        log: The log that gets them, or its client.
        queue: The queue.
        settings: What to set. Default options replace none.
        created: The queue is new. Consumers that it has already, by rules of *log*, are moved. In an older queue they
            stay where they are: what they have acknowledged there is newer.

    Raises:
        QueueOptionsError: A limit is below what the queue holds.
        LogFullError: The limit on consumers is reached, or there is no space.
    """
    if settings.options != QueueOptions():
        await log.configure_queue(queue, settings.options)
    for consumer, position in sorted(settings.consumers.items(), key=itemgetter(1)):
        await _carry_consumer(log, queue, consumer, position, settings.owners.get(consumer), created)
    if settings.sealed:
        with suppress(QueueSealedError):  # by an earlier attempt
            await log.seal_queue(queue)


async def _carry_consumer(
    log: RecordLog, queue: str, consumer: str, position: int, owner: str | None, created: bool
) -> None:
    # A queue whose name contains `*` is a pattern to `create_consumer`, and a queue to attach to.
    attaches = is_pattern(queue) or (created and owner is not None)
    is_new = not attaches and await log.create_consumer(queue, consumer, start=position, exist_ok=True)
    stands = None
    if attaches or (is_new and owner is not None):
        with suppress(ConsumerOwnedError):  # it exists in an older queue
            async with log.consumer(queue, consumer, start=position, owner=owner) as holder:
                stands = holder.position  # it has its owner now
    if created and not is_new and stands != position:
        # It may be one that a rule made. One that cannot be moved stays behind, and reads records again.
        with suppress(PositionAheadError, PositionTruncatedError):
            await log.seek_consumer(queue, consumer, position)


async def carry_all(log: RecordLog, carried: Iterable[Carried], rules: Iterable[tuple[str, str]] = ()) -> None:
    """Set what was *carried*, then create *rules*, as (pattern, consumer). See `carry_settings`."""
    rest = iter(carried)
    while group := list(islice(rest, SETTINGS_AT_ONCE)):
        await asyncio.gather(*(carry_settings(log, *each) for each in group))
    # Last: a rule gives its consumer to every queue that lacks it, and none of these may lack its own any more.
    for pattern, consumer in rules:
        await log.create_consumer(pattern, consumer, exist_ok=True)


def with_room(options: QueueOptions, records: int, size: int) -> QueueOptions:
    """Return *options* with limits that a queue of *records* records and *size* payload bytes does not exceed.

    A damaged log may have lost truncates, so more records may be back than the limits allow. Limits of a queue that
    drops its oldest records stay: it drops them with its next append.
    """
    if options.when_full == "drop_oldest":
        return options
    return replace(
        options,
        max_records=options.max_records and max(options.max_records, records),
        max_bytes=options.max_bytes and max(options.max_bytes, size),
    )
