"""A log that is open for writing, of which only positions are in memory: for commands that change a directory.

It is an open log in every other respect: the same recovery, the same writer, the same order on the disk. Records that
it appends are not kept either, so they cannot be read from it, and a repeat of a record that is not its queue's last
append is refused as one whose position is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from mrecordlog_async.engine.commit.open import OpenOptions
from mrecordlog_async.engine.open_async import open_log_async
from mrecordlog_async.log import MultiRecordLog, check_segment_bytes
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.options import GIB, Limits, PersistPolicy, QueueOptions
from mrecordlog_async.recovery.place_reader import count_left, count_records
from mrecordlog_async.recovery.places import PlacedStores, placed
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem


class PlacedLog(MultiRecordLog):
    """An open log without its records. Reading a record finds none. One caller uses it."""

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Remove records; see `MultiRecordLog.truncate`. What a place loses that it cuts is read from the disk."""
        found = self._queues.get(queue)
        dropped = 0
        if found is not None:
            opened = self._opened
            dropped = await self._thread.call(count_records, opened.directory, opened.log_id, found, 0, position + 1)
        await super().truncate(queue, position, queue_id=queue_id, past_consumers=past_consumers)
        return dropped

    async def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace the options of *queue*; see `MultiRecordLog.configure_queue`. The limits are checked against it."""
        await self.count([queue])
        await super().configure_queue(queue, options)

    async def count(self, queues: Iterable[str]) -> None:
        """Count what truncates left of *queues*, which limits are compared with."""
        for name in queues:
            found = self._queues.get(name)
            if found is not None and placed(found).is_cut():
                opened = self._opened
                placed(found).recount(*await self._thread.call(count_left, opened.directory, opened.log_id, found))


async def open_placed_log(
    directory: str | os.PathLike[str],
    *,
    create: bool = False,
    policy: PersistPolicy | None = None,
    limits: Limits | None = None,
    segment_bytes: int = GIB,
    kind: type[PlacedLog] = PlacedLog,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> PlacedLog:
    """Open the log in *directory* for writing, without its records. Arguments and errors are `MultiRecordLog.open`'s.

    A log is only created if *create* allows it, and stays unclosed if it was not closed: see `keep_unclosed`.
    """
    check_segment_bytes(segment_bytes)
    policy, limits = policy or PersistPolicy.always(), limits or Limits()
    opened, thread = await open_log_async(
        LogDirectory(filesystem or OsFileSystem(), os.fsdecode(directory)),
        OpenOptions(segment_bytes, limits.disk_bytes, create, policy.syncs_each_batch, PlacedStores),
        on_progress,
    )
    log = kind(opened, thread, policy, limits)
    log.keep_unclosed()
    try:
        await log.count(sorted(opened.queues.limited))
    except BaseException:
        await log.close()
        raise
    return log
