"""Write what can still be read of a damaged log as a new log. The damaged one is only read."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mrecordlog_async.errors import CorruptionError, PositionInPastError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.damage import Damage
from mrecordlog_async.maintenance.lenient_replay import SalvagedQueue
from mrecordlog_async.maintenance.new_directory import free_names
from mrecordlog_async.maintenance.salvage import Salvage, salvage_from, salvaged_runs
from mrecordlog_async.maintenance.transfer import Carried, QueueShape, carry_all, new_log, with_room, write_queues
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.options import GIB, QueueOptions, check_segment_bytes
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.lock import locked_by_another
from mrecordlog_async.storage.lock_file import LOCK_NAME
from mrecordlog_async.support.paths import absolute

REPAIRED_SUFFIX = ".repaired"


@dataclass(frozen=True, slots=True)
class Repair:
    """The outcome of a repair.

    Attributes:
        salvage: what can still be read, and what is lost; the records in it have positions and no payloads.
        target: the directory for the new log.
        written: the new log was written there; False if there is no damage, or if *write* was False.
        raised: queues in which removed records are back, more than a limit of theirs allows. In the new log the limit
            is what they hold.
    """

    salvage: Salvage
    target: str
    written: bool
    raised: tuple[str, ...] = ()


def repair(
    directory: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    write: bool = True,
    segment_bytes: int = GIB,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    on_write: Callable[[RecoveryProgress], None] | None = None,
    filesystem: FileSystem | None = None,
) -> Repair:
    """Write what can still be read from the damaged log in *directory* as a new log in *target*.

    The damaged log is never changed. If there is no damage, nothing is written. *target* gets its name when it is
    complete and durable. Options, seals, consumers and their rules come with the records; a consumer stands at its last
    position that can be read, and nobody holds it. The queues have new ids, so readers that keep positions must start
    over. Blocks; in a coroutine, call it with `asyncio.to_thread`. A log of any size needs little memory: it is read
    once to find out what is left of it, and once more to write that.

    Args:
        directory: the damaged log's directory; no process may have it open for writing.
        target: the directory to create; by default *directory* with `.repaired` appended.
        write: whether to write the new log; False only reads and reports.
        segment_bytes: the segment size of the new log.
        on_progress: called with the bytes read so far, after each batch.
        on_write: the same while the new log is written; by default *on_progress*.
        filesystem: the disk to work on; the operating system's by default.

    Returns:
        What was salvaged, and whether it was written.

    Raises:
        FileExistsError: *target* is not empty, or `TARGET.partial` exists: a killed repair left it, or another process
            is writing it.
        FileNotFoundError: there is no log in *directory*.
        LogLockedError: a process has the log open.
        CorruptionError: no segment is left, or none has a header that can be read.
        ValueError: the files contradict each other, or something changed them meanwhile; or *segment_bytes* is too low.
        OSError: the disk could not be read or written. What was written of the new log is removed, unless that fails
            too.
    """
    check_segment_bytes(segment_bytes)
    log = LogDirectory.at(directory, filesystem)
    path = log.path + REPAIRED_SUFFIX if target is None else absolute(os.fsdecode(target))
    if write:
        free_names(log.files, path)  # a name that is taken is reported before the whole log is read
    # The lock is held until the new log is written: its source is read twice, and both reads must find the same.
    with _locked(log):
        found = salvage_from(log, on_progress, keeps_payloads=False)
        found.damage.extend([] if found.damage else _refusal(log))
        written = bool(write and found.damage)
        raised: tuple[str, ...] = ()
        if written:
            raised = asyncio.run(write_log(path, log, found, segment_bytes, on_write or on_progress))
    return Repair(found, path, written, raised)


def _refusal(log: LogDirectory) -> list[Damage]:
    """Return why open refuses a log of which every part is whole: they may be from copies that went on differently."""
    try:
        ReadOnlyLog.open(log.path, keep_records=False, filesystem=log.files).close()
    except CorruptionError as error:
        return [Damage(error.segment, error.offset or 0, 0, error.reason)]
    return []


async def write_log(
    target: str,
    source: LogDirectory,
    found: Salvage,
    segment_bytes: int,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
) -> tuple[str, ...]:
    """Write what was *found* in *source* as a new log in *target*, whole or not at all; *source* is read once more.

    Returns:
        The queues whose limits were raised; see `Repair`.
    """
    # A queue without name and records is not worth creating.
    queues = {queue.id: queue for queue in found.queues if queue.record_count or not queue.name_lost}
    shapes = [QueueShape(queue.name, queue.first_position, queue.readable_next_position) for queue in queues.values()]
    runs = ((queues[queue_id].name, run) for queue_id, run in salvaged_runs(source, queues, on_progress))
    async with new_log(target, segment_bytes, source.files, like=source.path) as log:
        try:
            written = await write_queues(log, shapes, runs)
        except PositionInPastError as error:
            raise ValueError(
                f"{source.path}: the records of queue {error.queue!r} go back to position {error.position}: files of "
                "two copies of the log are mixed; put the files of one copy there"
            ) from None
        due = sum(queue.record_count for queue in queues.values())
        if written != due:
            raise ValueError(
                f"{source.path}: {due} records could be read, and {written} when they were written: something changes "
                "the files; repair a copy that nothing else uses"
            )
        raised = _make_room(log, queues.values())
        await carry_all(log, (Carried(queue.name, queue.settings) for queue in queues.values()), found.rules)
    return raised


def _make_room(log: MultiRecordLog, queues: Iterable[SalvagedQueue]) -> tuple[str, ...]:
    """Raise the limits that queues exceed; return their names."""
    raised = []
    for queue in queues:
        if queue.settings.options != QueueOptions():
            held = log.queue_summary(queue.name)
            options = with_room(queue.settings.options, held.records, held.bytes)
            if options != queue.settings.options:
                queue.settings = replace(queue.settings, options=options)
                raised.append(queue.name)
    return tuple(raised)


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
    except BlockingIOError as error:
        raise locked_by_another(log, error) from None
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES):
            return None
        raise
