"""The raw disk: how long the same writes and syncs take in one thread that does nothing else.

`RecordingFiles` sits between a log and the disk and records each write and sync. `RawDisk` replays them with pwrite and
fdatasync on a file whose blocks were written before, so the time contains neither allocation nor the file system's
journal. `FreshDisk` replays them on blocks that are reserved but were never written, like those of a growing log: the
difference between the two is the file system's cost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mrecordlog_async.options import MIB
from mrecordlog_async.storage.direct import whole_blocks
from mrecordlog_async.storage.filesystem import Buffer, DiskThread
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import STEP_BYTES_MAX, STEP_BYTES_MIN

SYNC = -1
"""In a list of calls: a sync. Any other number is a write of that many bytes."""

FILE_BYTES = 64 * MIB
CONTENT_BYTES = 16 * MIB
"""Size of the buffer that is written; larger writes take several calls."""


class RecordingFiles(OsFileSystem):
    """The real disk, with a list of the calls and of how long each sync took. Costs one list append per call.

    A write that is durable by itself counts as a write and a sync.
    """

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.sync_seconds: list[float] = []

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write, and record how many bytes."""
        taken = super().write(handle, buffers, offset)
        self.calls.append(taken)
        return taken

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write durably, and record it."""
        begun = time.perf_counter()
        taken = super().write_durable(handle, buffers, offset)
        self.sync_seconds.append(time.perf_counter() - begun)
        self.calls += (taken, SYNC)
        return taken

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        """Begin a piece of a large write, and record how many bytes."""
        super().start_write(writes, handle, buffer, offset)
        self.calls.append(len(buffer))

    def disk_thread(self) -> DiskThread | None:
        """Return a disk thread that records its writes here."""
        thread = OsFileSystem().disk_thread()  # this one would get none: it watches its calls
        return None if thread is None else _RecordingThread(thread, self)

    def sync(self, handle: int) -> None:
        """Sync, and record it."""
        begun = time.perf_counter()
        super().sync(handle)
        self.sync_seconds.append(time.perf_counter() - begun)
        self.calls.append(SYNC)


class _RecordingThread:
    """A disk thread whose writes `files` records, as if it had made them itself. Costs an append per write."""

    def __init__(self, thread: DiskThread, files: RecordingFiles) -> None:
        self._thread = thread
        self._files = files
        self._bytes = 0
        self.fileno, self.use, self.has_rung = thread.fileno, thread.use, thread.has_rung
        self.has_ended, self.end, self.forget = thread.has_ended, thread.end, thread.forget

    def start(self, kept: bytes, frames: bytes, offset: int) -> bool:
        """Begin to write, and note how much."""
        self._bytes = whole_blocks(len(kept) + len(frames))
        return self._thread.start(kept, frames, offset)

    def wait(self) -> tuple[bool, int, float] | None:
        """Wait for the write, and record it."""
        written = self._thread.wait()
        if written is not None and written[:2] == (True, 0):
            self._files.sync_seconds.append(written[2])
            self._files.calls += (self._bytes, SYNC)
        return written


def without_padding(calls: Sequence[int], size: int) -> Sequence[int]:
    """Return *calls* with *size* bytes in all: what padded the writes is taken from each of them in equal parts.

    A direct write is padded to whole blocks and repeats the block that it begins in. The raw disk needs neither.
    """
    writes = len(calls) - calls.count(SYNC)
    padding = (sum(calls) + calls.count(SYNC) - size) // max(writes, 1)
    return calls if padding <= 0 else [call if call == SYNC else max(call - padding, 1) for call in calls]


class RawMeasurement(NamedTuple):
    """How long a replay took: in total, and each write together with the sync after it, in seconds."""

    seconds: float
    latencies: list[float]


class RawDisk:
    """A file in *directory* whose blocks exist. Blocking: call it from a thread."""

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

    def replay(self, calls: Sequence[int]) -> RawMeasurement:
        """Repeat *calls* one after the other."""
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
    """The same on a new file for each replay, reserved ahead of the writes in the same steps as a segment."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, "raw-fresh")
        self._content = memoryview(os.urandom(CONTENT_BYTES))

    def replay(self, calls: Sequence[int]) -> RawMeasurement:
        """Repeat *calls*; reserving space is part of the time."""
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


def _replay(calls: Sequence[int], write: Callable[[int], None], sync: Callable[[], None]) -> RawMeasurement:
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
    return RawMeasurement(max(clock() - begun, 1e-9), latencies)
