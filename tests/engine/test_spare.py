"""The spare: the next segment is ready, table and all, before it is needed."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.commit import batch
from mrecordlog_async.engine.commit.journal import Journal
from mrecordlog_async.storage.filesystem import Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests.cached_files import CachedFiles


class Watched(CachedFiles):
    """Notes at each write whether the spare has room for the table as it will be after that batch."""

    def __init__(self) -> None:
        self.journal: Journal | None = None
        self.new_table_bytes = 0
        self.was_ready: list[bool] = []

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.journal is not None:
            self.was_ready.append(not self.journal.space.wants_spare(self.new_table_bytes))
        return super().write(handle, buffers, offset)


async def test_the_spare_has_room_for_queues_before_they_are_made(directory: Path) -> None:
    """Their batch makes the table longer. On a disk that is full by then the next roll, and with it giving space back,
    would fail."""
    files = Watched()
    names = [f"{number:03}" * 80 for number in range(300)]
    async with MultiRecordLog.open(directory, filesystem=files) as log:
        files.journal = log._engine.opened.journal
        files.new_table_bytes = sum(len(name) + 26 for name in names)
        assert files.journal.space.wants_spare(files.new_table_bytes), "the spare as it is would do for them"
        await asyncio.gather(*map(log.create_queue, names))
        assert files.was_ready == [True]
        files.journal = None


async def test_a_spare_as_small_as_it_can_be_is_not_cut(directory: Path) -> None:
    """It gives nothing back, and what it has reserved stays reserved."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append("q", b"a")
        before = log.resource_usage().disk_bytes
        assert not log._engine.opened.journal.space.cut_spare()
        assert log.resource_usage().disk_bytes == before


class RefusesHeads(OsFileSystem):
    """A disk that refuses the first write to a file, if that is direct, while it is told to."""

    def __init__(self) -> None:
        self.error = 0
        self.direct: set[int] = set()
        self.empty: set[int] = set()

    def create(self, path: str) -> int:
        handle = super().create(path)
        self.empty.add(handle)
        return handle

    def set_direct(self, handle: int, direct: bool) -> None:
        super().set_direct(handle, direct)
        (self.direct.add if direct else self.direct.discard)(handle)

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.error and handle in self.direct & self.empty:
            raise OSError(self.error, os.strerror(self.error))
        self.empty.discard(handle)
        return super().write(handle, buffers, offset)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EIO])
async def test_only_a_file_system_without_direct_writes_gets_cached_ones_instead(directory: Path, error: int) -> None:
    """An error of the disk is not hidden by another way to write: the append is refused, and the next one is not."""
    files = RefusesHeads()
    async with MultiRecordLog.open(directory, segment_bytes=65_536, queues=["q"], filesystem=files) as log:
        if not files.direct:
            pytest.skip("no direct access here")
        files.error = error
        results = [await ends(log.append("q", bytes(20_000))) for _ in range(8)]
        refused = [each for each in results if isinstance(each, OSError)]
        if error == errno.EIO:
            assert refused[0].errno == errno.EIO
            assert log.stats().io_errors >= 1
            files.error = 0
            await log.append("q", bytes(20_000))
        else:
            assert not refused
            assert log.stats().rolls >= 1
            assert not files.direct & set(log._engine.opened.journal.handles())
    async with MultiRecordLog.open(directory) as log:
        assert log.next_position("q") == 8 - len(refused) + (error == errno.EIO)


async def ends(call: Awaitable[int]) -> int | Exception:
    """Return the result of *call*, or its error."""
    try:
        return await call
    except Exception as caught:
        return caught


async def test_a_roll_with_many_queues_lets_the_loop_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's thread releases the interpreter after each thousand queues of the table."""
    released: list[str] = []
    monkeypatch.setattr(batch, "sleep", lambda seconds: released.append(threading.current_thread().name))
    async with MultiRecordLog.open(directory, segment_bytes=200_000) as log:
        await asyncio.gather(*(log.create_queue(str(number)) for number in range(3_000)))
        released.clear()
        before = log.stats().rolls
        while log.stats().rolls == before:
            await log.append_record("0", None, bytes(100_000))
        assert released == ["mrecordlog"] * 3
