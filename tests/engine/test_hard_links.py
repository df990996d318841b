"""Files with a second name: a log and its snapshot, or its `cp -al`, never touch each other's bytes."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from mrecordlog_async import LogFullError, LogLockedError, MultiRecordLog, PersistPolicy, ReadOnlyLog
from mrecordlog_async.engine.commit import dead_segments
from mrecordlog_async.engine.commit.open import OpenOptions, open_log
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.storage.directory import LogDirectory
from tests import damage
from tests.conftest import contents
from tests.faults.disk import Disk, Fault
from tests.full_disk import FullDisk

BLOCK = 32_768
SEGMENT_BYTES = 4 * BLOCK


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every segment be one whose space is given back in steps."""
    monkeypatch.setattr(dead_segments, "SHRINK_BYTES", BLOCK // 2)


async def fill(log: MultiRecordLog, records: int = 50) -> None:
    """Append some records of 10 kB: three segments with the default number."""
    await log.create_queue("q", exist_ok=True)
    for number in range(records):
        await log.append_record("q", None, b"%d" % number * 5_000)


async def drain(log: MultiRecordLog) -> None:
    """Truncate everything, and have every step of giving space back done."""
    await log.truncate("q", max(log.next_position("q") - 1, 0))
    for _ in range(40):
        await log.append_record("q", None, bytes(10_000))
        await log.truncate("q", log.next_position("q") - 1)


def hard_copy(directory: Path, target: Path) -> Path:
    """Do what `cp -al` does."""
    target.mkdir()
    for file in directory.iterdir():
        os.link(file, target / file.name)
    return target


def files(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every segment."""
    return {file.name: file.read_bytes() for file in damage.segments(directory)}


def assert_nothing_lost(before: dict[str, bytes], now: dict[str, bytes]) -> None:
    """Fail unless each segment of a log in use begins with what it held: an idle log appends and reserves."""
    assert now.keys() == before.keys()
    assert all(now[name].startswith(content.rstrip(b"\0")) for name, content in before.items())


async def test_snapshot_outlives_the_drained_log(directory: Path, tmp_path: Path) -> None:
    """The log's giving space back takes nothing from the snapshot's links."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log)
        kept = contents(log)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "kept"))
        before = files(tmp_path / "kept")
        await drain(log)
    assert files(tmp_path / "kept") == before
    async with MultiRecordLog.open(tmp_path / "kept") as log:
        assert contents(log) == kept


async def test_log_outlives_its_drained_snapshot(directory: Path, tmp_path: Path) -> None:
    """A snapshot that is opened and drained takes nothing from the log, which is in use."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log)
        kept = contents(log)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "other"))
        before = files(directory)
        async with MultiRecordLog.open(tmp_path / "other", segment_bytes=SEGMENT_BYTES) as other:
            assert contents(other) == kept
            await drain(other)
        assert_nothing_lost(before, files(directory))
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == kept


@pytest.mark.parametrize("first", ["copy", "original"])
@pytest.mark.parametrize("records", [0, 1, 50])
async def test_linked_copy_of_a_closed_log_goes_its_own_way(
    directory: Path, tmp_path: Path, first: str, records: int
) -> None:
    """Whichever is opened, written and drained first: the other one has what it had, byte for byte."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log, records)
        kept = contents(log)
    copy = hard_copy(directory, tmp_path / "copy")
    one, other = (copy, directory) if first == "copy" else (directory, copy)
    before = files(other)
    async with MultiRecordLog.open(one, segment_bytes=SEGMENT_BYTES) as log:
        assert contents(log) == kept
        await log.append_record("q", None, b"more")
        more = contents(log)
        assert files(other) == before
    async with MultiRecordLog.open(one, segment_bytes=SEGMENT_BYTES) as log:
        assert contents(log) == more
        await drain(log)
    assert files(other) == before
    async with MultiRecordLog.open(other, segment_bytes=SEGMENT_BYTES) as log:
        assert contents(log) == kept
        await drain(log)


