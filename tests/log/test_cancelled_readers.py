"""Readers that are cancelled at the moment at which what they wait for is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from tests.cached_files import CachedFiles


class Meanwhile(CachedFiles):
    """A disk that has the loop do something after a sync, just before the log hears of it."""

    meanwhile: Callable[[], object] | None = None

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def sync(self, handle: int) -> None:
        super().sync(handle)
        if self.meanwhile is not None:
            self._loop.call_soon_threadsafe(self.meanwhile)


@pytest.mark.parametrize("records", [1, 2])
async def test_a_reader_that_is_cancelled_when_its_record_comes_harms_nobody(directory: Path, records: int) -> None:
    """The append is acknowledged, other readers get the record, and the reader that was cancelled may read on."""
    disk = Meanwhile()
    async with MultiRecordLog.open(directory, filesystem=disk, queues=["q"]) as log:
        tails = [log.tail("q", 0) for _ in range(3)]
        reads = [asyncio.ensure_future(tail.batch(max_wait=0)) for tail in tails]
        for _ in range(3):
            await asyncio.sleep(0)
        disk.meanwhile = reads[1].cancel
        payloads = [b"record"] * records
        append = log.append("q", payloads[0]) if records == 1 else log.append_records("q", None, payloads)
        appended = await asyncio.gather(append, return_exceptions=True)
        assert list(appended) == [records - 1]
        disk.meanwhile = None
        await asyncio.wait(reads)
        assert [read.cancelled() for read in reads] == [False, True, False]
        for found in (reads[0].result(), await tails[1].batch(max_wait=0), reads[2].result()):
            assert found is not None
            assert [bytes(payload) for _, payload in found] == payloads
