"""Open a directory for writing: lock, recovery, and everything that must be on the disk before the first batch.

1. Open the directory, creating it if allowed, and lock it. Only names are read before that: until then another writer
   may change it. A directory that has no log, and may get none, is refused without a trace.
2. Read the log (`recovery`), or create one in an empty directory. Nothing is changed before the log was judged.
3. Zero what follows the end of the log, remove `CLOSED`, remove leftovers, mark the directory as one that holds a log.
4. Reserve space and prepare the spare. A full disk does not prevent opening: appends are refused until there is room.

Blocking; runs on the log's thread. Whatever fails on the way closes every handle and releases the lock.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mrecordlog_async.engine.clock_doubt import doubt_of
from mrecordlog_async.engine.commit.batch import LogIOError
from mrecordlog_async.engine.commit.disk_space import DiskSpace
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.format.record import LOG_ID_BYTES
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.store import RetainedStores
from mrecordlog_async.model import TICK_NS, RecoveryReport
from mrecordlog_async.recovery.beyond_memory import MemoryBounds, SegmentTooLargeError
from mrecordlog_async.recovery.cleanup import remove_leftovers, zero_tail
from mrecordlog_async.recovery.gathered_reader import GatheredReader
from mrecordlog_async.recovery.positions import PositionStores
from mrecordlog_async.recovery.recovered import ClockJump, RecoveredLog
from mrecordlog_async.recovery.recovery import Progress, read_log
from mrecordlog_async.recovery.replay import NewStores
from mrecordlog_async.recovery.torn_or_damaged import NOTHING, LogTail
from mrecordlog_async.storage.direct import Staging
from mrecordlog_async.storage.directory import Listing, LogDirectory, make_directories, naming, sync_names
from mrecordlog_async.storage.end_note import LAST_END_NAME, ClockDoubt, EndNote
from mrecordlog_async.storage.lock_file import LOCK_NAME
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES, LockedDirectory, make_first_segment
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, LogEnd, SegmentFile, segment_name
from mrecordlog_async.support.clock import Clock, system

logger = logging.getLogger("mrecordlog_async")

FIRST_QUEUE_ID_BITS = 48
"""A new log draws its first queue id at random below this, so that a wiped log is not taken for the old one."""

ID_STEP_BITS = 32
"""The first id or epoch that an opening draws is moved up by a random number below this. The record that carries it is
what makes that durable. So a log that was restored from a copy, and the original, do not draw the same ones. Raising
the counter without a record would not do: the next segment's table would not follow from the records."""