async def test_linked_copy_of_a_living_log_stays_as_it_was(directory: Path, tmp_path: Path) -> None:
    """The writer starts a new segment at the next batch, so the copy never sees the truncates that follow."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log)
        kept = contents(log)
        copy = hard_copy(directory, tmp_path / "copy")
        before = files(copy)
        await drain(log)
        await log.append_record("q", None, b"more")
        more = contents(log)
        assert files(copy) == before
    async with MultiRecordLog.open(copy, segment_bytes=SEGMENT_BYTES) as log:
        assert contents(log) == kept
        await drain(log)
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == more


async def test_linked_lock_is_not_taken_from_its_holder(directory: Path, tmp_path: Path) -> None:
    """A copy whose LOCK is the living log's is refused, and the message says why; without that file it opens."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log)
        kept = contents(log)
        copy = hard_copy(directory, tmp_path / "copy")
        with pytest.raises(LogLockedError, match="hard link") as refused:
            await MultiRecordLog.open(copy)
        assert refused.value.is_linked
        assert refused.value.owner_pid == os.getpid()
        (copy / "LOCK").unlink()
        async with MultiRecordLog.open(copy, segment_bytes=SEGMENT_BYTES) as other:
            assert contents(other) == kept
            await drain(other)
        await log.append_record("q", None, b"more")
        more = contents(log)
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == more


async def test_free_linked_lock_is_replaced(directory: Path, tmp_path: Path) -> None:
    """The copy gets its own LOCK, so both logs can be open at once."""
    async with MultiRecordLog.open(directory):
        pass
    copy = hard_copy(directory, tmp_path / "copy")
    before = (directory / "LOCK").read_bytes()
    async with MultiRecordLog.open(copy), MultiRecordLog.open(directory):
        assert (copy / "LOCK").stat().st_nlink == (directory / "LOCK").stat().st_nlink == 1
        with pytest.raises(LogLockedError):
            await MultiRecordLog.open(copy)
    assert (directory / "LOCK").read_bytes() == before


async def test_torn_tail_of_a_linked_segment_is_left_alone(directory: Path, tmp_path: Path) -> None:
    """Bytes after the last whole batch are reported, not zeroed; the next segment shows where it ended."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log, 3)
        kept = contents(log)
    (directory / "CLOSED").unlink()
    last = damage.last_segment(directory)
    damage.half_a_batch(last)
    copy = hard_copy(directory, tmp_path / "copy")
    before = files(directory)
    async with MultiRecordLog.open(copy, segment_bytes=SEGMENT_BYTES) as log:
        assert not log.recovery_report.clean
        assert contents(log) == kept
        await log.append_record("q", None, b"more")
        more = contents(log)
    assert files(directory) == before
    async with MultiRecordLog.open(copy) as log:
        assert contents(log) == more
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == kept


async def test_unzeroed_tail_is_not_written_over_when_the_other_name_goes(directory: Path, tmp_path: Path) -> None:
    """A segment whose tail was left as it was takes no batch any more, however many names it has later."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log, 3)
    (directory / "CLOSED").unlink()
    last = damage.last_segment(directory)
    damage.write_at(last, len(last.read_bytes().rstrip(b"\0")) + 100, b"half of a batch")
    copy = hard_copy(directory, tmp_path / "copy")
    before = last.read_bytes()
    disk = FullDisk()
    async with MultiRecordLog.open(copy, segment_bytes=SEGMENT_BYTES, filesystem=disk) as log:
        last.unlink()
        disk.full = False
        await log.append_record("q", None, b"more")
        more = contents(log)
    assert (copy / last.name).read_bytes() == before
    async with MultiRecordLog.open(copy) as log:
        assert contents(log) == more


