"""`ReadOnlyLog.refresh` reads what a running writer has added, at the cost of the new records only."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, LogClosedError, MultiRecordLog, PersistPolicy, ReadOnlyLog
from mrecordlog_async.format.frame import FRAME_HEADER_BYTES, encode_frames, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader, encode_header
from mrecordlog_async.format.record import COMMIT_BYTES
from mrecordlog_async.format.table import encode_table
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage
from tests.conftest import contents
from tests.faults.histories import COMMIT_OFFSET
from tests.recovery.test_recovery import forge_table

BLOCK = 32_768


async def reader_of(directory: Path, files: OsFileSystem | None = None) -> ReadOnlyLog:
    return await asyncio.to_thread(ReadOnlyLog.open, directory, filesystem=files)


async def refresh(reader: ReadOnlyLog) -> bool:
    return await asyncio.to_thread(reader.refresh)


class Watched(OsFileSystem):
    """Counts bytes read, notes syncs, and fails them on request."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.syncs = 0
        self.error: int | None = None

    def read(self, handle: int, length: int, offset: int) -> bytes:
        piece = super().read(handle, length, offset)
        self.read_bytes += len(piece)
        return piece

    def sync(self, handle: int) -> None:
        self.syncs += 1
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        super().sync(handle)

    def take(self) -> int:
        """Return the bytes read since the last call."""
        taken, self.read_bytes = self.read_bytes, 0
        return taken


async def test_a_refresh_shows_what_came(log: MultiRecordLog, directory: Path) -> None:
    """It shows appends, truncates, new and deleted queues, and returns False if nothing was stored."""
    reader = await reader_of(directory)
    assert not await refresh(reader)
    await log.append_records("q", 5, [b"a", b"b"])
    assert list(reader.range("q")) == []
    assert await refresh(reader)
    assert contents(reader) == contents(log)
    await log.truncate("q", 5)
    await log.create_queue("r")
    assert await refresh(reader)
    await log.delete_queue("q")
    assert await refresh(reader)
    assert contents(reader) == contents(log) == {"r": (0, 0, [])}


@pytest.mark.parametrize("seed", range(12))
async def test_a_reader_that_reads_on_sees_what_the_writer_has(directory: Path, seed: int) -> None:
    """It continues over rolls, removed segments and a reopened log, however much was written between two refreshes."""
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    opened = MultiRecordLog.open(directory, segment_bytes=BLOCK, persist_policy=PersistPolicy.never())
    log = await opened
    reader = None
    for step in range(60):
        name, dice = rng.choice(names), rng.random()
        if not log.queue_exists(name):
            await log.create_queue(name)
        elif dice < 0.7:
            await log.append_records(name, None, [rng.randbytes(rng.choice([0, 9, 900, 9_000, 70_000]))] * 2)
        elif dice < 0.85:
            await log.truncate(name, max(log.next_position(name) - rng.choice([1, 2, 5]), 0))
        elif dice < 0.95:
            await log.delete_queue(name)
        else:
            await log.close()
            log = await MultiRecordLog.open(directory, segment_bytes=BLOCK)
        if reader is None:
            reader = await reader_of(directory)
        elif rng.random() < 0.5:
            await refresh(reader)
            assert contents(reader) == contents(log), step
    await log.close()


async def test_an_idle_look_reads_next_to_nothing_and_a_new_record_little(directory: Path) -> None:
    """The cost of a refresh does not depend on the size of the log."""
    files = Watched()
    async with MultiRecordLog.open(directory, segment_bytes=1 << 23) as log:
        await log.create_queue("q")
        for _ in range(20):
            await log.append_record("q", None, bytes(1 << 20))
    reader = await reader_of(directory, files)
    assert files.take() > 20 << 20
    for _ in range(10):
        assert not await refresh(reader)
    assert files.take() < 10 * 200
    assert files.syncs == 1
    async with MultiRecordLog.open(directory, segment_bytes=1 << 23) as log:
        await log.append_record("q", None, b"one more")
        assert await refresh(reader)
        assert files.take() < 4 * BLOCK
        assert next(reader.range("q", 20)) == (20, b"one more")


