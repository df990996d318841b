"""The size of batches: what one write and one sync store together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.storage.filesystem import Buffer
from tests.cached_files import CachedFiles

MIB = 1 << 20


class Measured(CachedFiles):
    """A disk that notes how much was written before each sync."""

    def __init__(self) -> None:
        self.written = 0
        self.largest = 0

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        taken = super().write(handle, buffers, offset)
        self.written += taken
        return taken

    def sync(self, handle: int) -> None:
        self.largest = max(self.largest, self.written)
        self.written = 0
        super().sync(handle)


@pytest.mark.parametrize("size", [100_000, 300_000, MIB])
async def test_batches_stay_about_as_large_whoever_calls(directory: Path, size: int) -> None:
    """Nobody waits for 40 MiB of others: callers that come together are stored in batches of about 4 MiB, in order."""
    disk = Measured()
    limits = Limits(pending_bytes=64 * MIB)
    async with MultiRecordLog.open(directory, filesystem=disk, limits=limits, queues=["q"]) as log:
        calls = 40 * MIB // size
        assert await asyncio.gather(*(log.append("q", bytes(size)) for _ in range(calls))) == list(range(calls))
    assert MIB < disk.largest <= 4 * MIB + 2 * size
