"""What passes between the event loop and the log's thread: a batch, its result, and the failures that end the log."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep
from typing import NamedTuple

from mrecordlog_async.engine.planning.planned import PlannedRecord
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import SegmentFile


class LogIOError(Exception):
    """A write or sync of the segment failed; the OSError is `__cause__`. A retry that succeeds proves nothing."""


class CommitRequest(NamedTuple):
    """A batch for the journal.

    oldest_segment: the oldest one with anything live, or None. sync: wait for the medium. needs_space: it holds appends
    or creates, which must leave the reserve alone. may_roll: False once a roll was refused. more_table_bytes: what its
    creates add to the queue table. leaves_bytes: how much of the reserve it must leave to others on a full disk.
    """

    records: Sequence[PlannedRecord]
    oldest_segment: int | None
    sync: bool
    needs_space: bool
    may_roll: bool = True
    more_table_bytes: int = 0
    leaves_bytes: int = 0


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
