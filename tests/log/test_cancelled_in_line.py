"""Callers that are cancelled while their appends wait for space on the disk."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

from mrecordlog_async import Limits, MultiRecordLog
from tests.full_disk import FullDisk

PAYLOAD_BYTES = 300_000
CALLERS = 200
PENDING_BYTES = 4 << 20


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_log_keeps_nothing_of_callers_that_were_cancelled_in_line(directory: Path) -> None:
    """Memory is bounded: what is not yet admitted goes with its caller, not when the disk has space again."""
    disk = FullDisk()
    disk.full = False
    limits = Limits(on_full="wait", pending_bytes=PENDING_BYTES, record_bytes=PENDING_BYTES)
    async with MultiRecordLog.open(directory, filesystem=disk, limits=limits, queues=["q"]) as log:
        disk.full = True
        tracemalloc.start()
        try:
            calls = [asyncio.ensure_future(log.append("q", bytes(PAYLOAD_BYTES))) for _ in range(CALLERS)]
            for _ in range(2):  # by then the disk has refused those that were admitted, and they wait again
                await log.sync()
            for call in calls:
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}
            del calls, call, results
            await turns(5)  # the loop lets go of their tasks
            gc.collect()  # the errors and the frames that they were raised in
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 3 * PENDING_BYTES
        disk.full = False
        await log.append("q", b"later")
        assert [bytes(payload) for _, payload in log.range("q")] == [b"later"]
        assert log.resource_usage().pending_bytes == 0
