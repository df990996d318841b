"""Appends that find no space when the log has just begun a new segment for them."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from mrecordlog_async import LogFullError, MultiRecordLog
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests.reopened import reopened

SEGMENT_BYTES = 128 << 10


class SmallFiles(OsFileSystem):
    """A disk on which files have room for a table and a few records, while `is_full` is set."""

    is_full = False

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if self.is_full and offset + length > SEGMENT_BYTES // 2 + 16_384:
            raise OSError(errno.ENOSPC, "no room")
        super().reserve(handle, offset, length)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
async def test_a_batch_refused_after_a_roll_leaves_everything_as_it_was(directory: Path, is_closed: bool) -> None:
    """The segments before the new one are still needed; truncates succeed, and so do appends that fit."""
    disk = SmallFiles()
    payloads = [bytes([number]) * 60_000 for number in range(2)]
    async with MultiRecordLog.open(directory, filesystem=disk, segment_bytes=SEGMENT_BYTES, queues=["q"]) as log:
        for payload in payloads:
            await log.append("q", payload)
        disk.is_full = True
        for _ in range(2):
            refused = await asyncio.gather(log.append("q", bytes(100_000)), return_exceptions=True)
            assert [type(each) for each in refused] == [LogFullError]
        if is_closed:
            await log.close()
        else:
            await log.sync()
        left = directory if is_closed else copied(directory)
        assert await reopened(left) == {"q": [*enumerate(payloads)]}
        if is_closed:
            return
        await log.truncate("q", 0)
        assert await log.append("q", b"small") == 2
        disk.is_full = False
        assert await log.append("q", bytes(100_000)) == 3
        assert [bytes(payload) for _, payload in log.range("q")] == [payloads[1], b"small", bytes(100_000)]


def copied(directory: Path) -> Path:
    """Return what a process would leave that dies now."""
    copy = directory.with_name("copy")
    copy.mkdir()
    for file in directory.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy
