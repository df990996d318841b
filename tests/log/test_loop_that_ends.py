"""A loop that ends while the log stores a batch, and leaves the log unclosed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from pathlib import Path

from mrecordlog_async import LogFailedError, MultiRecordLog
from tests.cached_files import HangingDisk
from tests.reopened import reopened


def is_locked(directory: Path) -> bool:
    """Return whether somebody has the lock of the log."""
    handle = os.open(directory / "LOCK", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def test_the_lock_is_kept_until_the_batch_under_way_is_written(directory: Path) -> None:
    """Nobody else opens a directory that is written to; and who waited for the batch is told what is known."""
    disk, ended = HangingDisk(), list[BaseException | None]()

    async def leave() -> None:
        log = await MultiRecordLog.open(directory, queues=["q"], filesystem=disk)
        await log.append("q", b"stored")
        disk.goes_on.clear()
        log.append_soon("q", b"in flight").add_done_callback(lambda future: ended.append(future.exception()))
        await asyncio.to_thread(disk.waits.wait)

    asyncio.run(leave())
    try:
        (error,) = ended
        assert isinstance(error, LogFailedError) and error.written == "unknown"
        assert is_locked(directory)
    finally:
        disk.goes_on.set()
    while is_locked(directory):
        time.sleep(0.001)
    left = [b"stored"], [b"stored", b"in flight"]
    assert asyncio.run(reopened(directory)) in [{"q": [*enumerate(payloads)]} for payloads in left]
