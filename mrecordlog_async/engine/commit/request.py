"""Values that pass between the event loop and the log's thread: a batch, its result, the failures that end the log."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from time import sleep
from typing import NamedTuple

from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.engine.planning.planned import PlannedRecord
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import SegmentFile


class LogIOError(Exception):
    """A write or sync of the segment failed; the OSError is `__cause__`. A retry that succeeds proves nothing."""


class Roll(Enum):
    """Conditions under which a batch may continue the log in a new segment."""

    IF_FULL = 0
    """The current segment is full, or has a second name."""
    IF_SHARED = 1
    """It has a second name: the disk has just refused a roll, or a roll would only use up space."""
    NEVER = 2
    """A batch that fits neither this segment nor the space reserved for it is not stored."""


class CommitRequest(NamedTuple):
    """A batch for the journal.

    oldest_segment: the oldest one with anything live, or None. sync: wait for the medium. reserve: what it may use of
    the segment's reserve. more_table_bytes: what its creates add to the queue table.
    """

    records: Sequence[PlannedRecord]
    oldest_segment: int | None
    sync: bool
    reserve: Reserve = Reserve.ALL
    roll: Roll = Roll.IF_FULL
    more_table_bytes: int = 0


class EncodedBatch(NamedTuple):
    """A batch as the bytes that belong at the log's end. end: the offset after them. time_ns: what its COMMIT says."""

    records: list[LogRecord]
    oldest_segment: int | None
    sync: bool
    buffers: list[Buffer]
    end: int
    time_ns: int


class CommitResult(NamedTuple):
    """A stored batch: its log records, the segment that holds them, bytes, and durations in seconds.

    tick: the time in its COMMIT, as `memory.times` counts it. batch: its number.
    """

    records: list[LogRecord]
    segment: int
    written_bytes: int
    synced: bool
    rolled: bool
    seconds: float
    sync_seconds: float
    tick: int
    batch: int


def sync_file(file: SegmentFile) -> None:
    """Bring a segment to the medium; LogIOError if that fails: a second sync would not report lost pages."""
    try:
        file.sync()
    except OSError as error:
        raise LogIOError(f"sync failed: {error}") from error


def sync_directory(directory: LockedDirectory) -> None:
    """Bring the directory's entries to the medium; LogIOError if that fails."""
    try:
        directory.sync()
    except OSError as error:
        raise LogIOError(f"sync of the directory failed: {error}") from error


def let_others_run() -> None:
    """Release the interpreter if another thread waits for it: otherwise the event loop waits 5 ms at each wake-up."""
    sleep(0)
