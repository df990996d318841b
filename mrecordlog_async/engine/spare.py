"""The next segment, kept ready under a temporary name with its space reserved, so that rolling works on a full disk.

Everything here blocks and belongs to the log's thread; the loop may read `reserved_bytes`.
"""

from __future__ import annotations

import contextlib

from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.new_segment import create_or_replace
from mrecordlog_async.storage.segment import TEMPORARY_SUFFIX, SegmentFile, segment_name


class Spare:
    """At most one file that no batch has entered. `file` is None while there is none."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self.file: SegmentFile | None = None
        self._files = files
        self._directory = directory

    @property
    def reserved_bytes(self) -> int:
        """Space that the spare takes on the disk."""
        return self.file.reserved_bytes if self.file is not None else 0

    def prepare(self, number: int, wanted: int) -> SegmentFile:
        """Make the spare for segment *number* if there is none, and reserve *wanted* bytes. The caller syncs it.

        OSError if the disk has no room; a spare that cannot grow is kept, it still serves a smaller table.
        """
        spare = self.file
        if spare is None:
            path = f"{self._directory}/{segment_name(number)}{TEMPORARY_SUFFIX}"
            spare = SegmentFile(self._files, path, create_or_replace(self._files, path), 0)
        try:
            spare.reserve(wanted, wanted + wanted // 4)
        except OSError:
            if self.file is None:
                self.remove(spare)
            raise
        self.file = spare
        return spare

    def take(self) -> SegmentFile:
        """Hand the spare over; there is none then."""
        spare, self.file = self.file, None
        assert spare is not None, "prepared just before"
        return spare

    def discard(self) -> None:
        """Close and remove the spare, if there is one."""
        if self.file is not None:
            self.remove(self.file)
            self.file = None

    def remove(self, spare: SegmentFile) -> None:
        """Close *spare*, which was taken or is to be given up, and remove its temporary name."""
        spare.close()
        with contextlib.suppress(OSError):
            self._files.unlink(spare.path)
