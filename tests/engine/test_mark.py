"""The idle mark: an empty batch that proves that the one before it is durable."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, LogFullError, MultiRecordLog, PersistPolicy
from mrecordlog_async.engine.commit import upkeep
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage
from tests.full_disk import FullDisk


@pytest.fixture(autouse=True)
def idle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log be idle after 20 ms."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.02)


async def written(log: MultiRecordLog, batches: int) -> int:
    """Wait until this many batches are on the medium and their syncs are counted; return where the last one ends."""
    at = log._engine.opened.journal.end
    while at.durable_batch < batches or log.stats().syncs < batches:
        await asyncio.sleep(0.001)
    assert at.last_batch == batches
    return at.offset


@pytest.mark.parametrize("policy", [PersistPolicy.always(), PersistPolicy.never()], ids=["always", "never"])
async def test_a_damaged_mark_does_not_hide_later_batches(
    directory: Path, tmp_path: Path, policy: PersistPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever bit is damaged, the next batch is found or the log reports the damage."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 3_600.0)
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"before")
        await log.sync()
        begin = log._engine.opened.journal.end.offset
        monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.0)  # not before `begin` is known
        log._engine.writer._upkeep._on_mark()
        while log._engine.opened.journal.end.offset == begin:
            await asyncio.sleep(0.001)
        end = log._engine.opened.journal.end.offset
        monkeypatch.setattr(upkeep, "MARK_SECONDS", 3_600.0)
        await log.append_record("q", None, b"after")
        await log.sync()
        shutil.copytree(directory, tmp_path / "killed")
    last = damage.last_segment(tmp_path / "killed")
    whole = last.read_bytes()
    for offset in range(begin, end):
        last.write_bytes(whole)
        damage.flip_byte(last, offset, 1 << offset % 8)
        with pytest.raises(CorruptionError):
            await MultiRecordLog.open(tmp_path / "killed")
    last.write_bytes(whole)
    async with MultiRecordLog.open(tmp_path / "killed") as log:
        assert [payload for _, payload in log.range("q")] == [b"before", b"after"]


async def test_the_mark_costs_one_sync_for_each_idle_spell(directory: Path) -> None:
    """It is written and synced once when the log falls idle, and not again until something else was written."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await written(log, 2)
        await asyncio.sleep(0.1)
        await log.append_record("q", None, b"x")
        await written(log, 4)
        stats = log.stats()
        assert stats.syncs == stats.sync_seconds.count == 4


async def test_a_log_that_is_left_unclosed_has_its_mark_at_once(directory: Path) -> None:
    """Damage to the last batch of a tool, after a crash of the service, is not taken for an unfinished batch."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    (directory / "CLOSED").unlink()
    async with MultiRecordLog.open(directory) as log:
        log.inspection.keep_unclosed()
        await log.append_record("q", None, b"acknowledged")
        last_batch = log._engine.opened.journal.end.last_batch
    assert not (directory / "CLOSED").exists()
    last = damage.last_segment(directory)
    whole = last.read_bytes()
    damage.flip_byte(last, whole.index(b"acknowledged"))
    with pytest.raises(CorruptionError, match=f"batch {last_batch} is damaged"):
        await MultiRecordLog.open(directory)
    last.write_bytes(whole)
    async with MultiRecordLog.open(directory) as log:
        log.inspection.keep_unclosed()
    assert last.read_bytes() == whole, "nothing was stored, so nothing needs a mark"


async def test_a_mark_takes_nothing_of_the_reserve(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk that is for truncates and deletes: the log stays without its mark."""
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 3_600.0)
    disk = FullDisk()
    disk.full = False
    async with MultiRecordLog.open(directory, filesystem=disk, queues=["q"]) as log:
        await log.append("q", b"x")
        disk.full = True
        for size in (50_000, 100):
            with pytest.raises(LogFullError):
                while True:
                    await log.append("q", bytes(size))
        journal, position = log._engine.opened.journal, 0
        while journal.end.offset + RESERVE_BYTES <= journal._file.reserved_bytes:
            await log.truncate("q", position)
            position += 1
        end = journal.end.offset
        assert await asyncio.to_thread(journal.commit_mark, journal.end.segment) is None
        assert journal.end.offset == end


class NoNewFiles(OsFileSystem):
    """A disk without space for another file while the test says so."""

    full = False

    def create(self, path: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return super().create(path)


async def test_a_closed_that_finds_no_space_is_replaced_by_the_mark(directory: Path) -> None:
    """A log that was closed on a full disk shows damage to its last batch as well."""
    disk = NoNewFiles()
    async with MultiRecordLog.open(directory, filesystem=disk) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"acknowledged")
        disk.full = True
    assert not (directory / "CLOSED").exists()
    last = damage.last_segment(directory)
    damage.flip_byte(last, last.read_bytes().index(b"acknowledged"))
    with pytest.raises(CorruptionError, match="is damaged"):
        await MultiRecordLog.open(directory)