async def test_between_two_looks_no_file_is_open(log: MultiRecordLog, directory: Path) -> None:
    """A reader does not keep the space of a removed segment in use."""
    reader = await reader_of(directory)
    await log.append_record("q", None, b"a")
    writers = set(open_files(directory))
    assert await refresh(reader)
    assert set(open_files(directory)) <= writers


async def test_removed_segments_are_forgotten(directory: Path) -> None:
    """A reader that follows a log for months keeps no more of it than there is."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, queues=["q"]) as log:
        reader = await reader_of(directory)
        for _ in range(12):
            await log.append_records("q", None, [bytes(9_000)] * 4)
            await log.truncate("q", log.next_position("q") - 2)
            assert await refresh(reader)
        assert reader.recovered.end.segment >= 10
        assert len(reader.recovered.older) <= 4


def open_files(directory: Path) -> list[str]:
    """Return the descriptors of this process that are open on files of *directory*."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(directory)):
                found.append(descriptor)
        except OSError:  # the listing's own
            continue
    return found


async def test_nothing_is_shown_that_could_not_be_synced(log: MultiRecordLog, directory: Path) -> None:
    """A reader shows only synced records; the next refresh tries the sync again."""
    files = Watched()
    reader = await reader_of(directory, files)
    await log.append_record("q", None, b"a")
    files.error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        await refresh(reader)
    assert list(reader.range("q")) == []
    files.error = errno.EROFS  # there is no writer, so there is nothing to sync
    await refresh(reader)
    assert list(reader.range("q")) == [(0, b"a")]


async def test_what_a_refresh_shows_was_read_from_the_disk(log: MultiRecordLog, directory: Path) -> None:
    """A page in the cache may be all that is left of a write that failed."""

    class Dropping(Watched):
        dropped: list[int]

        def drop_cache(self, handle: int) -> None:
            self.dropped.append(self.read_bytes)
            super().drop_cache(handle)

    files = Dropping()
    files.dropped = []
    reader = await reader_of(directory, files)
    files.dropped.clear()
    assert not await refresh(reader)
    assert files.dropped == []
    await log.append_record("q", None, b"a")
    files.take()
    assert await refresh(reader)
    assert len(files.dropped) == 1
    assert files.dropped[0] < files.take() - BLOCK // 2, "the batch is read after that"


async def test_a_table_of_the_next_segment_that_does_not_follow_is_not_gone_on_with(directory: Path) -> None:
    """It is reported as damage, although every checksum in it is right."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, queues=["q"]) as log:
        await log.append("q", bytes(20_000))
        reader = await reader_of(directory)
        await log.append("q", bytes(20_000))
    forge_table(damage.segments(directory)[-1], lambda table: replace(table, next_queue_id=table.next_queue_id + 1))
    with pytest.raises(CorruptionError, match="table"):
        await refresh(reader)


@pytest.mark.parametrize("left", range(9))
async def test_a_batch_that_begins_with_the_next_block_is_shown(directory: Path, left: int) -> None:
    """Where the last one left no room for a frame's header, padding stands between the two."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append("q", b"first")
        end = log._engine.opened.journal.end
        size = BLOCK - end.offset - left - COMMIT_OFFSET - FRAME_HEADER_BYTES - COMMIT_BYTES
        await log.append("q", bytes(size))
        assert end.offset == BLOCK - left
        reader = await reader_of(directory)
        assert not await refresh(reader)
        await log.append("q", b"last")
        assert await refresh(reader)
        assert next(reader.range("q", 2)) == (2, b"last")


