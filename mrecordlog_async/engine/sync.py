"""Syncs whose failure ends the log. A failed sync may have lost pages that a second one would not report."""

from __future__ import annotations

from mrecordlog_async.engine.commit import LogIOError
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.segment import SegmentFile


def sync_file(file: SegmentFile) -> None:
    """Bring a segment to the medium; LogIOError if that fails."""
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
