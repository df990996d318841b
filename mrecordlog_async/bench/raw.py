"""The yardstick: what the disk takes for the same writes and syncs, from one thread that does nothing else.

`RecordingFiles` stands between a log and the disk and notes what it wrote and when it synced. `RawDisk` does the same
again with pwrite and fdatasync on a file whose blocks were written before, so no allocation and no journal is in it.
`FreshDisk` does it on blocks that are reserved but were never written, which is what a log that only grows has before
it: the difference between the two is the file system's, and no log's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mrecordlog_async.options import MIB
from mrecordlog_async.storage.filesystem import Buffer, OsFileSystem

SYNC = -1
"""Stands in a list of calls for a sync; everything else there is a write of so many bytes."""

FILE_BYTES = 64 * MIB
STEP_BYTES_MIN = 1 * MIB
STEP_BYTES_MAX = 64 * MIB
CONTENT_BYTES = 16 * MIB
"""Memory that the yardstick holds; larger writes take several calls."""


class RecordingFiles(OsFileSystem):
    """The real disk, with a list of what was asked of it and how long each sync took. Costs a list append a call."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.sync_seconds: list[float] = []

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write, and note how much."""
        taken = super().write(handle, buffers, offset)
        self.calls.append(taken)
        return taken

    def sync(self, handle: int) -> None:
        """Sync, and note that."""
        begun = time.perf_counter()
        super().sync(handle)
        self.sync_seconds.append(time.perf_counter() - begun)
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
        return _replay(calls, self._write, partial(OsFileSystem().sync, self._handle))

    def close(self) -> None:
        """Remove the file."""
        os.close(self._handle)
        os.unlink(self._path)

    def _write(self, size: int) -> None:
        while size:
            offset = self._offset if self._offset < self._file_bytes else 0
            taken = os.pwrite(self._handle, self._content[: min(size, self._file_bytes - offset)], offset)
            self._offset = offset + taken
            size -= taken


class FreshDisk:
    """The same on a file of its own for each replay, reserved in the log's steps ahead of the writes."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "raw-fresh")
        self._content = memoryview(os.urandom(CONTENT_BYTES))

    def replay(self, calls: Sequence[int]) -> RawStretch:
        """Do *calls* again; reserving is part of the time."""
        files = OsFileSystem()
        handle = files.create(self._path)
        end = reserved = 0
        step = STEP_BYTES_MIN

        def write(size: int) -> None:
            nonlocal end, reserved, step
            if end + size > reserved:
                more = max(step, end + size - reserved)
                files.reserve(handle, reserved, more)
                reserved += more
                step = min(step * 2, STEP_BYTES_MAX)
            while size:
                taken = os.pwrite(handle, self._content[:size], end)
                end += taken
                size -= taken

        try:
            return _replay(calls, write, partial(files.sync, handle))
        finally:
            files.close(handle)
            files.unlink(self._path)


def _replay(calls: Sequence[int], write: Callable[[int], None], sync: Callable[[], None]) -> RawStretch:
    clock = time.perf_counter
    latencies: list[float] = []
    begun = since = clock()
    syncs = SYNC in calls
    for call in calls:
        if call == SYNC:
            sync()
        else:
            write(call)
        if call == SYNC or not syncs:
            now = clock()
            latencies.append(now - since)
            since = now
    return RawStretch(max(clock() - begun, 1e-9), latencies)