async def three_records(directory: Path) -> tuple[Path, list[int]]:
    """Create a log whose process was killed; return its segment and the ends of its batches."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        for payload in (b"one", b"two", b"three"):
            await log.append_record("q", None, payload)
    (directory / "CLOSED").unlink()
    segment = damage.last_segment(directory)
    return segment, damage.batch_ends(segment)


async def test_half_a_batch_is_not_shown_and_a_whole_one_is(directory: Path) -> None:
    """A half-written batch is neither a record nor damage until the rest is written."""
    segment, ends = await three_records(directory)
    last = segment.read_bytes()[ends[-2] : ends[-1]]
    damage.zero(segment, ends[-2], len(last))
    reader = await reader_of(directory)
    for written in range(0, len(last), 7):
        damage.write_at(segment, ends[-2], last[:written])
        assert not await refresh(reader)
    damage.write_at(segment, ends[-2], last)
    assert await refresh(reader)
    assert [payload for _, payload in reader.range("q")] == [b"one", b"two", b"three"]


async def test_a_torn_tail_that_stays_is_judged_ever_more_rarely(directory: Path) -> None:
    """If the writer died, the whole log is read again only at refresh 2, 4, 8 and so on."""
    segment, _ = await three_records(directory)
    damage.half_a_batch(segment)
    files = Watched()
    reader = await reader_of(directory, files)
    files.syncs = 0
    for _ in range(100):
        assert not await refresh(reader)
    assert files.syncs == 6  # at looks 2, 4, 8, 16, 32 and 64
    async with MultiRecordLog.open(directory) as log:
        await log.append_record("q", None, b"four")
        assert await refresh(reader)
    assert next(reader.range("q", 3)) == (3, b"four")


async def test_damage_to_what_was_acknowledged_is_refused(directory: Path) -> None:
    """A later batch proves it: the reader does not wait forever for the damaged one."""
    segment, ends = await three_records(directory)
    whole = segment.read_bytes()
    damage.zero(segment, ends[1], ends[-1] - ends[1])
    reader = await reader_of(directory)
    assert [payload for _, payload in reader.range("q")] == [b"one"]
    damage.write_at(segment, ends[1], whole[ends[1] : ends[-1]])
    damage.flip_byte(segment, ends[1] + 10)
    assert not await refresh(reader)
    with pytest.raises(CorruptionError, match="batch 3 is damaged"):
        await refresh(reader)


async def test_another_log_in_the_same_place_is_read_again(directory: Path, tmp_path: Path) -> None:
    """The new log's queues are different queues; a missing log is reported."""
    await three_records(directory)
    reader = await reader_of(directory)
    before = reader.queue_summary("q").id
    shutil.rmtree(directory)
    await three_records(directory)
    assert await refresh(reader)
    assert reader.queue_summary("q").id != before
    assert not await refresh(reader)
    shutil.rmtree(directory)
    directory.mkdir()
    with pytest.raises(FileNotFoundError):
        await refresh(reader)


async def test_another_log_that_is_shorter_is_read_again(directory: Path) -> None:
    """The reader finds zeros at its offset: only the header shows that it is another log."""
    await three_records(directory)
    reader = await reader_of(directory)
    shutil.rmtree(directory)
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("other")
        assert await refresh(reader)
        assert reader.list_queues() == ["other"]