NONCE_BITS = 64
"""Each opening draws a random number: a log that went back to an older state does not know the later ones."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Options for opening a log.

    segment_bytes: nominal size of a segment. disk_bytes_limit: space for all segments. create: create the directory and
    the log if they do not exist. direct: write past the page cache where that is possible, which pays if each batch is
    synced: an unsynced write costs 1.5 µs in the cache and 60 µs past it. recycle: use dead segments again, where the
    file system gains by it. new_stores: decides what is kept of the records in memory. clock: stamps the batches.
    bounds: of memory; None for no bound.
    """

    segment_bytes: int
    disk_bytes_limit: int = 1 << 62
    create: bool = True
    direct: bool = False
    new_stores: NewStores = RetainedStores
    recycle: bool = True
    clock: Clock = field(default_factory=system)
    bounds: MemoryBounds | None = None


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log that is ready to write. `close` closes every file, and the lock last.

    Attributes:
        noted: what was noted of earlier ends.
        ids_from: the lowest id or epoch that this opening may draw.
        was_closed: it is new, or its last writer closed it.
        aging: of each queue with a `max_age`, the next position.
        doubt: about the machine's clock at this opening.
    """

    directory: LockedDirectory
    log_id: bytes
    journal: Journal
    queues: Queues
    report: RecoveryReport
    noted: EndNote
    ids_from: int
    was_closed: bool
    aging: dict[int, int]
    doubt: ClockDoubt

    def close(self) -> None:
        """Close every file, then release the lock."""
        try:
            self.journal.close()
        finally:  # nothing writes any more: whatever else fails, the directory can be opened again
            self.directory.close()

    def handles(self) -> list[int]:
        """Return every open handle."""
        return [*self.journal.handles(), *self.directory.handles()]


def open_log(directory: LogDirectory, options: OpenOptions, on_progress: Progress | None = None) -> OpenedLog:
    """Open the log in *directory*, an absolute path, for writing.

    Raises:
        FileNotFoundError: There is no log, and *options* do not allow creating one.
        LogLockedError: Another open log owns the directory.
        CorruptionError: Acknowledged data is damaged. Nothing was changed.
        OSError: A system call failed.
    """
    begun = time.perf_counter()
    with naming(directory.path), contextlib.ExitStack() as on_error:
        locked = _lock(directory, options.create)
        on_error.callback(locked.close)
        recovered, file = _recover_or_create(locked, options, on_progress)
        on_error.callback(file.close)
        locked.mark()
        is_shared = file.may_be_shared()
        staging = Staging() if options.direct else None
        if not is_shared:
            _reserve_again(file, recovered)
            if staging is not None:
                file.begin_direct(staging, recovered.end.offset)
        sizes, recycle = (options.segment_bytes, options.disk_bytes_limit), options.recycle and locked.recycles()
        space = DiskSpace(locked, file, recovered, *sizes, staging, recycle=recycle)
        journal = Journal(locked, file, recovered, space, staging, secrets.randbits(NONCE_BITS))
        journal.clock = options.clock
        on_error.pop_all()  # from now on the journal closes the file, or the one that takes its place
        on_error.callback(locked.close)
        on_error.callback(journal.close)
        _prepare_spare(journal)
        if is_shared:
            _leave_shared_segment(journal, recovered)
        report = recovered.report(time.perf_counter() - begun)
        on_error.pop_all()
        recovered.queues.forget_skipped()
        ids_from = recovered.queues.next_queue_id + secrets.randbits(ID_STEP_BITS)
        was_closed = recovered.closed or recovered.created
        now = options.clock.stamp_ns() // TICK_NS
        unseen = ClockJump() if was_closed else recovered.jump  # a log that is closed looks at the clock
        doubt = doubt_of(recovered.queues, now, recovered.noted.doubt, unseen)
        if recovered.noted != (note := EndNote(report.unclosed_ends, doubt=doubt)):
            # What this opening reports, a later one must not report again.
            locked.note_end(note)
        aging = recovered.queues.aging_from()  # here: for a million queues, it takes a third of a second
        queues, noted = recovered.queues, recovered.noted
        return OpenedLog(locked, recovered.log_id, journal, queues, report, noted, ids_from, was_closed, aging, doubt)


def _lock(directory: LogDirectory, create: bool) -> LockedDirectory:
    """Lock *directory*; create it first if it does not exist and *create* allows it."""
    try:
        _refuse_other_directory(directory, directory.list(), create)  # before LOCK stands in it
        locked = LockedDirectory.take(directory)
    except FileNotFoundError:
        if not create:
            raise directory.no_log() from None
        make_directories(directory.files, directory.path)
        locked = LockedDirectory.take(directory)
    try:
        if directory.files.mode(directory.path) & 0o077:
            logger.warning(
                "log directory %r can be read or written by other users; 0700 is recommended", directory.path
            )
        # What a writer before this one created or renamed must be durable before anything is built on it.
        locked.sync()
    except BaseException:
        locked.close()
        raise
    return locked


def _recover_or_create(
    directory: LockedDirectory, options: OpenOptions, on_progress: Progress | None
) -> tuple[RecoveredLog, SegmentFile]:
    """Return the log and its last segment, ready for the next batch."""
    listing = directory.log.list()
    if listing.is_empty:
        recovered, file = _create_log(directory, listing, options)
    else:
        directory.log.sync_name()
        bounds, tail = options.bounds, None
        read = _read_if_it_fits(directory, listing, options, on_progress)
        if read is None:
            tail, is_done = _complete_last_segment(directory, listing, options)
            listing = directory.log.list()
            read = _read(directory, listing, options, on_progress, is_strict=is_done)
        recovered = read
        if recovered.queues.pins.gathered and bounds is not None and not bounds.is_usual:
            logger.warning(
                "%s: the records do not fit into %d bytes of memory: the oldest ones stay on the disk",
                *(directory.path, bounds.memory_bytes if bounds.exceeded is None else bounds.exceeded()),
            )
        reader = GatheredReader(directory.log, may_write=lambda size: False)
        reader.count_cuts(recovered.queues)
        reader.close_all()
        file = _take_over(directory, recovered)
        recovered.tail = tail or recovered.tail  # for the report
    if LAST_END_NAME in listing.others:
        recovered.noted = directory.read_end_note()
    # After the log was judged: files of a log that is refused stay as they are.
    remove_leftovers(directory.log, listing, recovered)
    return recovered, file


def _read(
    directory: LockedDirectory,
    listing: Listing,
    options: OpenOptions,
    on_progress: Progress | None,
    *,
    is_strict: bool = True,
) -> RecoveredLog:
    bounds = None if options.bounds is None else options.bounds._replace(is_strict=is_strict)
    return read_log(directory.log, listing, on_progress=on_progress, new_stores=options.new_stores, bounds=bounds)


def _read_if_it_fits(
    directory: LockedDirectory, listing: Listing, options: OpenOptions, on_progress: Progress | None
) -> RecoveredLog | None:
    """Return the log, or None if its last segment does not fit into memory: the error would keep what was read."""
    try:
        return _read(directory, listing, options, on_progress)
    except SegmentTooLargeError:
        return None


def _complete_last_segment(directory: LockedDirectory, listing: Listing, options: OpenOptions) -> tuple[LogTail, bool]:
    """Have the log continue in a new segment, so that the last one can be gathered.

    Its records are larger than memory, so they are read for their positions alone. A log that was closed still says so
    afterwards.

    Returns:
        What followed the end of the log, and whether it does continue in a new segment: a full disk refuses one.
    """
    bounds = MemoryBounds(sys.maxsize, by_index=True, is_usual=True)
    recovered = read_log(directory.log, listing, new_stores=PositionStores, bounds=bounds)
    file = _take_over(directory, recovered)
    space = DiskSpace(directory, file, recovered, options.segment_bytes, options.disk_bytes_limit)
    journal = Journal(directory, file, recovered, space)
    try:
        oldest = recovered.queues.pins.oldest()
        is_done = _try_now(partial(journal.roll, oldest))
        if recovered.closed:
            journal.write_closed(oldest)
    finally:
        journal.close()
    return recovered.tail, is_done


def _refuse_other_directory(directory: LogDirectory, listing: Listing, create: bool) -> None:
    """Raise OSError if *directory* has no log and none may be created in it, CorruptionError if it has lost its log."""
    if not listing.is_empty:
        return
    directory.check_nothing_was_lost(listing)
    if not create:
        raise directory.no_log()
    foreign = [name for name in listing.others if not _may_stand_next_to_a_new_log(name)]
    if foreign:
        reason = f"cannot create a log here: the directory already contains {foreign[0]!r}"
        raise OSError(errno.ENOTEMPTY, reason, directory.path)


def _create_log(directory: LockedDirectory, listing: Listing, options: OpenOptions) -> tuple[RecoveredLog, SegmentFile]:
    _refuse_other_directory(directory.log, listing, options.create)
    # A spare of a log that was deleted here would say that a segment of the new one is missing.
    if listing.temporary:
        for name in listing.temporary:
            directory.files.unlink(f"{directory.path}/{name}")
        directory.sync()
    # Before segment 0 exists, and even if another program created the directory. Later openings do so if they may.
    sync_names(directory.files, directory.path)
    queues = Queues(secrets.randbits(FIRST_QUEUE_ID_BITS), options.new_stores())
    log_id = secrets.token_bytes(LOG_ID_BYTES)
    file, end = make_first_segment(directory, log_id, queues.encoded_table())
    recovered = RecoveredLog(
        log_id=log_id,
        end=LogEnd(segment=0, table_end=end, offset=end, first_batch=1, last_batch=0, durable_batch=0),
        oldest_segment=0,
        size=file.reserved_bytes,
        queues=queues,
        tail=NOTHING,
        closed=False,
        created=True,
    )
    return recovered, file


def _may_stand_next_to_a_new_log(name: str) -> bool:
    return name in (LOCK_NAME, LAST_END_NAME, "lost+found") or name.startswith(".") or name.endswith(TEMPORARY_SUFFIX)


def _take_over(directory: LockedDirectory, recovered: RecoveredLog) -> SegmentFile:
    """Make the recovered log ready for its next batch: what follows its end zeroed, `CLOSED` removed, both durable.

    A segment with a second name keeps its tail: the next one will state where it ended.
    """
    path = directory.path_of(recovered.end.segment)
    file = SegmentFile(directory.files, path, directory.files.open(path), recovered.size)
    try:
        if not file.may_be_shared():
            zero_tail(file, recovered)
            file.reserved_bytes = recovered.end.offset
        if recovered.closed:
            directory.remove_closed()
    except BaseException:
        file.close()
        raise
    return file


def _reserve_again(file: SegmentFile, recovered: RecoveredLog) -> None:
    """Try to reserve the file's space up to its size: a file that was copied may have holes."""
    with contextlib.suppress(OSError):
        file.reserve(max(recovered.size, recovered.end.offset + RESERVE_BYTES), recovered.size)


def _prepare_spare(journal: Journal) -> None:
    """Try to make the spare. On a full disk the log opens without: appends are refused until there is one."""
    _try_now(journal.space.prepare_spare)


def _leave_shared_segment(journal: Journal, recovered: RecoveredLog) -> None:
    """Continue in a segment that only this log has. On a full disk the log opens without: each batch tries again."""
    logger.info(
        "%s has a second name (a hard link): it is left as it is, and the log continues in the next segment",
        segment_name(recovered.end.segment),
    )
    journal.has_old_tail = recovered.tail.not_zero is not None
    _try_now(partial(journal.roll, recovered.queues.pins.oldest()))
    _prepare_spare(journal)


def _try_now(work: Callable[[], object]) -> bool:
    """Do *work*, which the journal does again later if the disk refuses it now; return whether it was done."""
    try:
        work()
    except OSError:
        return False
    except LogIOError as error:
        raise error.__cause__ or error from None
    return True
