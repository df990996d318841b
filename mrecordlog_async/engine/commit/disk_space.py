"""Manages the disk space of a log: of its current segment, the spare and the older segments, within its limits.

Strategy:
1. Space is reserved before a batch is written into it. What the limit or the disk refuses is refused with nothing
   written: LogFullError or OSError.
2. Each segment ends with a **reserve** that appends leave alone: truncates and deletes, which free space, are stored
   in it on a full disk.
3. A **spare** (the next segment as a `.tmp`, its space reserved) is kept ready, so that rolling works on a full disk:
   only a roll lets the space of older segments be freed. A dead segment may become the spare. It is cut before a batch
   is refused for lack of space.

The event loop may read numbers at any time, and decides from them between two jobs of the log's thread. The rest blocks
and belongs to the log's thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from mrecordlog_async.engine.commit.batch import CommitRequest
from mrecordlog_async.engine.commit.other_segments import OlderSegments, Spare
from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.errors import LogFullError
from mrecordlog_async.format.frame import BLOCK_BYTES, frames_bytes_max
from mrecordlog_async.format.header import HEADER_BYTES
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.direct import Staging, whole_blocks
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES, LockedDirectory
from mrecordlog_async.storage.segment import LogEnd, SegmentFile

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

SEGMENTS_MIN = 8
"""`disk_bytes` has room for at least this many segments, whatever `segment_bytes` says."""


def is_full(refusal: OSError | LogFullError) -> bool:
    """Return whether *refusal* is for lack of space, which truncates, deletes or other programs may free."""
    return isinstance(refusal, LogFullError) or refusal.errno in _OUT_OF_SPACE


class DiskSpace:
    """The disk space of one log. The journal owns it, and says which segment is the current one.

    limit_bytes: for all segments and the spare. opening_bytes: what the table grows by with the first batch.
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
        undeletable = [(number, 0) for number in recovered.leftovers]
        self.older = OlderSegments(directory, undeletable + recovered.older)
        self.older.gathered.update(recovered.gathered)
        self._capacity_bytes = directory.capacity_bytes()  # as it was when the log was opened
        self._queues = recovered.queues
        self._file = file
        self._end = recovered.end
        self._recycles = recycle

    # What the event loop reads between batches.

    @property
    def complete(self) -> list[tuple[int, int]]:
        """(number, bytes) of the segments before the current one, oldest first."""
        return self.older.segments

    @property
    def current(self) -> int:
        """The number of the segment that is being written."""
        return self._end.segment

    @property
    def taken_bytes(self) -> int:
        """Space reserved by all segments, their gathered files, and the spare."""
        current, older = max(self._file.reserved_bytes, self._end.offset), self.older
        return older.bytes + older.gathered_bytes + older.unfreed_bytes + current + self.spare.reserved_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of segments that hold something."""
        return self.older.bytes + self._end.offset

    def note_gathered(self, number: int, size: int) -> None:
        """Count the gathered file of segment *number*, which has live records. Called on the event loop."""
        self.older.gathered[number] = size

    def is_gathered(self, number: int) -> bool:
        """Return whether segment *number* has a gathered file, as far as it was noted."""
        return number in self.older.gathered

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

    def is_full(self, end: int) -> bool:
        """Return whether a batch up to *end* belongs into the next segment; the first batch may have any size."""
        at = self._end
        return at.last_batch >= at.first_batch and end - at.table_end > self._segment_bytes

    # What the log's thread does.

    def enter(self, file: SegmentFile, end: LogEnd) -> None:
        """Note that the log continues in *file* at *end*; the segment until now becomes an older one."""
        self.older.add(self._end.segment, self._file.reserved_bytes)
        self._file, self._end = file, end

    def with_room(self, work: Callable[..., object], *arguments: object) -> None:
        """Do *work*. Where it finds no space, gathered files are given up until it does: they can be made again."""
        while True:
            try:
                work(*arguments)
                return
            except (OSError, LogFullError) as refusal:
                if not is_full(refusal) or not self.older.give_up_gathered():
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

    def reclaim(self, durable_oldest: int, recycle: bool = True) -> int:
        """Remove the segments below the oldest live one; return how many were removed (see `OlderSegments`).

        Args:
            durable_oldest: What is on the medium for certain.
            recycle: One of them may become the spare; False if its space is needed, or nothing is live.
        """
        return self.older.reclaim(durable_oldest, self._reuse if recycle and self._recycles else _leave)

    def _reuse(self, path: str) -> bool:
        """Make a dead segment the spare, unless that is one already; return whether the file was taken away.

        Only for direct writes: through the cache, a write of a part of a page must first read what the page held. And
        only far enough below the limit: otherwise the spare would soon be cut again, to make room.
        """
        if self.spare.is_recycled or not self._file.is_direct or self._room() < self._segment_bytes:
            return False
        fresh = self._preamble_bytes(0)
        whole = whole_blocks(fresh + self._segment_bytes)
        return self.spare.recycle(path, self._end.segment + 1, max(whole // 2, fresh), whole)

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
            raise LogFullError("disk", self.taken_bytes, self.limit_bytes) from self.older.error

    def _preamble_bytes(self, more_table_bytes: int) -> int:
        """Return what the next segment needs before its first batch, and the reserve."""
        table_bytes = frames_bytes_max(self._queues.table_bytes + more_table_bytes + self.opening_bytes)
        return whole_blocks(HEADER_BYTES + table_bytes + RESERVE_BYTES)


def _leave(path: str) -> bool:
    """Leave a dead segment to be removed."""
    return False
