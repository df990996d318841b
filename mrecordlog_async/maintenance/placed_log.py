"""A log that is open for writing, of which only positions are in memory: for commands that change a directory.

It is an open log in every other respect: the same recovery, the same writer, the same order on the disk. Records that
it appends are not kept either, so they cannot be read from it, and a repeat of a record that is not its queue's last
append is refused as one whose position is taken.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from mrecordlog_async.engine.commit.open import OpenOptions
from mrecordlog_async.engine.fitted import FittedLimits
from mrecordlog_async.engine.open_async import open_log_async
from mrecordlog_async.engine.running import Engine, EngineOptions
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.options import GIB, Limits, PersistPolicy, check_segment_bytes
from mrecordlog_async.recovery.place_reader import count_left, count_records
from mrecordlog_async.recovery.places import PlacedStores, placed
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem

COMMAND_LIMITS = Limits(disk_bytes=1 << 62, beyond_memory="disk")
"""Limits of a log that a command changes: only its service knows its own. The disk itself still refuses."""

DURABLE = EngineOptions(PersistPolicy.always(), COMMAND_LIMITS)


class PlacedLog:
    """A log without its records, and the changes that need a number of records: that is read from the disk.

    Attributes:
        log: The open log. Its reads find no record.
    """

    def __init__(self, engine: Engine) -> None:
        """Use `open_placed_log`."""
        self.log = MultiRecordLog(engine)
        self._engine = engine

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.log.__aexit__(kind, error, traceback)

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Remove records; see `MultiRecordLog.truncate`. What a place loses that it cuts is read from the disk."""
        found, opened = self._engine.queues.get(queue), self._engine.opened
        dropped = 0
        if found is not None:
            stop = position + 1
            arguments = opened.directory.log, opened.log_id, found, 0, stop
            dropped = await asyncio.wrap_future(self._engine.thread.submit(count_records, *arguments))
        await self.log.truncate(queue, position, queue_id=queue_id, past_consumers=past_consumers)
        return dropped

    async def count(self, queues: Iterable[str]) -> None:
        """Count what truncates left of *queues*: call it before `configure_queue`, which compares limits with it."""
        for name in queues:
            found = self._engine.queues.get(name)
            if found is not None and placed(found).is_cut():
                opened = self._engine.opened
                arguments = opened.directory.log, opened.log_id, found
                left = await asyncio.wrap_future(self._engine.thread.submit(count_left, *arguments))
                placed(found).recount(*left)


async def open_placed_log(
    directory: str | os.PathLike[str],
    options: EngineOptions = DURABLE,
    *,
    create: bool = False,
    segment_bytes: int = GIB,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> PlacedLog:
    """Open the log in *directory* for writing, without its records. Arguments and errors are `MultiRecordLog.open`'s.

    A log is only created if *create* allows it, and stays unclosed if it was not closed: see
    `Inspection.keep_unclosed`.
    """
    check_segment_bytes(segment_bytes)
    place, syncs = os.fsdecode(directory), options.policy.syncs_each_batch
    options = replace(options, limits=FittedLimits(options.limits, place).limits)
    opened, thread = await open_log_async(
        LogDirectory(filesystem or OsFileSystem(), place),
        OpenOptions(segment_bytes, options.limits.disk_bytes, create, syncs, PlacedStores, clock=options.clock),
        on_progress,
    )
    found = PlacedLog(Engine(opened, thread, options))
    found.log.inspection.keep_unclosed()
    try:
        await found.count(sorted(opened.queues.limited))
    except BaseException:
        await found.log.close()
        raise
    return found
