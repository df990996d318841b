"""Write what can still be read of a damaged log as a new log. The damaged one is only read."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mrecordlog_async.errors import LogLockedError
from mrecordlog_async.maintenance.lenient_replay import SalvagedQueue
from mrecordlog_async.maintenance.rebuild import QueueCopy, copy_queues, new_log
from mrecordlog_async.maintenance.salvage import Salvage, salvage_from
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.options import GIB
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.lock import LOCK_NAME

REPAIRED_SUFFIX = ".repaired"


@dataclass(frozen=True, slots=True)
class Repair:
    """The outcome of a repair.

    Attributes:
        salvage: what can still be read, and what is lost.
        target: the directory for the new log.
        written: the new log was written there; False if there is no damage, or if *write* was False.
    """

    salvage: Salvage
    target: str
    written: bool


def repair(
    directory: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    write: bool = True,
    segment_bytes: int = GIB,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> Repair:
    """Write what can still be read from the damaged log in *directory* as a new log in *target*.

    The damaged log is never changed. If there is no damage, nothing is written. *target* gets its name when it is
    complete and durable. Its queues have new ids, so readers that keep positions must start over. Blocks; in a
    coroutine, call it with `asyncio.to_thread`. Keeps all live records in memory if it is to write them.

    Args:
        directory: the damaged log's directory; no process may have it open for writing.
        target: the directory to create; by default *directory* with `.repaired` appended.
        write: whether to write the new log; False only reads and reports; the result then has empty payloads.
        segment_bytes: the segment size of the new log.
        on_progress: called with the bytes read so far, after each batch.
        filesystem: the disk to work on; the operating system's by default.

    Returns:
        What was salvaged, and whether it was written.

    Raises:
        FileExistsError: *target* is not empty, or an interrupted repair left `TARGET.partial`.
        FileNotFoundError: there is no log in *directory*.
        LogLockedError: a process has the log open.
        CorruptionError: no segment is left, or none has a header that can be read.
        OSError: the disk could not be read or written.
    """
    log = LogDirectory.at(directory, filesystem)
    path = log.path + REPAIRED_SUFFIX if target is None else os.path.abspath(os.fsdecode(target))
    with _locked(log):
        found = salvage_from(log, on_progress, keeps_payloads=False)
        written = bool(write and found.damage)
        if written:
            found = salvage_from(log, on_progress)
            asyncio.run(write_log(path, found.queues, segment_bytes, filesystem))
    return Repair(found, path, written)


async def write_log(
    target: str, queues: Iterable[SalvagedQueue], segment_bytes: int, filesystem: FileSystem | None = None
) -> None:
    """Write what was salvaged as a new log in *target*, whole or not at all."""
    copies = (
        QueueCopy(queue.name, queue.first_position, queue.readable_next_position, queue.live_runs())
        for queue in queues
        if queue.record_count or not queue.name_lost  # a queue without name and records is not worth creating
    )
    async with new_log(target, segment_bytes, filesystem) as log:
        await copy_queues(log, copies)


@contextmanager
def _locked(log: LogDirectory) -> Iterator[None]:
    """Hold the writer's lock, if there is one to hold."""
    handle = _lock(log)
    try:
        yield
    finally:
        if handle is not None:
            log.files.close(handle)


def _lock(log: LogDirectory) -> int | None:
    """Take the writer's lock; None if no lock file exists, or on a read-only file system, where nobody writes."""
    if LOCK_NAME not in log.files.list_names(log.path):
        return None
    try:
        return log.files.lock(f"{log.path}/{LOCK_NAME}")
    except BlockingIOError:
        raise LogLockedError(log.path, None) from None
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES):
            return None
        raise
