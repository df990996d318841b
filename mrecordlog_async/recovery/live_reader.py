"""Read a whole log while its writer runs: list, read, and read on where the writer was faster.

A segment that is removed before its turn held only truncated records. The truncates may come after the end that was
read, so the reader reads on (`Follower`) until it has met them, and shows the state at that later end, which is exact.
That fails only if the writer removes segments as fast as they can be read. Then the reader tries `LOST_MAX` times and
finally treats what was removed as truncated: each queue then holds what it held at the end that was read, less what was
truncated since.
"""

from __future__ import annotations

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.record import Truncate
from mrecordlog_async.recovery.follower import Follower, LostTrackError
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.recovery import Progress, Reading, check_nothing_is_missing, read_without_lock
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.segment import segment_name

ATTEMPTS_MAX = 20
"""How often the directory is listed again because the writer changed it after the listing."""

LOST_MAX = 3
"""How often the log is read again because the writer was faster than the reader."""


def read_live_log(files: FileSystem, directory: str, on_progress: Progress | None = None) -> RecoveredLog | None:
    """Read the log in *directory* without the lock; None if the directory has no log.

    Raises CorruptionError for damage and OSError for what cannot be read.
    """
    lost = 0
    for attempt in range(1, ATTEMPTS_MAX + 1):
        names = sorted(files.list_names(directory))
        try:
            reading = read_without_lock(files, directory, names, on_progress=on_progress)
            if reading is None or _is_whole(files, directory, reading):
                return reading.recovered if reading is not None else None
            lost += 1
            if lost == LOST_MAX:
                return _give_in(reading)
        except (FileNotFoundError, CorruptionError):
            # A missing segment was reclaimed, a missing CLOSED no longer counts, or the writer rolled to a new segment.
            if attempt == ATTEMPTS_MAX or sorted(files.list_names(directory)) == names:
                raise
    raise AssertionError("the last attempt returns or raises")


def _is_whole(files: FileSystem, directory: str, reading: Reading) -> bool:
    """Read on until what was removed is truncated; False where the writer is too fast. CorruptionError as in `open`."""
    recovered, first_table, gone = reading
    if gone is not None:
        end = recovered.segment, recovered.end
        try:
            Follower(files, directory, recovered).read_on()
        except LostTrackError:
            return False
        if end != (recovered.segment, recovered.end):
            recovered.torn_range = None  # it was half of a batch that is complete now
        if recovered.oldest_segment <= gone:
            raise CorruptionError(segment_name(gone), None, "the segment is missing, and it held live data")
    check_nothing_is_missing(recovered, first_table)
    return True


def _give_in(reading: Reading) -> RecoveredLog:
    """Treat the records of segments that were removed before they could be read as truncated."""
    recovered, first_table, gone = reading
    assert gone is not None
    for entry in first_table.entries:
        queue = recovered.queues.by_id(entry.id)
        if queue is not None and queue.first_position < entry.next_position:
            recovered.queues.apply(recovered.segment, Truncate(entry.id, entry.next_position - 1))
    recovered.oldest_segment = max(recovered.oldest_segment, gone + 1)
    recovered.overtaken = True
    return recovered
