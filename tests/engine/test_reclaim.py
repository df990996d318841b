"""Removing segments: the name is removed at once, the space of a large one freed in steps between batches."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mrecordlog_async import Limits, LogFullError, MultiRecordLog
from mrecordlog_async.engine.commit import dead_segments, upkeep
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage
from tests.cached_files import CachedFiles

BLOCK = 32_768


class Watched(CachedFiles):
    """Notes what is done to files, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def unlink(self, path: str) -> None:
        self.calls.append("unlink")
        super().unlink(path)

    def set_size(self, handle: int, size: int) -> None:
        self.calls.append("set_size")
        super().set_size(handle, size)

    def write(self, handle: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
        self.calls.append("write")
        return super().write(handle, buffers, offset)


def open_files(directory: Path, kind: str = "") -> list[str]:
    """Return this process's open files in *directory*, of those whose name ends in *kind*."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(str(directory)) and name.endswith(kind)]


async def fill(log: MultiRecordLog, segments: int) -> None:
    """Append until there are *segments* segments."""
    await log.create_queue("q", exist_ok=True)
    while log.resource_usage().segments < segments:
        await log.append_record("q", None, bytes(5_000))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a lease, to know that nobody else reads the segment")
async def test_large_segments_are_given_back_in_steps(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment loses its name first, then its space step by step, and in the end no handle is left on it."""
    monkeypatch.setattr(dead_segments, "SHRINK_BYTES", BLOCK)
    files = Watched()
    async with MultiRecordLog.open(directory, segment_bytes=8 * BLOCK, filesystem=files) as log:
        await fill(log, 3)
        before = log.resource_usage().disk_bytes
        files.calls.clear()
        await log.truncate("q", log.next_position("q") - 2)
        for _ in range(1000):  # each sync is a turn of the writer, and each turn a step
            await log.sync()
            if len(damage.segments(directory)) == 1 and not open_files(directory, "(deleted)"):
                break
        assert not open_files(directory, "(deleted)")
        assert len(damage.segments(directory)) == 1
        assert log.resource_usage().disk_bytes <= before - 2 * 8 * BLOCK
        assert files.calls.count("set_size") >= 2 * 6
        assert files.calls.index("unlink") < files.calls.index("set_size")


async def test_close_lets_go_of_what_was_still_to_be_given_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing does not wait for the remaining steps; closing the handles frees the space."""
    monkeypatch.setattr(dead_segments, "SHRINK_BYTES", BLOCK)
    async with MultiRecordLog.open(directory, segment_bytes=8 * BLOCK) as log:
        await fill(log, 4)
        await log.truncate("q", log.next_position("q") - 2)
    assert not open_files(directory)
    async with MultiRecordLog.open(directory) as log:
        assert log.queue_summary("q").records == 1


class Stuck(OsFileSystem):
    """Removes no segment while `is_stuck`, and makes none a spare."""

    is_stuck = False

    def rename(self, source: str, target: str) -> None:
        if self.is_stuck and "wal-" in source and not source.endswith(".tmp"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        if self.is_stuck and "wal-" in path:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        super().unlink(path)


async def append_until_full(log: MultiRecordLog) -> asyncio.Future[int]:
    """Append and truncate until an append is refused, or waits for space; return that one."""
    while True:
        call = asyncio.ensure_future(log.append_record("q", None, bytes(100_000)))
        while not call.done() and not log._admission.waiting_for_space:
            await asyncio.sleep(0)
        if not call.done() or call.exception() is not None:
            return call
        await log.truncate("q", log.next_position("q") - 1)


@pytest.mark.parametrize("on_full", ["raise", "wait"])
async def test_segments_that_could_not_be_removed_go_once_their_space_is_needed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, on_full: Any
) -> None:
    """A log that is full of them tries again, although nothing more is stored in it."""
    monkeypatch.setattr(upkeep, "RETRY_SECONDS", 0.01)
    files, limits = Stuck(), Limits(disk_bytes=1 << 20, on_full=on_full)
    async with MultiRecordLog.open(directory, limits=limits, recycle=False, filesystem=files) as log:
        await log.create_queue("q")
        files.is_stuck = True
        call = await append_until_full(log)
        files.is_stuck = False
        async with asyncio.timeout(60):
            if on_full == "raise":
                assert isinstance(call.exception(), LogFullError)
                with contextlib.suppress(LogFullError):  # it reminds the log
                    await log.append_record("q", None, bytes(100_000))
                await log.append_record("q", None, bytes(100_000))
            else:
                await call


@pytest.mark.parametrize("recycle", [True, False])
async def test_what_opening_could_not_remove_is_removed_later(directory: Path, recycle: bool) -> None:
    """A segment without live records that a crash left, and that cannot be deleted at open, is not forgotten."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, recycle=False) as log:
        await fill(log, 3)
    first = damage.segments(directory)[0]
    content = first.read_bytes()
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, recycle=False) as log:
        await log.truncate("q", log.next_position("q") - 1)
        await fill(log, 2)
    assert not first.exists()
    first.write_bytes(content)
    files = Stuck()
    files.is_stuck = True
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, recycle=recycle, filesystem=files) as log:
        await log.append_record("q", None, b"x")
        assert first.exists() or recycle  # which may have become the next segment by now
        files.is_stuck = False
        await log.truncate("q", log.next_position("q") - 1)
        await fill(log, log.resource_usage().segments + 1)
        await log.truncate("q", log.next_position("q") - 1)
    assert not first.exists()