async def replace_by_older_copy(directory: Path, letters: bytes, records: int) -> AsyncIterator[None]:
    """Store AAAA0 to AAAA2, of which a copy has the first; put that in their place, with more records of *letters*."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append("q", b"AAAA0")
    shutil.copytree(directory, directory.parent / "copy")
    async with MultiRecordLog.open(directory) as log:
        for number in (1, 2):
            await log.append("q", b"AAAA%d" % number)
    yield
    shutil.rmtree(directory)
    (directory.parent / "copy").rename(directory)
    if records:
        async with MultiRecordLog.open(directory) as log:
            for number in range(1, records):
                await log.append("q", letters + b"%d" % number)
    yield


@pytest.mark.parametrize("records", [0, 2, 3, 7])
async def test_an_older_copy_in_the_same_place_is_read_again(directory: Path, records: int) -> None:
    """However much was stored in the copy since, with the same sizes: what is shown is of one log, never of both."""
    steps = replace_by_older_copy(directory, b"BBBB", records)
    await anext(steps)
    reader = await reader_of(directory)
    assert [payload for _, payload in reader.range("q")] == [b"AAAA0", b"AAAA1", b"AAAA2"]
    assert not await refresh(reader)
    await anext(steps)
    assert await refresh(reader)
    expected = [b"AAAA0", *(b"BBBB%d" % number for number in range(1, records))]
    assert [payload for _, payload in reader.range("q")] == expected
    assert reader.went_back
    assert not await refresh(reader)
    async with MultiRecordLog.open(directory) as log:
        await log.append("q", b"CCCC")
        assert await refresh(reader)
        assert contents(reader) == contents(log)


async def test_a_log_of_several_segments_that_an_older_copy_replaced_is_read_again(directory: Path) -> None:
    """Even if the segment that was read last is not in the copy, or is again, with another beginning."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, queues=["q"]) as log:
        await log.append("q", b"first")
    copy = Path(shutil.copytree(directory, directory.parent / "copy"))
    for rolls in (0, 1, 4):
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
        async with MultiRecordLog.open(directory, segment_bytes=BLOCK) as log:
            for _ in range(2):
                await log.append("q", b"A" * 20_000)
        reader = await reader_of(directory)
        shutil.rmtree(directory)
        shutil.copytree(copy, directory)
        async with MultiRecordLog.open(directory, segment_bytes=BLOCK) as log:
            for number in range(rolls):
                await log.append("q", b"B" * 20_000)
                await log.truncate("q", number)
            assert await refresh(reader)
            assert contents(reader) == contents(log)
        assert reader.went_back


async def test_a_reader_that_was_overtaken_did_not_go_back(directory: Path) -> None:
    """A log that only went on is read again as well, if the segments in between were removed."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK, queues=["q"], recycle=False) as log:
        await log.append("q", bytes(20_000))
        reader = await reader_of(directory)
        for position in range(6):
            await log.append("q", bytes(20_000))
            await log.truncate("q", position)
        assert await refresh(reader)
        assert contents(reader) == contents(log)
    assert not reader.went_back


async def test_another_log_in_the_next_segment_is_not_gone_on_with(log: MultiRecordLog, directory: Path) -> None:
    """It is reported as damage, although all of it has valid checksums."""
    reader = await reader_of(directory)
    log_id = bytes(16)
    buffers: list[bytes | memoryview] = [
        encode_header(SegmentHeader(log_id, 1, reader.recovered.end.last_batch + 1, reader.recovered.end.offset, 0))
    ]
    encode_frames(encode_table(reader.recovered.queues.table()), HEADER_BYTES, segment_seed(log_id, 1), buffers)
    (directory / "wal-00000000000000000001").write_bytes(b"".join(buffers))
    with pytest.raises(CorruptionError):
        await refresh(reader)
    (directory / "wal-00000000000000000001").unlink()


async def test_a_closed_reader_does_not_refresh(log: MultiRecordLog, directory: Path) -> None:
    """It raises the same error as every other call."""
    reader = await reader_of(directory)
    reader.close()
    with pytest.raises(LogClosedError):
        await refresh(reader)


async def test_a_directory_may_be_named_in_bytes(directory: Path) -> None:
    """Paths may be bytes, as in the standard library; a log open for writing accepts them too."""
    async with MultiRecordLog.open(os.fsencode(directory)) as log:  # type: ignore[arg-type]  # what nobody promises
        await log.create_queue("q")
    reader = await asyncio.to_thread(ReadOnlyLog.open, os.fsencode(directory))  # type: ignore[arg-type]
    assert reader.list_queues() == ["q"]


async def test_another_log_takes_the_place_of_one_without_batches(directory: Path, tmp_path: Path) -> None:
    """The end of the log that was read says nothing yet: only the header tells the two apart."""
    async with MultiRecordLog.open(directory):
        pass
    reader = await reader_of(directory)
    async with MultiRecordLog.open(tmp_path / "other") as log:
        await log.append("q", b"of the other", create=True)
        expected = contents(log)
    (directory / "CLOSED").unlink()
    for path in (tmp_path / "other").glob("wal-*"):
        shutil.copy(path, directory)
    assert await refresh(reader)
    assert contents(reader) == expected
    reader.close()
