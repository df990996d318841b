"""The directory of an open log is renamed, replaced or removed: the log touches nothing outside, and hides no loss."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from mrecordlog_async import LogFailedError, LogState, MultiRecordLog
from mrecordlog_async.storage.os_filesystem import OsFileSystem

SEGMENT_BYTES = 32_768
RECORD = bytes(20_000)
"""Every second record rolls."""


class Recycling(OsFileSystem):
    """A disk on which dead segments are used again."""

    def recycles(self, handle: int) -> bool:
        return True


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def fill(log: MultiRecordLog, records: int) -> None:
    for _ in range(records):
        await log.append("q", RECORD)


async def append_until_refused(log: MultiRecordLog) -> None:
    """Append until a roll is due, which must be refused with the path."""
    with pytest.raises(FileNotFoundError, match="renamed, replaced or removed") as caught:
        await fill(log, 3)
    assert caught.value.filename == log.directory


async def positions(directory: Path) -> list[int]:
    async with MultiRecordLog.open(directory, create=False) as log:
        return [record.position for record in log.range("q")]


@pytest.mark.parametrize("files", [OsFileSystem, Recycling])
async def test_a_log_that_was_moved_away_leaves_the_one_in_its_place_alone(
    directory: Path, files: type[OsFileSystem]
) -> None:
    """It adds no segment to it, removes none, and what it acknowledged is all in the directory that was moved."""
    moved = directory.with_name("moved")
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["q"], filesystem=files())
    await fill(log, 4)
    directory.rename(moved)
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["q"]) as other:
        await fill(other, 8)
    before = contents(directory)
    await append_until_refused(log)
    assert await log.truncate("q", 1) == 2
    await log.sync()
    last = log.last_position("q")
    await log.close()
    assert contents(directory) == before
    assert await positions(directory) == list(range(8))
    assert last is not None
    assert await positions(moved) == list(range(2, last + 1))


async def test_a_log_that_was_moved_away_leaves_the_spare_of_the_one_in_its_place(directory: Path) -> None:
    """It removes its own spare when it is closed, and the other log has one of the same name."""
    log = await MultiRecordLog.open(directory, queues=["q"])
    directory.rename(directory.with_name("moved"))
    async with MultiRecordLog.open(directory, queues=["q"]):
        names = set(contents(directory))
        await log.close()
        assert set(contents(directory)) == names
    assert any(name.endswith(".tmp") for name in names)


async def test_a_log_that_was_moved_back_continues(directory: Path) -> None:
    """Nothing is lost, and its dead segments are removed."""
    moved = directory.with_name("moved")
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["q"]) as log:
        await fill(log, 4)
        directory.rename(moved)
        await append_until_refused(log)
        moved.rename(directory)
        await fill(log, 4)
        stored = list(range(log.next_position("q")))
        await log.truncate("q", 3)
    assert await positions(directory) == stored[4:]
    assert not (directory / "wal-00000000000000000000").exists()


async def test_a_link_to_the_directory_that_names_another_one_counts_as_a_move(directory: Path) -> None:
    """The log was opened through the link, and goes on in the directory that it opened."""
    first, second = directory.with_name("first"), directory.with_name("second")
    first.mkdir(mode=0o700)
    second.mkdir(mode=0o700)
    directory.symlink_to(first)
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, queues=["q"]) as log:
        await fill(log, 4)
        directory.unlink()
        directory.symlink_to(second)
        await append_until_refused(log)
        stored = list(range(log.next_position("q")))
    assert not os.listdir(second)
    assert await positions(first) == stored


@pytest.mark.parametrize("callers", [1, 2])
async def test_a_log_whose_directory_was_removed_fails(directory: Path, callers: int) -> None:
    """Nothing is acknowledged into a file that is deleted when the process ends."""
    log = await MultiRecordLog.open(directory, queues=["q", "r"])
    await log.append("q", b"kept")
    await log.append("q", b"kept")
    shutil.rmtree(directory)
    results = await asyncio.gather(*(log.append("qr"[at], b"lost") for at in range(callers)), return_exceptions=True)
    assert [type(result) for result in results] == [LogFailedError] * callers
    assert "was removed" in str(results[0])
    assert log.state is LogState.FAILED
    assert len(list(log.range("q"))) == 2
    await log.close()
    assert not directory.exists()
