"""Callers that are cancelled while their batch is being stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from tests.cached_files import HangingDisk


@pytest.mark.parametrize("callers", [1, 3, 300])
async def test_a_cancelled_caller_takes_nobody_along(directory: Path, callers: int) -> None:
    """The others of its batch get their positions, its own record is stored, and the log continues."""
    disk = HangingDisk()
    async with MultiRecordLog.open(directory, filesystem=disk, queues=["q"]) as log:
        disk.goes_on.clear()
        try:
            calls = [log.append_soon("q", b"%d" % number) for number in range(callers)]
            await asyncio.to_thread(disk.waits.wait)
            later = log.append_records("q", None, [b"later"])
            waiting: asyncio.Future[int | None] = asyncio.ensure_future(later)
            calls[callers // 2].cancel()
        finally:
            disk.goes_on.set()
        due = list(range(callers))
        due.remove(callers // 2)
        results = await asyncio.gather(*calls, waiting, return_exceptions=True)
        assert isinstance(results.pop(callers // 2), asyncio.CancelledError)
        assert results == [*due, callers]
        assert [bytes(payload) for _, payload in log.range("q", 0, callers)] == [b"%d" % at for at in range(callers)]
