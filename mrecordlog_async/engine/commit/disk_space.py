"""Computes how much of the disk a log may take: the size of its segments, its limit, the room of the file system."""

from __future__ import annotations

from mrecordlog_async.errors import LogFullError
from mrecordlog_async.format.frame import BLOCK_BYTES
from mrecordlog_async.storage.locked_directory import LockedDirectory

SEGMENTS_MIN = 8
"""`disk_bytes` has room for at least this many segments, whatever `segment_bytes` says."""


class DiskSpace:
    """Disk limits of one log. They do not change while the log is open.

    segment_bytes: where a segment is full, counted after its table. limit_bytes: space of all segments and the spare.
    """

    def __init__(self, directory: LockedDirectory, segment_bytes: int, limit_bytes: int) -> None:
        # If the limit holds less than a few segments, they are smaller: only a whole one that is dead is removed.
        self.segment_bytes = max(min(segment_bytes, limit_bytes // SEGMENTS_MIN), BLOCK_BYTES)
        self.limit_bytes = limit_bytes
        self._capacity_bytes = directory.capacity_bytes()  # as it was when the log was opened

    def batch_bytes_max(self, preamble_bytes: int) -> tuple[int, str]:
        """Return the largest batch of a log that holds nothing else, and the name of what allows no more.

        Args:
            preamble_bytes: Bytes before a segment's first batch and its reserve.
        """
        limit, capacity = self.limit_bytes, self._capacity_bytes
        least, name = (capacity, "the file system") if 0 < capacity < limit else (limit, "disk_bytes")
        # Besides its own preamble: the segment before it, which was a spare, and the next spare. Each has a quarter
        # more than it needs (`Spare.prepare`).
        return max(least - preamble_bytes - 2 * (preamble_bytes + preamble_bytes // 4), 0), name

    def room(self, taken: int) -> int:
        """Return how many bytes more may be reserved by a log that takes *taken*."""
        return self.limit_bytes - taken

    def allows_recycling(self, taken: int) -> bool:
        """Return whether a log that takes *taken* bytes is far enough below the limit to keep a whole segment as spare.

        Otherwise the spare would soon be cut again, to make room.
        """
        return self.room(taken) >= self.segment_bytes

    def check(self, more: int, taken: int) -> None:
        """Raise LogFullError if *more* bytes do not fit on top of *taken*."""
        if more > 0 and more > self.room(taken):
            raise LogFullError("disk", taken, self.limit_bytes)
