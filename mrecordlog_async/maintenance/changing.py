"""Opens a log for writing with its positions alone in memory: for commands that change a directory.

It is an open log in every other respect: the same recovery, the same writer, the same order on the disk. No gathered
file is used or written, so a change needs no more space than its own batch. Records that it appends are not kept
either, so they cannot be read from it, and a repeat of a record that is not its queue's last append is refused as one
whose position is taken.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from mrecordlog_async.engine.commit.open import OpenOptions
from mrecordlog_async.engine.fitted import FittedLimits
from mrecordlog_async.engine.open_async import open_log_async
from mrecordlog_async.engine.running import Engine, EngineOptions
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.options import GIB, Limits, PersistPolicy, check_segment_bytes
from mrecordlog_async.recovery.positions import PositionStores, position_store
from mrecordlog_async.recovery.segment_reader import SegmentReader
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem

COMMAND_LIMITS = Limits(disk_bytes=1 << 62, beyond_memory="disk")
"""Limits of a log that a command changes: only its service knows its own. The disk itself still refuses."""

DURABLE = EngineOptions(PersistPolicy.always(), COMMAND_LIMITS)


@dataclass(frozen=True, slots=True)
class Changing:
    """A log without its records: its reads find none. Whoever opened it closes `log`.

    count: returns how many records a queue retains, 0 if there is no such queue. What a truncate has left of a place is
    counted too high until then: call it before `configure_queue`, which compares limits with what the queue holds.
    """

    log: MultiRecordLog
    count: Callable[[str], Awaitable[int]]

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Remove records, and return how many; see `MultiRecordLog.truncate`."""
        before = await self.count(queue)
        await self.log.truncate(queue, position, queue_id=queue_id, past_consumers=past_consumers)
        return before - await self.count(queue)


async def open_to_change(
    directory: str | os.PathLike[str],
    options: EngineOptions = DURABLE,
    *,
    create: bool = False,
    segment_bytes: int = GIB,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> Changing:
    """Open the log in *directory* for writing, without its records. Arguments and errors are `MultiRecordLog.open`'s.

    A log is only created if *create* allows it, and stays unclosed if it was not closed: see
    `Inspection.keep_unclosed`.
    """
    check_segment_bytes(segment_bytes)
    place, syncs = os.fsdecode(directory), options.policy.syncs_each_batch
    options = replace(options, limits=FittedLimits(options.limits, place).limits)
    opened, thread = await open_log_async(
        LogDirectory(filesystem or OsFileSystem(), place),
        OpenOptions(segment_bytes, options.limits.disk_bytes, create, syncs, PositionStores, clock=options.clock),
        on_progress,
    )
    reader = SegmentReader(opened.directory.log, opened.log_id, opened.queues)

    async def count(queue: str) -> int:
        while (found := opened.queues.get(queue)) is not None:
            first = found.first_position
            counted = await asyncio.wrap_future(thread.submit(reader.left_of, (found,)))
            if opened.queues.get(queue) is found and found.first_position == first:
                for left in counted.values():
                    position_store(found).recount(*left)
                return found.records
            # It was truncated meanwhile, for example by its max_age: another place is the oldest now.
        return 0

    log = MultiRecordLog(Engine(opened, thread, options))
    log.inspection.keep_unclosed()
    try:
        for queue in sorted(opened.queues.limited):
            await count(queue)
    except BaseException:
        await log.close()
        raise
    return Changing(log, count)
