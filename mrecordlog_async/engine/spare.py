"""The next segment, kept ready under a temporary name with its space reserved, so that rolling works on a full disk.

Everything here blocks and belongs to the log's thread; the loop may read `reserved_bytes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mrecordlog_async.engine.commit import LogIOError
from mrecordlog_async.engine.sync import sync_directory, sync_file
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.format.header import SegmentHeader
from mrecordlog_async.format.table import Table, encode_table
from mrecordlog_async.storage.direct import UNSUPPORTED, Staging
from mrecordlog_async.storage.locked_directory import LockedDirectory
from mrecordlog_async.storage.new_segment import write_preamble
from mrecordlog_async.storage.segment import SegmentFile


class Spare:
    """At most one file that no batch has entered. `file` is None while there is none."""

    def __init__(self, directory: LockedDirectory, staging: Staging | None = None) -> None:
        """With *staging*, the segments that this becomes are written past the page cache, if their files can be."""
        self.file: SegmentFile | None = None
        self._directory = directory
        self._staging = staging

    @property
    def reserved_bytes(self) -> int:
        """Space that the spare takes on the disk."""
        return self.file.reserved_bytes if self.file is not None else 0

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
        try:
            spare.reserve(wanted, wanted + wanted // 4)
        except OSError:
            if self.file is None:
                self._remove(spare)
            raise
        self.file = spare
        sync_file(spare)

    def publish(self, header: SegmentHeader, table: Table) -> tuple[SegmentFile, int]:
        """Make the spare the segment of *header*, durable with its name; there is no spare after that.

        Returns:
            The segment, and the offset where its first batch begins.

        Raises:
            OSError: It failed before the segment had its name; the file is removed.
            LogIOError: Whether the segment exists is not known, or not for certain on the medium.
        """
        spare, self.file = self.file, None
        assert spare is not None, "prepared just before"
        path = self._directory.path_of(header.segment)
        try:
            table_end = self._write_preamble(spare, header, encode_table(table))
            # Durable before it has its name: a segment without an intact header and table is damage.
            sync_file(spare)
            self._rename(spare, path)
            sync_directory(self._directory)
        except OSError:
            self._remove(spare)
            raise
        except LogIOError:
            spare.close()
            raise
        spare.path = path
        return spare, table_end

    def discard(self) -> None:
        """Close and remove the spare, if there is one."""
        if self.file is not None:
            self._remove(self.file)
            self.file = None

    def _write_preamble(self, spare: SegmentFile, header: SegmentHeader, table: Sequence[Buffer]) -> int:
        """Write the segment's head directly if the file can be written so, which is found out here."""
        if self._staging is not None:
            spare.begin_direct(self._staging, 0)
        try:
            return write_preamble(spare, header, table)
        except OSError as error:
            if not spare.is_direct or error.errno not in UNSUPPORTED:
                raise
            spare.end_direct()
            return write_preamble(spare, header, table)

    def _rename(self, spare: SegmentFile, path: str) -> None:
        try:
            self._directory.files.rename(spare.path, path)
        except OSError as error:
            # Some errors leave open whether the rename happened. If the segment exists while batches are still written
            # to the previous one, the next open reports damage.
            if self._exists(path):
                raise LogIOError(f"rename failed half-way: {error}") from error
            raise

    def _exists(self, path: str) -> bool:
        """Return whether the directory lists *path*; True if it cannot be listed."""
        try:
            return path.rpartition("/")[2] in self._directory.files.list_names(self._directory.path)
        except OSError:
            return True

    def _remove(self, spare: SegmentFile) -> None:
        spare.close()
        with contextlib.suppress(OSError):
            self._directory.files.unlink(spare.path)
