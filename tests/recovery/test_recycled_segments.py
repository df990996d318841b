"""Readers of a log whose segments are used again: which file counts as a segment, and which one was removed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader, encode_header
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.recovery.segment_files import SegmentFiles, SegmentRemovedError
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.segment import segment_name
from tests import damage
from tests.conftest import contents

BLOCK = 32_768
LOG_ID = bytes(range(16))


async def build(directory: Path, *, segments: int = 3, truncate: bool = False) -> None:
    """Write a log of some segments, and leave it as a crash would."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, recycle=False) as log:
        await log.create_queue("q")
        while log.resource_usage().segments < segments:
            await log.append_record("q", None, bytes(9_000))
        while not (directory / f"{segment_name(segments)}.tmp").exists():  # the log's thread makes it afterwards
            await asyncio.sleep(0.001)
        damage.copy(directory, directory.with_name("whole"))
        if truncate:
            await log.truncate("q", log.next_position("q") - 2)
            await log.append_record("q", None, b"names the oldest live segment")
        damage.copy(directory, directory.with_name("crashed"))
    shutil.rmtree(directory)
    directory.with_name("crashed").rename(directory)


async def read(directory: Path) -> ReadOnlyLog:
    return await asyncio.to_thread(ReadOnlyLog.open, directory)


async def test_a_spare_two_above_the_last_segment_says_that_one_is_missing(directory: Path) -> None:
    """The spare of segment n + 1 is made only after segment n exists: a log that lost its last segment is refused."""
    await build(directory)
    last = damage.last_segment(directory)
    assert (directory / f"{segment_name(3)}.tmp").exists()
    last.unlink()
    before = damage.snapshot(directory)
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            await MultiRecordLog.open(directory)
        assert caught.value.segment == last.name
        with pytest.raises(CorruptionError) as caught:
            await read(directory)
        assert caught.value.segment == last.name
    assert damage.snapshot(directory) == before
    found = (await asyncio.to_thread(salvage, directory)).damage
    assert [(each.segment, each.reason) for each in found] == [(last.name, "the segment is missing")]


async def test_an_old_spare_says_nothing_about_a_new_log(directory: Path) -> None:
    """What a deleted log left in the directory is removed, durably, before the new one exists."""
    directory.mkdir()
    spare = directory / f"{segment_name(7)}.tmp"
    spare.write_bytes(b"of a log that was deleted")
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        assert not spare.exists()
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == ["q"]


@pytest.mark.parametrize("what", ["another segment", "no segment"])
async def test_a_dead_file_that_is_not_its_own_segment_counts_as_absent(directory: Path, what: str) -> None:
    """A power cut may bring back the old name of a file that was used again. It is not damage; it is removed."""
    await build(directory, segments=4, truncate=True)
    async with MultiRecordLog.open(directory) as log:
        kept, numbers = contents(log), [int(path.name[4:]) for path in damage.segments(directory)]
    (directory / "CLOSED").unlink()
    assert numbers[0] > 0
    dead = directory / segment_name(numbers[0] - 1)
    whole = (directory.with_name("whole") / dead.name).read_bytes()
    header = encode_header(SegmentHeader((await read(directory)).recovered.log_id, 9, 50, 0, 7))
    dead.write_bytes((header if what == "another segment" else bytes(HEADER_BYTES)) + whole[HEADER_BYTES:])
    assert contents(await read(directory)) == kept
    assert not (await asyncio.to_thread(salvage, directory)).damage
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == kept
        assert not dead.exists()


async def test_a_live_file_that_is_not_its_own_segment_is_damage(directory: Path) -> None:
    """The last segment names it as live: its records are missing."""
    await build(directory)
    first, second = damage.segments(directory)[:2]
    shutil.copyfile(second, first)
    with pytest.raises(CorruptionError, match="the file holds segment 1") as caught:
        await MultiRecordLog.open(directory)
    assert caught.value.segment == first.name


@pytest.mark.parametrize("step", ["renamed", "cut", "written"])
def test_damage_in_a_file_that_was_used_again_is_a_removed_segment(tmp_path: Path, step: str) -> None:
    """A reader without the lock looks at name and header again before it believes what it read."""
    directory = LogDirectory.at(tmp_path)
    path = tmp_path / segment_name(3)
    path.write_bytes(encode_header(SegmentHeader(LOG_ID, 3, 1, 0, 0)) + bytes(BLOCK))
    with pytest.raises(SegmentRemovedError), SegmentFiles(directory, has_lock=False).opened(3) as handle:
        _use_again(path, step)
        assert directory.was_rewritten(handle, 3, HEADER_BYTES + BLOCK) == (step != "renamed")
        raise CorruptionError(path.name, 0, "half of it is another segment")


def test_damage_in_a_file_that_is_still_its_segment_is_believed(tmp_path: Path) -> None:
    """It has its name: the writer has not used it again."""
    path = tmp_path / segment_name(3)
    path.write_bytes(encode_header(SegmentHeader(LOG_ID, 3, 1, 0, 0)) + bytes(BLOCK))
    with pytest.raises(CorruptionError), SegmentFiles(LogDirectory.at(tmp_path), has_lock=False).opened(3):
        raise CorruptionError(path.name, 0, "it is damaged")


def _use_again(path: Path, step: str) -> None:
    """Do what the writer does to a dead segment, up to *step*."""
    spare = path.with_name(f"{segment_name(5)}.tmp")
    path.rename(spare)
    if step != "renamed":
        damage.cut(spare, BLOCK // 2)
    if step == "written":
        damage.write_at(spare, 0, encode_header(SegmentHeader(LOG_ID, 5, 9, 500, 4)))
        spare.rename(path.with_name(segment_name(5)))
