"""`ReadOnlyLog` works if the writer removes segments between two of the reader's calls to the file system."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.recovery.live_reader import LOST_MAX
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import segment_name
from tests import damage
from tests.conftest import contents
from tests.readonly.overtaking import Interrupted, Stages, build

BLOCK = 32_768


async def open_reader(directory: Path, files: OsFileSystem) -> ReadOnlyLog:
    return await asyncio.to_thread(ReadOnlyLog.open, directory, filesystem=files)


@pytest.fixture
async def stages(tmp_path: Path) -> Stages:
    made = await build(tmp_path, count=2 + LOST_MAX, each=8, kept=4)
    for older, newer in zip(range(len(made.states)), range(1, len(made.states)), strict=False):
        assert made.segments(older)[-1] + 1 < made.segments(newer)[0], "each stage has overtaken the one before it"
    return made


async def test_a_refresh_that_finds_neither_its_segment_nor_the_next_reads_the_log_again(
    tmp_path: Path, directory: Path
) -> None:
    """If both were removed, the log is read again: newer records are shown, and True is returned."""
    stages = await build(tmp_path, count=3, each=4, kept=1)
    directory.mkdir()
    stages.put(0, directory)
    files = Interrupted()
    reader = await open_reader(directory, files)
    last = stages.segments(0)[-1]
    shutil.copyfile(directory / segment_name(last), directory / segment_name(last + 1))
    (directory / segment_name(last)).unlink()
    files.interrupt(last + 1, lambda: stages.put(2, directory))
    assert await asyncio.to_thread(reader.refresh)
    assert contents(reader) == stages.states[2]


async def test_a_refresh_whose_segment_goes_while_the_next_is_looked_for_reads_the_log_again(
    tmp_path: Path, directory: Path
) -> None:
    """The reader's segment still existed, with nothing new in it; the records were in the next one."""
    stages = await build(tmp_path, count=3, each=4, kept=1)
    directory.mkdir()
    stages.put(0, directory)
    files = Interrupted()
    reader = await open_reader(directory, files)
    files.interrupt(stages.segments(0)[-1] + 1, lambda: stages.put(2, directory))
    assert await asyncio.to_thread(reader.refresh)
    assert contents(reader) == stages.states[2]


async def test_a_reader_that_makes_progress_does_not_read_the_log_again(directory: Path) -> None:
    """If each refresh finds half of the next batch, the log is not read again as a whole."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        for number in range(40):
            await log.append_record("q", None, b"%d" % number)
    (directory / "CLOSED").unlink()
    segment = damage.last_segment(directory)
    whole, ends = segment.read_bytes(), damage.batch_ends(segment)
    damage.zero(segment, ends[0], ends[-1] - ends[0])
    files = Interrupted()
    reader = await open_reader(directory, files)
    files.listed = 0
    for end in ends[1:]:
        damage.write_at(segment, ends[0], whole[ends[0] : end - 30])
        await asyncio.to_thread(reader.refresh)
    assert reader.next_position("q") == 39
    assert files.listed == 0


async def test_a_segment_that_is_ended_between_two_looks_is_read_to_its_end(tmp_path: Path, directory: Path) -> None:
    """Its last batches came after the look into it, and before the look for the next one; nothing is read again."""
    stages = Stages(tmp_path)
    async with MultiRecordLog.open(tmp_path / "made", segment_bytes=BLOCK, queues=["q"]) as log:
        await log.append("q", bytes(10_000))
        stages.take(log)
        await log.append("q", b"the last one of its segment")
        await log.append("q", bytes(30_000))
        stages.take(log)
    directory.mkdir()
    stages.put(0, directory)
    files = Interrupted()
    reader = await open_reader(directory, files)
    files.listed = 0
    files.interrupt(stages.segments(0)[-1] + 1, lambda: stages.put(1, directory))
    assert await asyncio.to_thread(reader.refresh)
    assert contents(reader) == stages.states[1]
    assert files.listed == 0


async def test_open_reads_on_where_a_segment_was_removed_before_its_turn(tmp_path: Path, directory: Path) -> None:
    """What it shows is a state that the log had, not the end of one and the start of another."""
    stages = await build(tmp_path, count=2, each=2, kept=6)
    directory.mkdir()
    stages.put(0, directory)
    first = stages.segments(0)[0]
    assert stages.segments(1)[0] > first
    files = Interrupted()
    files.interrupt(stages.segments(0)[-1], lambda: None)
    for turn in (1, 2, 3):
        stages.put(0, directory)
        files = Interrupted()
        seen = 0

        def later(turn: int = turn, files: Interrupted = files) -> None:
            nonlocal seen
            seen += 1
            if seen == turn:
                stages.put(1, directory)
            else:
                files.interrupt(first, later)

        files.interrupt(first, later)
        with await open_reader(directory, files) as reader:
            assert contents(reader) == stages.states[1 if seen == turn else 0]
        assert files.listed == 1, "nothing that was read is read again"


async def test_a_segment_whose_space_is_given_back_while_it_is_read_is_no_damage(
    tmp_path: Path, directory: Path
) -> None:
    """Its name is removed and the file shrinks: it is skipped like one removed earlier."""
    stages = await build(tmp_path, count=2, each=2, kept=6)
    directory.mkdir()
    stages.put(0, directory)
    first = directory / segment_name(stages.segments(0)[0])

    class Shrinking(OsFileSystem):
        listed = 0

        def list_names(self, path: str) -> list[str]:
            self.listed += 1
            return super().list_names(path)

        def read(self, handle: int, length: int, offset: int) -> bytes:
            if offset == 0 and length >= BLOCK and first.exists() and _is(handle, first):
                with first.open("r+b") as file:
                    stages.put(1, directory)
                    file.truncate(BLOCK)
            return super().read(handle, length, offset)

    files = Shrinking()
    with await open_reader(directory, files) as reader:
        assert not first.exists()
        assert contents(reader) == stages.states[1]
    assert files.listed == 1, "nothing that was read is read again"


def _is(handle: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(handle), path.stat())


async def test_open_ends_however_fast_the_writer_is(directory: Path, stages: Stages) -> None:
    """Open returns the records up to some end, less those truncated since; a refresh rereads the log."""
    directory.mkdir()
    stages.put(0, directory)
    files = Interrupted()
    at = 0

    def overtake() -> None:
        nonlocal at
        at += 1
        stages.put(at, directory)
        if at < LOST_MAX:
            files.interrupt(stages.segments(at)[0], overtake)

    files.interrupt(stages.segments(0)[0], overtake)
    with await open_reader(directory, files) as reader:
        assert at == LOST_MAX
        assert reader.recovered.overtaken
        start, stop, records = contents(reader)["q"]
        seen, written = stages.states[at - 1]["q"], stages.states[at]["q"]
        assert stop == seen[1]
        assert seen[0] <= start <= written[0]
        assert records == [record for record in seen[2] if record[0] >= start]
        assert contents(reader)["idle"] == stages.states[at]["idle"]
        assert await asyncio.to_thread(reader.refresh)
        assert contents(reader) == stages.states[at]


async def test_a_segment_that_is_missing_for_good_is_damage(tmp_path: Path, directory: Path) -> None:
    """Nobody truncated what it held, so reading further does not explain why it is missing."""
    stages = await build(tmp_path, count=1, each=1, kept=6)
    directory.mkdir()
    stages.put(0, directory)
    first = stages.segments(0)[0]
    files = Interrupted()
    files.interrupt(first, (directory / segment_name(first)).unlink)
    with pytest.raises(CorruptionError, match="the segment is missing, and it held live data"):
        await open_reader(directory, files)
