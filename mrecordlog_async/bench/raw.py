"""The yardstick: what the disk takes for the same writes and syncs, from one thread that does nothing else.

`RecordingFiles` stands between a log and the disk and notes what it wrote and when it synced. `RawDisk` does the same
again with pwrite and fdatasync on a file whose blocks were written before, so no allocation and no journal is in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.options import MIB
from mrecordlog_async.storage.filesystem import Buffer, OsFileSystem

SYNC = -1
"""Stands in a list of calls for a sync; everything else there is a write of so many bytes."""

FILE_BYTES = 64 * MIB
CONTENT_BYTES = 16 * MIB
"""Memory that the yardstick holds; larger writes take several calls."""


class RecordingFiles(OsFileSystem):
    """The real disk, with a list of what was asked of it. Costs one list append a call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write, and note how much."""
        taken = super().write(handle, buffers, offset)
        self.calls.append(taken)
        return taken

    def sync(self, handle: int) -> None:
        """Sync, and note that."""
        super().sync(handle)
        self.calls.append(SYNC)


class RawStretch(NamedTuple):
    """What a replay took: all in all, and each write together with the sync behind it."""

    seconds: float
    latencies: list[float]


class RawDisk:
    """A file in *directory* with its blocks in place. Blocking: call it from a thread."""

    def __init__(self, directory: str, file_bytes: int = FILE_BYTES) -> None:
        self._path = os.path.join(directory, "raw")
        self._file_bytes = file_bytes
        self._content = memoryview(os.urandom(min(file_bytes, CONTENT_BYTES)))
        self._offset = 0
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        written = 0
        while written < file_bytes:
            written += os.pwrite(self._handle, self._content[: file_bytes - written], written)
        os.fsync(self._handle)

    def replay(self, calls: Sequence[int]) -> RawStretch:
        """Do *calls* again, one behind the other."""
        clock = time.perf_counter
        latencies: list[float] = []
        begun = since = clock()
        syncs = SYNC in calls
        for call in calls:
            if call == SYNC:
                self._sync()
            else:
                self._write(call)
            if call == SYNC or not syncs:
                now = clock()
                latencies.append(now - since)
                since = now
        return RawStretch(max(clock() - begun, 1e-9), latencies)

    def close(self) -> None:
        """Remove the file."""
        os.close(self._handle)
        os.unlink(self._path)

    def _sync(self) -> None:
        OsFileSystem().sync(self._handle)

    def _write(self, size: int) -> None:
        while size:
            offset = self._offset if self._offset < self._file_bytes else 0
            taken = os.pwrite(self._handle, self._content[: min(size, self._file_bytes - offset)], offset)
            self._offset = offset + taken
            size -= taken
