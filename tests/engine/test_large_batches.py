"""Batches that are written in pieces, in a log on the real disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from mrecordlog_async import LogFailedError, MultiRecordLog
from mrecordlog_async.storage.os_filesystem import OsFileSystem

MIB = 1 << 20


class Counted(OsFileSystem):
    """Counts writes that were begun, and what is open for them. `refuses` and `fails` are names of calls."""

    def __init__(self, refuses: str = "", fails: bool = False) -> None:
        self.begun = 0
        self.held = 0
        self.refuses = refuses
        self.fails = fails

    def open_writes(self, most: int) -> int:
        if self.refuses == "open_writes":
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        writes = super().open_writes(most)
        self.held += 1
        return writes

    def start_write(self, writes: int, handle: int, buffer: memoryview, offset: int) -> None:
        if self.refuses == "start_write":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        super().start_write(writes, handle, buffer, offset)
        self.begun += 1

    def finish_writes(self, writes: int, count: int) -> dict[int, int]:
        taken = super().finish_writes(writes, count)
        return dict.fromkeys(taken, -errno.EIO) if self.fails else taken

    def close_writes(self, writes: int) -> None:
        super().close_writes(writes)
        self.held -= 1


async def append_all(log: MultiRecordLog, payloads: list[bytes]) -> None:
    """Append all of them at once, then something small."""
    await log.create_queue("q", exist_ok=True)
    await asyncio.gather(*(log.append_record("q", None, payload) for payload in payloads))
    await log.append_record("q", None, b"small")


@pytest.mark.parametrize("refuses", ["", "open_writes", "start_write"])
@pytest.mark.parametrize("sizes", [[MIB] * 6, [8 * MIB], [40_000] * 60, [MIB // 2 - 100]], ids=str)
async def test_large_batches_are_read_back(tmp_path: Path, sizes: list[int], refuses: str) -> None:
    """With and without writes under way, over several segments, after a close and a reopen."""
    payloads, files = [os.urandom(size) for size in sizes], Counted(refuses)
    async with MultiRecordLog.open(tmp_path / "wal", segment_bytes=4 * MIB, filesystem=files) as log:
        for _ in range(2):
            await append_all(log, payloads)
    assert files.held == 0
    async with MultiRecordLog.open(tmp_path / "wal") as log:
        assert [payload for _, payload in log.range("q")] == [*payloads, b"small"] * 2


async def test_small_batches_prepare_nothing(tmp_path: Path) -> None:
    """The system's writes under way are limited: a log that needs none takes none."""
    files = Counted(refuses="start_write")
    async with MultiRecordLog.open(tmp_path / "wal", filesystem=files) as log:
        await append_all(log, [b"x" * 1_000] * 100)
        assert files.held == 0


async def test_a_piece_that_fails_fails_the_log(tmp_path: Path) -> None:
    """Nothing is acknowledged; the log that is opened afterwards has the batch whole or not at all."""
    files = Counted(fails=True)
    log = await MultiRecordLog.open(tmp_path / "wal", filesystem=files)
    await log.create_queue("q")
    with pytest.raises(LogFailedError):
        await log.append_records("q", None, [bytes(MIB)] * 3)
    if not files.begun:
        pytest.skip("no writes under way here")
    await log.close()
    assert files.held == 0
    async with MultiRecordLog.open(tmp_path / "wal") as log:
        assert len(list(log.range("q"))) in (0, 3)
