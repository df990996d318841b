"""LOCK is removed and another process opens the log: the first one does not write over what that stores."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import LogFailedError, LogState, MultiRecordLog

SEGMENT_BYTES = 32_768


async def stored(directory: Path) -> list[bytes]:
    async with MultiRecordLog.open(directory, create=False) as log:
        return [bytes(record.payload) for record in log.range("q")]


@pytest.mark.parametrize("callers", [1, 2])
async def test_a_log_whose_lock_was_removed_fails_before_it_writes_over_another(directory: Path, callers: int) -> None:
    """Both would write at the same place of the same segment, and what the second one acknowledged would be lost."""
    first = await MultiRecordLog.open(directory, queues=["q", "r"])
    await first.append("q", b"one")
    await first.append("q", b"two")
    (directory / "LOCK").unlink()
    async with MultiRecordLog.open(directory) as second:
        await second.append("q", b"three")
        results = await asyncio.gather(*(first.append("qr"[at], b"x") for at in range(callers)), return_exceptions=True)
        await second.append("q", b"four")
    assert [type(result) for result in results] == [LogFailedError] * callers
    assert "LOCK was removed while the log is open" in str(results[0])
    assert first.state is LogState.FAILED
    await first.close()
    assert await stored(directory) == [b"one", b"two", b"three", b"four"]


async def test_a_log_whose_lock_was_removed_truncates_nothing(directory: Path) -> None:
    """A truncate is a batch like any other."""
    first = await MultiRecordLog.open(directory, queues=["q"])
    await first.append("q", b"one")
    (directory / "LOCK").unlink()
    with pytest.raises(LogFailedError, match="LOCK was removed"):
        await first.truncate("q", 0)
    await first.close()
    assert await stored(directory) == [b"one"]


async def test_a_log_whose_lock_was_removed_does_not_mark_the_other_as_closed(directory: Path) -> None:
    """Without a call in between, closing it neither states where the log ends nor removes a file of the other."""
    first = await MultiRecordLog.open(directory, queues=["q"], segment_bytes=SEGMENT_BYTES)
    await first.append("q", b"one")
    (directory / "LOCK").unlink()
    second = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES)
    await second.append("q", b"two")
    before = sorted(path.name for path in directory.iterdir())
    await first.close()
    assert sorted(path.name for path in directory.iterdir()) == before
    for _ in range(4):
        await second.append("q", bytes(20_000))
    await second.close()
    assert [len(payload) for payload in await stored(directory)] == [3, 3, *[20_000] * 4]
