"""Read a whole log while its writer runs: list, read, and read on if the writer was faster.

A segment that is removed before its turn held only truncated records. The truncates may lie beyond the end
that was read, so the reader continues (`Follower`) until it reaches them, and shows the state at that later end, which
is exact.
That fails only if the writer removes segments as fast as they can be read. Then the reader tries `LOST_MAX` times and
finally treats what was removed as truncated: each queue then holds what it held at the end that was read, less what was
truncated since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.controls import Truncate
from mrecordlog_async.memory.store import RetainedStores
from mrecordlog_async.recovery.follower import Follower, LostTrackError
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.recovery import Progress, Reading, check_nothing_is_missing, read_without_lock
from mrecordlog_async.recovery.replay import NewStores
from mrecordlog_async.recovery.torn_or_damaged import NOTHING
from mrecordlog_async.storage.directory import Listing, LogDirectory
from mrecordlog_async.storage.segment import segment_name

LOST_MAX = 3
"""Times that the log is read again because the writer was faster than the reader."""


def read_live_log(
    directory: LogDirectory,
    on_progress: Progress | None = None,
    new_stores: NewStores = RetainedStores,
) -> RecoveredLog:
    """Read the log in *directory* without the lock.

    *new_stores* decides what is kept of the records.

    Raises:
        FileNotFoundError: There is no log.
        CorruptionError: Acknowledged data is damaged.
        OSError: A file cannot be read.
    """
    attempt = directory.read_while_it_moves(_LiveReader(directory, on_progress, new_stores).read, _Attempt.is_last)
    return attempt.reading.recovered if attempt.is_whole else _give_in(attempt.reading)


class _Attempt(NamedTuple):
    """A log that was read, whether all of it was, and how often the writer was faster so far."""

    reading: Reading
    is_whole: bool
    lost: int

    def is_last(self) -> bool:
        return self.is_whole or self.lost == LOST_MAX


class _LiveReader:
    """Reads the log again and again until it was faster than the writer."""

    def __init__(self, directory: LogDirectory, on_progress: Progress | None, new_stores: NewStores) -> None:
        self._directory = directory
        self._new_stores = new_stores
        self._on_progress = on_progress
        self._lost = 0

    def read(self, listing: Listing) -> _Attempt:
        reading = read_without_lock(
            self._directory, listing, on_progress=self._on_progress, new_stores=self._new_stores
        )
        is_whole = _is_whole(self._directory, reading)
        self._lost += not is_whole
        return _Attempt(reading, is_whole, self._lost)


def _is_whole(directory: LogDirectory, reading: Reading) -> bool:
    """Read on until the removed records are truncated; return False if the writer is too fast."""
    recovered, first_table, removed = reading
    if removed is not None:
        end_before = replace(recovered.end)
        try:
            Follower(directory, recovered).read_on()
        except LostTrackError:
            return False
        if recovered.end != end_before:
            recovered.tail = NOTHING  # it was half of a batch that is complete now
        if recovered.oldest_segment <= removed:
            raise CorruptionError(segment_name(removed), None, "the segment is missing, and it held live data")
    check_nothing_is_missing(recovered, first_table)
    return True


def _give_in(reading: Reading) -> RecoveredLog:
    """Treat the records of segments that were removed before they could be read as truncated."""
    recovered, first_table, removed = reading
    assert removed is not None
    for entry in first_table.entries:
        queue = recovered.queues.by_id(entry.id)
        if queue is not None and queue.first_position < entry.next_position:
            recovered.queues.apply(recovered.end.segment, Truncate(entry.id, entry.next_position - 1))
    recovered.oldest_segment = max(recovered.oldest_segment, removed + 1)
    recovered.overtaken = True
    return recovered
