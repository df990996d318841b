"""Manages the disk space of a log: of its current segment, the spare and the older segments, within its limits.

Strategy:
1. Space is reserved before a batch is written into it. What the limit or the disk refuses is refused with nothing
   written: LogFullError or OSError.
2. Each segment ends with a **reserve** that appends leave alone: truncates and deletes, which free space, are stored
   in it on a full disk.
3. A **spare** (the next segment as a `.tmp`, its space reserved) is kept ready, so that rolling works on a full disk:
   only a roll lets the space of older segments be freed. It is a fresh, small file, or was a segment (`DeadSegments`).
   It is cut before a batch is refused for lack of space.

The event loop may read numbers at any time, and decides from them between two jobs of the log's thread. The rest blocks
and belongs to the log's thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from mrecordlog_async.engine.commit.batch import CommitRequest, LogIOError, sync_directory, sync_file
from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.format.frame import BLOCK_BYTES, Buffer, frames_bytes_max
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.direct import Staging, whole_blocks
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.gathered_files import gathered_path
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES, LockedDirectory, write_preamble
from mrecordlog_async.storage.segment import LogEnd, SegmentFile
from mrecordlog_async.support.disk_errors import has_no_room

logger = logging.getLogger("mrecordlog_async")

SEGMENTS_MIN = 8
"""`disk_bytes` has room for at least this many segments, whatever `segment_bytes` says."""


def is_full(refusal: OSError | LogFullError) -> bool:
    """Return whether *refusal* is for lack of space, which truncates, deletes or other programs may free."""
    return isinstance(refusal, LogFullError) or has_no_room(refusal)


class DiskSpace:
    """The disk space of one log. The journal owns it, and says which segment is the current one.

    limit_bytes: for all segments and the spare. opening_bytes: what the table grows by with the first batch.
    complete: (number, bytes) of the segments before the current one, oldest first. gathered: the sizes of the gathered
    files next to them, by number. `DeadSegments` removes both, and notes in unfreed what then still takes space, as
    (handle, bytes), and in unremoved why it did not remove all of them the last time.
    """

    def __init__(
        self,
        directory: LockedDirectory,
        file: SegmentFile,
        recovered: RecoveredLog,
        segment_bytes: int,
        limit_bytes: int,
        staging: Staging | None = None,
        *,
        recycle: bool = False,
    ) -> None:
        """Take over the files of the log *recovered*, whose last segment is *file*; *staging*: see `Spare`.

        segment_bytes: where a segment is full, counted after its table. *recycle*: dead segments may become spares.
        """
        # If the limit holds less than a few segments, they are smaller: only a whole one that is dead is removed.
        self._segment_bytes = max(min(segment_bytes, limit_bytes // SEGMENTS_MIN), BLOCK_BYTES)
        self.limit_bytes = limit_bytes
        self.opening_bytes = 0
        self.spare = Spare(directory, staging)
        self.complete = [*((number, 0) for number in recovered.leftovers), *recovered.older]
        self.complete_bytes = sum(size for _, size in self.complete)
        self.gathered = dict(recovered.gathered)  # the event loop adds to it
        self.unfreed: list[tuple[int, int]] = []
        self.unremoved: OSError | None = None
        self._directory = directory
        self._capacity_bytes = directory.capacity_bytes()  # as it was when the log was opened
        self._queues = recovered.queues
        self._file = file
        self._end = recovered.end
        self._recycles = recycle

    # What the event loop reads between batches.

    @property
    def current(self) -> int:
        """The number of the segment that is being written."""
        return self._end.segment

    @property
    def taken_bytes(self) -> int:
        """Space reserved by all segments, their gathered files, and the spare."""
        current = max(self._file.reserved_bytes, self._end.offset) + self.spare.reserved_bytes
        return self.complete_bytes + self.gathered_bytes + sum(size for _, size in self.unfreed) + current

    @property
    def gathered_bytes(self) -> int:
        """Space of the gathered files."""
        return sum(list(self.gathered.values()))

    @property
    def written_bytes(self) -> int:
        """Bytes of segments that hold something."""
        return self.complete_bytes + self._end.offset

    def note_gathered(self, number: int, size: int) -> None:
        """Count the gathered file of segment *number*, which has live records. Called on the event loop."""
        self.gathered[number] = size

    def is_gathered(self, number: int) -> bool:
        """Return whether segment *number* has a gathered file, as far as it was noted."""
        return number in self.gathered

    def batch_bytes_max(self) -> tuple[int, str]:
        """Return the size of the largest batch that an empty log can take, and the name of what limits it."""
        limit, capacity, preamble = self.limit_bytes, self._capacity_bytes, self._preamble_bytes(0)
        least, name = (capacity, "the file system") if 0 < capacity < limit else (limit, "disk_bytes")
        # Besides its own preamble: the segment before it, which was a spare, and the next spare. Each has a quarter
        # more than it needs (`Spare.prepare`). The reservation of the batch ends at a whole block.
        return max(least - preamble - 2 * (preamble + preamble // 4) - DIRECT_BLOCK_BYTES, 0), name

    def wants_spare(self, more_table_bytes: int = 0) -> bool:
        """Return whether a spare must be made, or must grow with the table."""
        return self.spare.file is None or self.spare.reserved_bytes < self._preamble_bytes(more_table_bytes)

    @property
    def full_from(self) -> int:
        """The offset at which the current segment is full."""
        return self._end.table_end + self._segment_bytes

    def is_full(self, end: int) -> bool:
        """Return whether a batch up to *end* belongs into the next segment; the first batch may have any size."""
        return self._end.last_batch >= self._end.first_batch and end > self.full_from

    # What the log's thread does.

    def enter(self, file: SegmentFile, end: LogEnd) -> None:
        """Note that the log continues in *file* at *end*; the segment until now becomes an older one."""
        self.complete.append((self._end.segment, self._file.reserved_bytes))
        self.complete_bytes += self._file.reserved_bytes
        self._file, self._end = file, end

    def with_room(self, work: Callable[..., object], *arguments: object) -> None:
        """Do *work*. Where it finds no space, gathered files are given up until it does: they can be made again."""
        while True:
            try:
                work(*arguments)
                return
            except (OSError, LogFullError) as refusal:
                if not is_full(refusal) or not self._give_up_gathered():
                    raise

    def reserve(self, end: int, request: CommitRequest) -> None:
        """Reserve space for a batch up to *end* and the reserve after it, which only some batches may use.

        Raises:
            OSError: The disk has no room.
            LogFullError: The batch does not fit below the log's limit.
        """
        wanted = whole_blocks(end + RESERVE_BYTES)
        if wanted <= self._file.reserved_bytes:
            return
        try:
            self._try_to_reserve(end, wanted, request)
        except (OSError, LogFullError):
            if not self.cut_spare(request.more_table_bytes):
                raise
            if request.reserve is Reserve.NOTHING:
                self.prepare_spare(request.more_table_bytes)  # there is none if the old one could not be cut
            self._try_to_reserve(end, wanted, request)

    def check_room_after_roll(self, batch_bytes: int) -> None:
        """Raise LogFullError for a batch that will not fit into the next segment, before that segment is used up."""
        wanted = whole_blocks(self._preamble_bytes(0) + batch_bytes)
        self._check(wanted - self.spare.reserved_bytes)

    def prepare_spare(self, more_table_bytes: int = 0) -> None:
        """Prepare the next segment: create it, reserve space for its table and the reserve, and sync it.

        A spare that cannot grow is kept, because it still serves the table as it is.

        Args:
            more_table_bytes: Bytes by which the table is about to grow.

        Raises:
            OSError: The disk has no room.
            LogIOError: The sync failed. The log must stop.
        """
        if self.wants_spare(more_table_bytes):
            self.spare.prepare(self._end.segment + 1, self._preamble_bytes(more_table_bytes))

    def cut_spare(self, more_table_bytes: int = 0) -> bool:
        """Cut the spare to the size of a fresh one; return whether that freed any space.

        Args:
            more_table_bytes: Bytes by which the table is about to grow: the spare must still serve it.
        """
        fresh = self._preamble_bytes(more_table_bytes)
        return self.spare.cut(whole_blocks(fresh + fresh // 4))

    def wanted_of_dead(self) -> tuple[int, int, int] | None:
        """Return which segment a dead one should become: its number, and its bytes at least and at most. None if not.

        Only for direct writes: through the cache, a write of a part of a page must first read what the page held. And
        only far enough below the limit: otherwise the spare would soon be cut again, to make room.
        """
        is_gain = self._recycles and not self.spare.is_recycled and self._file.is_direct
        if not is_gain or self._room() < self._segment_bytes:
            return None
        fresh = self._preamble_bytes(0)
        whole = whole_blocks(fresh + self._segment_bytes)
        return self._end.segment + 1, max(whole // 2, fresh), whole

    def _try_to_reserve(self, end: int, wanted: int, request: CommitRequest) -> None:
        file = self._file
        limit = max(wanted, self._end.table_end + self._segment_bytes + RESERVE_BYTES)
        try:
            reserved = file.reserved_bytes
            if request.reserve is not Reserve.ALL:
                self._check(wanted - reserved)
            # For others too: what a truncate reserved beyond the limit, appends would use.
            limit = max(wanted, min(limit, reserved + self._room()))
            file.reserve(wanted, limit)
        except (OSError, LogFullError):
            if request.reserve is Reserve.NOTHING:
                raise
            least = end if request.reserve is Reserve.ALL else end + RESERVE_BYTES // 2
            if request.reserve is Reserve.HALF and least > file.reserved_bytes:
                raise
            file.reserve(least, least)

    def _room(self) -> int:
        """Return how many bytes more may be reserved."""
        return self.limit_bytes - self.taken_bytes

    def _check(self, more: int) -> None:
        """Raise LogFullError if *more* bytes do not fit below the limit; its cause is what keeps dead segments."""
        if more > 0 and more > self._room():
            raise LogFullError("disk", self.taken_bytes, self.limit_bytes) from self.unremoved

    def _preamble_bytes(self, more_table_bytes: int) -> int:
        """Return what the next segment needs before its first batch, and the reserve."""
        table_bytes = frames_bytes_max(self._queues.table_bytes + more_table_bytes + self.opening_bytes)
        return whole_blocks(HEADER_BYTES + table_bytes + RESERVE_BYTES)

    def _give_up_gathered(self) -> bool:
        """Remove the newest gathered file; return whether there was one.

        Readers go from old to new: the one that is furthest behind keeps its files for longest, and it is the one whose
        progress frees space.
        """
        if not self.gathered:
            return False
        number, size = max(list(self.gathered.items()))
        try:
            self._directory.check_place()
            with contextlib.suppress(FileNotFoundError):
                self._directory.files.unlink(gathered_path(self._directory.path, number))
        except OSError:
            return False
        self.gathered.pop(number, None)
        logger.warning(
            "%s: the disk is full: the gathered file of segment %d is removed (%d bytes); its records are read slower",
            *(self._directory.path, number, size),
        )
        return True


class Spare:
    """At most one file that no batch has entered. `file` is None while there is none.

    is_recycled: the file was a segment before (`DeadSegments`). The others are fresh and small.
    """

    def __init__(self, directory: LockedDirectory, staging: Staging | None = None) -> None:
        """With *staging*, the segments that this becomes are written past the page cache, if their files can be."""
        self.file: SegmentFile | None = None
        self.is_recycled = False
        self._directory = directory
        self._staging = staging

    @property
    def reserved_bytes(self) -> int:
        """Space that the spare takes on the disk."""
        file = self.file  # once: others than the log's thread ask this
        return file.reserved_bytes if file is not None else 0

    def cut(self, size: int) -> bool:
        """Give back the space of the spare after *size* bytes; return whether there was any."""
        spare = self.file
        if spare is None or spare.reserved_bytes <= size:
            return False
        try:
            if not spare.may_be_shared():
                self._directory.files.set_size(spare.handle, size)
                spare.reserved_bytes = size
                return True
        except OSError:
            pass
        self.discard()  # it belongs to others too, or its size is not known
        return True

    def prepare(self, number: int, wanted: int) -> None:
        """Make the spare for segment *number* if there is none, reserve *wanted* bytes and sync it.

        A spare that cannot grow is kept: it still serves a smaller table.

        Raises:
            OSError: The disk has no room.
            LogIOError: The sync failed.
        """
        spare = self.file
        if spare is None:
            files, path = self._directory.files, self._directory.path_of(number)
            spare = SegmentFile(files, *self._directory.create_temporary(path), 0)
            self.is_recycled = False
        try:
            spare.reserve(wanted, wanted + wanted // 4)
        except OSError:
            if self.file is None:
                self.remove(spare)
            raise
        self.file = spare
        sync_file(spare)

    def publish(self, header: SegmentHeader, table: Sequence[Buffer]) -> tuple[SegmentFile, int]:
        """Make the spare the segment of *header* and *table*, durable with its name; there is no spare after that.

        Returns:
            The segment, and the offset where its first batch begins.

        Raises:
            OSError: It failed before the segment had its name; the file is removed.
            LogIOError: Whether the segment exists is not known, or not for certain on the medium.
        """
        self._directory.check_place()
        spare, self.file, self.is_recycled = self.file, None, False
        assert spare is not None, "prepared just before"
        path = self._directory.path_of(header.segment)
        try:
            if self._staging is not None:
                spare.begin_direct(self._staging, 0)
            table_end = write_preamble(spare, header, table)
            # Durable before it has its name: a segment without an intact header and table is damage.
            sync_file(spare)
            self._rename(spare, path)
            sync_directory(self._directory)
        except OSError:
            self.remove(spare)
            raise
        except LogIOError:
            spare.close()
            raise
        spare.path = path
        return spare, table_end

    def discard(self) -> None:
        """Close and remove the spare, if there is one."""
        if self.file is not None:
            self.remove(self.file)
            self.file, self.is_recycled = None, False

    def _rename(self, spare: SegmentFile, path: str) -> None:
        try:
            self._directory.files.rename(spare.path, path)
        except OSError as error:
            # Some errors leave open whether the rename happened. If the segment exists while batches are still written
            # to the previous one, the next open reports damage.
            if self._directory.lists(path):
                raise LogIOError(f"rename failed half-way: {error}") from error
            raise

    def remove(self, spare: SegmentFile) -> None:
        """Close and remove *spare*, which this was or was about to become."""
        spare.close()
        with contextlib.suppress(OSError):
            self._directory.check_place()
            self._directory.files.unlink(spare.path)