async def test_unzeroed_tail_comes_back_in_no_later_opening(directory: Path, tmp_path: Path) -> None:
    """A log that could not leave such a segment is not closed: the next opening zeroes the tail before it writes."""
    policy = PersistPolicy.never()
    log = await MultiRecordLog.open(directory, persist_policy=policy)
    await log.create_queue("q")
    for payload in (b"1", b"2", b"3"):
        await log.append_record("q", None, payload * 25)
    crashed = damage.copy(directory, tmp_path / "crashed")
    await log.close()
    last = damage.last_segment(crashed)
    begin, end = damage.batch_ends(last)[0], damage.batch_ends(last)[1]
    damage.zero(last, begin, end - begin)  # a power cut took the first of the batches that were not synced
    linked = tmp_path / "linked"
    os.link(last, linked)
    async with MultiRecordLog.open(crashed, persist_policy=policy, filesystem=FullDisk()) as log:
        assert contents(log) == {"q": (0, 0, [])}
    linked.unlink()
    async with MultiRecordLog.open(crashed, persist_policy=policy) as log:
        await log.append_record("q", None, b"4")  # with the record of this opening, as long as the batch that is gone
        expected = contents(log)
        again = damage.copy(crashed, tmp_path / "again")
    async with MultiRecordLog.open(again) as log:
        assert contents(log) == expected


async def test_linked_segment_on_a_full_disk_is_left_later(directory: Path, tmp_path: Path) -> None:
    """The log opens, but refuses writes to the shared file until there is space for its own."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log, 3)
    copy = hard_copy(directory, tmp_path / "copy")
    before = files(directory)
    disk = FullDisk()
    async with MultiRecordLog.open(copy, segment_bytes=SEGMENT_BYTES, filesystem=disk) as log:
        with pytest.raises(LogFullError):
            await log.append_record("q", None, b"refused")
        with pytest.raises(LogFullError):
            await log.truncate("q", 0)
        assert files(directory) == before
        disk.full = False
        await log.truncate("q", 0)
        assert await log.append_record("q", None, b"stored") == 3
        more = contents(log)
    assert files(directory) == before
    async with MultiRecordLog.open(copy) as log:
        assert contents(log) == more


def test_opening_that_fails_half_way_closes_each_file_once() -> None:
    """Whichever call to the disk fails while an open log leaves a linked segment: every handle is closed, and once."""
    options, failed = OpenOptions(SEGMENT_BYTES), 0
    while True:
        disk = Disk()
        log = LogDirectory(disk, "/data/wal")
        open_log(log, options).close()
        disk.link(log.path_of(0), "/data/copy")
        fault = disk.fault = Fault(disk.calls + failed + 1)
        with suppress(OSError):
            open_log(log, options).close()
        assert (disk.open_handles(), disk.misuse) == (0, []), fault
        if not fault.hit:
            break
        failed += 1
    assert failed > 30


async def test_reader_that_has_a_segment_open_sees_no_cut(directory: Path) -> None:
    """A removed segment that another process has open keeps its bytes until it is closed."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log)
        first = damage.segments(directory)[0]
        whole = first.read_bytes()
        with first.open("rb") as reader:
            assert reader.read(10) == whole[:10]
            await drain(log)
            assert not first.exists()
            assert whole[:10] + reader.read() == whole


async def test_reader_opens_while_the_log_is_drained(directory: Path, tmp_path: Path) -> None:
    """A snapshot can be read before, while and after the log that it was taken of is drained."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log)
        kept = contents(log)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "kept"))
        with await asyncio.to_thread(ReadOnlyLog.open, tmp_path / "kept") as reader:
            await drain(log)
            assert contents(reader) == kept
        with await asyncio.to_thread(ReadOnlyLog.open, tmp_path / "kept") as reader:
            assert contents(reader) == kept


async def test_linked_spare_is_not_written(directory: Path, tmp_path: Path) -> None:
    """A spare with a second name is recreated, so the copy's name never points to a live segment."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await fill(log, 1)
        await log.sync()
        copy = hard_copy(directory, tmp_path / "copy")
        spares = [file for file in copy.iterdir() if file.suffix == ".tmp"]
        before = {file: file.read_bytes() for file in spares}
        assert spares
        await fill(log, 50)
        assert {file: file.read_bytes() for file in spares} == before
