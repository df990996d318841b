"""Queues that are created while the disk has no room for what the next segment's table says of them."""

from __future__ import annotations

import asyncio
from itertools import count

from mrecordlog_async import LogFullError, MultiRecordLog
from mrecordlog_async.testing import MemoryDisk

SEGMENT_BYTES = 4 << 20


async def test_a_create_without_room_takes_no_append_of_its_batch_along() -> None:
    """What fits is stored: an append that needs a few bytes. Every queue that was acknowledged exists, and no other."""
    disk = MemoryDisk(capacity_bytes=303_000)
    async with MultiRecordLog.open("/data/wal", filesystem=disk, segment_bytes=SEGMENT_BYTES, queues=["q"]) as log:
        try:
            while True:
                await log.append("q", bytes(30_000))
        except LogFullError:
            position = log.next_position("q")
        for number in count():
            names = [f"{number}-{other}".ljust(250, "q") for other in range(60)]
            calls = [log.append("q", b"small"), *map(log.create_queue, names)]
            appended, *created = await asyncio.gather(*calls, return_exceptions=True)
            assert appended == position + number
            assert {name for name in names if log.queue_exists(name)} == {
                name for name, result in zip(names, created, strict=True) if not isinstance(result, Exception)
            }
            if any(isinstance(each, LogFullError) for each in created):
                break
