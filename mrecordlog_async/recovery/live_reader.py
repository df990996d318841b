"""Read a whole log while its writer lives: list, read, and read on where the writer was faster.

A segment that is removed before its turn held only what is truncated by then. The truncates lie behind the end that was
read first, so the reader reads on (`Follower`) until it has met them, and shows the state at that later end: an exact
one. That succeeds where the writer does not remove what it writes as fast as it can be read. Where it does, the reader
tries `LOST_MAX` times, then shows what it has and takes for truncated what was removed: each queue then holds what it
held at the end that was read, less what was truncated since.
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
"""How often the directory is listed again when the writer changed it between the listing and the first read."""

LOST_MAX = 3
"""How often the log is read anew because the writer was too fast to be read on."""


def read_live_log(files: FileSystem, directory: str, on_progress: Progress | None = None) -> RecoveredLog | None:
    """Read the log in *directory* without the lock; None if there is none.

    Raises CorruptionError for damage and OSError for what cannot be read.
    """
    lost = 0
    for attempt in range(1, ATTEMPTS_MAX + 1):
        names = sorted(files.names(directory))
        try:
            reading = read_without_lock(files, directory, names, on_progress=on_progress)
            if reading is None or _is_whole(files, directory, reading):
                return reading.recovered if reading is not None else None
            lost += 1
            if lost == LOST_MAX:
                return _give_in(reading)
        except (FileNotFoundError, CorruptionError):
            # A segment that is gone was reclaimed, a CLOSED that is gone no longer counts, a new segment was rolled to.
            if attempt == ATTEMPTS_MAX or sorted(files.names(directory)) == names:
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
            recovered.torn_range = None  # it was half of a batch that is whole now
        if recovered.oldest_segment <= gone:
            raise CorruptionError(segment_name(gone), None, "the segment is missing, and it held live data")
    check_nothing_is_missing(recovered, first_table)
    return True


def _give_in(reading: Reading) -> RecoveredLog:
    """Take for truncated what the segments held that were removed before they could be read."""
    recovered, first_table, gone = reading
    assert gone is not None
    for entry in first_table.entries:
        queue = recovered.queues.by_id(entry.id)
        if queue is not None and queue.start < entry.next:
            recovered.queues.apply(recovered.segment, Truncate(entry.id, entry.next - 1))
    recovered.oldest_segment = max(recovered.oldest_segment, gone + 1)
    recovered.overtaken = True
    return recovered