async def test_a_segment_that_cannot_be_removed_is_reported_while_there_is_space(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only once the disk is full: one line and one error until it works again, however often it is tried."""
    files = Stuck()
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, recycle=False, filesystem=files) as log:
        for files.is_stuck in (True, False, True):
            for _ in range(3):
                await fill(log, log.resource_usage().segments + 1)
                await log.truncate("q", log.next_position("q") - 1)
                await log.append_record("q", None, b"x")
        assert log.stats().io_errors == 2
    reported = [line for line in caplog.messages if "cannot be removed, and the disk fills: [Errno 1]" in line]
    assert len(reported) == 2
    assert f"{directory}/wal-0" in reported[0]


async def test_a_log_whose_dead_segments_stay_does_not_grow_beyond_its_limit(directory: Path) -> None:
    """A new segment makes no room while no old one can be removed: appends are refused, and the error says why."""
    files, limits = Stuck(), Limits(disk_bytes=1 << 20)
    async with MultiRecordLog.open(directory, limits=limits, recycle=False, filesystem=files) as log:
        await log.create_queue("q")
        files.is_stuck = True
        await append_until_full(log)
        for _ in range(40):
            with contextlib.suppress(LogFullError):
                await log.append_record("q", None, bytes(20_000))
            await log.truncate("q", log.next_position("q"))
        assert log.resource_usage().disk_bytes < limits.disk_bytes + limits.disk_bytes // 8
        with pytest.raises(LogFullError, match="segments that are no longer needed but could not be deleted") as raised:
            await log.append_record("q", None, bytes(100_000))
        assert isinstance(raised.value.__cause__, PermissionError)
        files.is_stuck = False
        with contextlib.suppress(LogFullError):  # it reminds the log
            await log.append_record("q", None, bytes(100_000))
        with pytest.raises(
            LogFullError, match=r"in use \(queue 'q' holds the most\); truncate or delete queues"
        ) as raised:
            while True:
                await log.append_record("q", None, bytes(100_000))
        assert raised.value.__cause__ is None


async def test_appends_use_no_space_that_truncates_reserved_beyond_the_limit(directory: Path) -> None:
    """However many truncates a full log stores, an append is refused until they have freed something."""
    limits = Limits(disk_bytes=1 << 20)
    async with MultiRecordLog.open(directory, limits=limits) as log:
        await log.create_queue("idle")
        await log.create_queue("q")
        with pytest.raises(LogFullError):
            while True:
                await log.append_record("idle", None, bytes(20_000))
        for position in range(2_000):
            await log.truncate("q", position)
        with pytest.raises(LogFullError, match="truncate or delete queues"):
            await log.append_record("idle", None, bytes(20_000))


class Crowded(OsFileSystem):
    """A disk that is full once it has `another`: another append arrives whenever it is asked for space."""

    another: Callable[[], object] | None = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if self.another is not None:
            arrived = Event()
            self.loop.call_soon_threadsafe(self.another)
            self.loop.call_soon_threadsafe(arrived.set)
            arrived.wait()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(handle, offset, length)


async def test_appends_that_keep_arriving_do_not_keep_a_full_disk_full(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that nothing needs any more are removed, although the next append waits whenever one is refused."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 3600.0)
    files, segments = Crowded(), list[int]()
    async with MultiRecordLog.open(directory, segment_bytes=256 * BLOCK, filesystem=files) as log:
        await log.create_queue("kept")
        await log.append_record("kept", None, b"in the oldest segment")
        await log.create_queue("q")
        while log.resource_usage().segments < 3:
            await log.append_record("q", None, bytes(32 * BLOCK))
        await log.truncate("q", log.next_position("q") - 2)

        def another() -> None:
            segments.append(log.resource_usage().segments)
            if len(segments) < 50:
                log.append_soon("q", bytes(40 * BLOCK)).add_done_callback(asyncio.Future.exception)

        files.another = another
        another()
        await log.truncate("kept", 0)
        async with asyncio.timeout(60):
            while len(segments) < 50:
                await asyncio.sleep(0)
        assert 1 in segments
