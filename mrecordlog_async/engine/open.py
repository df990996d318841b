"""Taking a directory: lock, recovery, and everything that must be on the disk before the first batch.

Blocking; runs on the log's thread. Whatever fails on the way gives the lock and every handle back.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mrecordlog_async.engine.commit import LogEnd, LogIOError
from mrecordlog_async.engine.journal import Journal
from mrecordlog_async.format.record import LOG_ID_BYTES, encode_table
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import RecoveryReport
from mrecordlog_async.recovery.cleanup import remove_leftovers, zero_torn_tail
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.recovery import Progress, read_log
from mrecordlog_async.storage.directory import Listing, LogDirectory, make_directories, sync_directory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.lock import LOCK_NAME, take_lock
from mrecordlog_async.storage.new_segment import RESERVE_BYTES, make_first_segment
from mrecordlog_async.storage.segment import CLOSED_NAME, TEMPORARY_SUFFIX, SegmentFile, segment_name

logger = logging.getLogger("mrecordlog_async")

FIRST_QUEUE_ID_BITS = 48
"""A new log draws its first queue id at random below this, so that a wiped log is not taken for the old one."""


@dataclass(slots=True)
class OpenedLog:
    """A log that is ready to write. `close` gives everything back, the lock last."""

    files: FileSystem
    directory: str
    log_id: bytes
    journal: Journal
    queues: Queues
    report: RecoveryReport
    lock_handle: int
    directory_handle: int

    def close(self) -> None:
        """Close every file, then let go of the lock."""
        self.journal.close()
        self.files.close(self.directory_handle)
        self.files.close(self.lock_handle)

    def handles(self) -> list[int]:
        """Return every open handle."""
        return [*self.journal.handles(), self.directory_handle, self.lock_handle]


def open_log(
    files: FileSystem,
    directory: str,
    *,
    create: bool,
    segment_bytes: int,
    disk_bytes_limit: int,
    on_progress: Progress | None = None,
) -> OpenedLog:
    """Open the log in *directory* for writing, making it if there is none and *create* allows it.

    Raises LogLockedError, CorruptionError (nothing is changed then) or OSError.
    """
    begun = time.perf_counter()
    directory = os.path.abspath(directory)
    with contextlib.ExitStack() as on_error:
        directory_handle = _open_directory(files, directory, create)
        on_error.callback(files.close, directory_handle)
        lock_handle = take_lock(files, directory)
        on_error.callback(files.close, lock_handle)
        files.sync_directory(directory_handle)
        log = LogDirectory(files, directory)
        listing = log.list()
        created = listing.is_empty
        if created:
            contents, file = _make_log(log, directory_handle, listing, create)
        else:
            contents = read_log(log, listing, on_progress=on_progress)
            file = _take_over(files, directory, directory_handle, contents)
        on_error.callback(file.close)
        remove_leftovers(log, listing, contents)
        is_shared = file.may_be_shared()
        if not is_shared:
            with contextlib.suppress(OSError):
                file.reserve(max(contents.size, contents.end + RESERVE_BYTES), contents.size)
        journal = _journal(files, directory, directory_handle, file, contents, segment_bytes, disk_bytes_limit)
        on_error.callback(journal.discard_spare)
        _prepare_spare(journal)
        if is_shared:
            _leave_shared_segment(journal, contents)
        report = contents.report(time.perf_counter() - begun, created)
        on_error.pop_all()
        return OpenedLog(
            files, directory, contents.log_id, journal, contents.queues, report, lock_handle, directory_handle
        )


def _open_directory(files: FileSystem, directory: str, create: bool) -> int:
    try:
        handle = files.open_directory(directory)
    except FileNotFoundError:
        if not create:
            raise LogDirectory(files, directory).no_log() from None
        make_directories(files, directory)
        handle = files.open_directory(directory)
    if files.mode(directory) & 0o077:
        logger.warning("log directory %r can be read or written by other users; 0700 is recommended", directory)
    return handle


def _make_log(
    log: LogDirectory, directory_handle: int, listing: Listing, create: bool
) -> tuple[RecoveredLog, SegmentFile]:
    files, directory = log.files, log.path
    if not create:
        raise log.no_log()
    foreign = [name for name in listing.others if not _may_stand_beside_a_new_log(name)]
    if foreign:
        reason = f"cannot create a log here: the directory already contains {foreign[0]!r}"
        raise OSError(errno.ENOTEMPTY, reason, directory)
    # Before segment 0 exists, whoever made the directory: once a segment is there nobody syncs the parent again.
    sync_directory(files, os.path.dirname(directory) or "/")
    queues = Queues(secrets.randbits(FIRST_QUEUE_ID_BITS))
    log_id = secrets.token_bytes(LOG_ID_BYTES)
    file, end = make_first_segment(files, directory, directory_handle, log_id, encode_table(queues.table()))
    contents = RecoveredLog(
        log_id=log_id,
        segment=0,
        table_end=end,
        end=end,
        first_batch=1,
        last_batch=0,
        oldest_segment=0,
        size=file.reserved_bytes,
        queues=queues,
        torn_range=None,
        closed=False,
    )
    return contents, file


def _may_stand_beside_a_new_log(name: str) -> bool:
    return name in (LOCK_NAME, "lost+found") or name.startswith(".") or name.endswith(TEMPORARY_SUFFIX)


def _take_over(files: FileSystem, directory: str, directory_handle: int, contents: RecoveredLog) -> SegmentFile:
    """Make the recovered log ready for its next batch: tail zeroed, `CLOSED` gone, both durable.

    A segment with a second name keeps its tail: the next one will state where it ended.
    """
    path = f"{directory}/{segment_name(contents.segment)}"
    handle = files.open(path)
    try:
        file = SegmentFile(files, path, handle, contents.size)
        if not file.may_be_shared():
            zero_torn_tail(file, contents)
            file.reserved_bytes = contents.end
        if contents.closed:
            # Durable before any batch: a CLOSED that outlives it would take the batch for damage.
            files.unlink(f"{directory}/{CLOSED_NAME}")
            files.sync_directory(directory_handle)
    except BaseException:
        files.close(handle)
        raise
    return file


def _journal(
    files: FileSystem,
    directory: str,
    directory_handle: int,
    file: SegmentFile,
    contents: RecoveredLog,
    segment_bytes: int,
    disk_bytes_limit: int,
) -> Journal:
    end = LogEnd(
        segment=contents.segment,
        table_end=contents.table_end,
        offset=contents.end,
        first_batch=contents.first_batch,
        last_batch=contents.last_batch,
        durable_batch=contents.last_batch,
    )
    return Journal(
        files=files,
        directory=directory,
        directory_handle=directory_handle,
        log_id=contents.log_id,
        file=file,
        end=end,
        older=[*((number, 0) for number in contents.leftovers), *contents.older],
        oldest_segment=contents.oldest_segment,
        queues=contents.queues,
        segment_bytes=segment_bytes,
        disk_bytes_limit=disk_bytes_limit,
    )


def _prepare_spare(journal: Journal) -> None:
    """Try to make the spare. On a full disk the log opens without: appends are refused until there is one."""
    _try_now(journal.prepare_spare)


def _leave_shared_segment(journal: Journal, contents: RecoveredLog) -> None:
    """Go on in a segment of the log's own. On a full disk the log opens without: each batch tries again."""
    logger.info(
        "%s has a second name (a hard link): it is left as it is, and the log goes on in the next segment",
        segment_name(contents.segment),
    )
    _try_now(partial(journal.roll, contents.queues.pins.oldest()))


def _try_now(work: Callable[[], object]) -> None:
    """Do *work*, which the journal does again later where the disk refuses it now."""
    try:
        work()
    except OSError:
        return
    except LogIOError as error:
        raise error.__cause__ or error from None
