"""Writes that fail after some of their bytes may be on the disk."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

from mrecordlog_async import LogFailedError, MultiRecordLog, RecordLogError
from mrecordlog_async.storage.filesystem import Buffer
from tests.cached_files import CachedFiles
from tests.faults.disk import Disk, Fault, Plan
from tests.reopened import reopened


class FailingWrites(CachedFiles):
    """A disk of which the next write stores everything, and fails with `error` if that is not 0."""

    error = 0

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        error, self.error = self.error, 0
        taken = super().write(handle, buffers, offset)
        if error:
            raise OSError(error, "the write failed")
        return taken


async def written(call: Awaitable[object]) -> str:
    """Return what a failed log says of *call*; another word if it says nothing."""
    try:
        await call
    except LogFailedError as error:
        return error.written
    except (RecordLogError, OSError) as error:
        return repr(error)
    return "acknowledged"


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=["broken", "full", "quota"])
async def test_a_log_whose_write_failed_acknowledges_nothing_more(directory: Path, error: int, records: int) -> None:
    """Whether the batch is there is not known, so no other may take its place; opening the log again tells."""
    disk = FailingWrites()
    log = await MultiRecordLog.open(directory, filesystem=disk, queues=["q"])
    await log.append("q", b"stored")
    disk.error = error
    in_doubt = [b"in doubt"] * records
    call = log.append("q", *in_doubt) if records == 1 else log.append_records("q", None, in_doubt)
    assert await written(call) == "unknown"
    later = [log.append("q", b"later"), log.truncate("q", 0), log.create_queue("other")]
    assert [await written(call) for call in later] == ["no"] * 3
    await log.close()
    left = [b"stored"], [b"stored", *in_doubt]
    assert await reopened(directory) in [{"q": [*enumerate(payloads)]} for payloads in left]


async def test_what_a_log_shows_after_a_failed_fsync_survives_a_power_cut() -> None:
    """The page cache still shows what the failed fsync lost: a log that believed it would show it once, and lose it."""
    disk = Disk(has_direct=False)
    log = await MultiRecordLog.open("/data/log", filesystem=disk, queues=["q"])
    await log.append("q", b"stored")
    disk.fault = Fault(disk.calls + 1, on=True, calls=frozenset({"sync"}))
    assert await written(log.append("q", bytes(10_000))) == "unknown"
    await log.close()
    disk.fault = None
    async with MultiRecordLog.open("/data/log", filesystem=disk) as log:
        shown = list(log.range("q"))
        after = disk.snapshot().crash(Plan())
    async with MultiRecordLog.open("/data/log", filesystem=after) as log:
        assert list(log.range("q")) == shown == [(0, b"stored")]
