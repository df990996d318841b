"""Records without a byte that wait to be stored: they take memory, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import Limits, LogFullError, MultiRecordLog, RecordTooLargeError

PENDING_BYTES = 1 << 20


async def test_waiting_records_without_a_byte_are_bounded(directory: Path) -> None:
    """A million empty records are megabytes of objects: they count towards `pending_bytes`, alone or in one call."""
    limits = Limits(pending_bytes=PENDING_BYTES, record_bytes=1_000)
    async with MultiRecordLog.open(directory, limits=limits, queues=["q"]) as log:
        with pytest.raises(RecordTooLargeError):
            await log.append_records("q", None, [b""] * (PENDING_BYTES // 16))
        calls: list[asyncio.Future[int]] = []
        with pytest.raises(LogFullError) as full:
            while len(calls) < PENDING_BYTES // 100:
                calls.append(log.append_soon("q", b""))
        assert full.value.resource == "pending"
        assert [await call for call in calls] == list(range(len(calls)))
        await log.sync()
        assert log.resource_usage().pending_bytes == 0
