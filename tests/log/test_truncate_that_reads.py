"""Truncates in a queue whose positions have gaps and whose records are on the disk: what they delete must be read."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

from mrecordlog_async import Limits, MultiRecordLog, RecordLogError
from mrecordlog_async.storage.os_filesystem import OsFileSystem

MIB = 1 << 20
LIMITS = Limits(memory_bytes=MIB, beyond_memory="disk")
PAYLOADS = [random.Random(1).randbytes(2_000)] * 20
APPENDS = 150
CUT, DELETED = 1_005, 506


class Reads(OsFileSystem):
    """A disk of which reads fail with `error` if there is one, and wait while `goes_on` is not set."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.stands, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self._stop()
        return super().read(handle, length, offset)

    def read_into(self, handle: int, buffer: memoryview, offset: int) -> int:
        self._stop()
        return super().read_into(handle, buffer, offset)

    def _stop(self) -> None:
        if not self.goes_on.is_set():
            self.stands.set()
            self.goes_on.wait()
        if self.error is not None:
            raise self.error


async def fill(log: MultiRecordLog) -> None:
    """Append 20 records at every 40th position, until the older ones have left memory."""
    for at in range(APPENDS):
        await log.append_records("q", 40 * at, PAYLOADS)
    while log.memory_first("q") <= CUT:
        await asyncio.sleep(0.01)


async def test_a_truncate_whose_reading_fails_reports_no_wrong_number(directory: Path) -> None:
    """It ends, with the number of deleted records or an error, and so do the calls after it."""
    disk = Reads()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=disk, queues=["q"]) as log:
        await fill(log)
        disk.error = MemoryError("no memory for the read")
        calls = [log.truncate("q", CUT), log.append("q", b"together")]
        truncated, _ = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        assert truncated == DELETED or isinstance(truncated, RecordLogError | MemoryError)
        disk.error = None
        later = [log.append("q", b"later"), log.truncate("q", 2 * CUT), log.sync()]
        await asyncio.wait_for(asyncio.gather(*later, return_exceptions=True), 20)
    async with MultiRecordLog.open(directory, limits=LIMITS, queues=["q"]) as log:
        assert log.first_position("q") in (0, CUT + 1, 2 * CUT + 1)


async def test_calls_that_are_made_while_a_truncate_reads_end(directory: Path) -> None:
    """In their order, and each with its own result, even if the caller of the truncate waits no more."""
    disk = Reads()
    async with MultiRecordLog.open(directory, limits=LIMITS, filesystem=disk, queues=["q", "other"]) as log:
        await fill(log)
        disk.goes_on.clear()
        truncates = [asyncio.ensure_future(log.truncate("q", CUT)) for _ in range(2)]
        try:
            await asyncio.to_thread(disk.stands.wait)
            later = [asyncio.ensure_future(log.append(queue, b"later")) for queue in ("q", "other")]
            later.append(asyncio.ensure_future(log.truncate("q", CUT + 1)))
            await asyncio.sleep(0)
            truncates[0].cancel()
            await asyncio.sleep(0)
        finally:
            disk.goes_on.set()
        results = await asyncio.wait_for(asyncio.gather(*truncates, *later, return_exceptions=True), 20)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1] in (0, DELETED)
        assert results[2:] == [40 * (APPENDS - 1) + 20, 0, 1]
        assert log.queue_summary("q").records == len(PAYLOADS) * APPENDS - DELETED - 1 + 1
