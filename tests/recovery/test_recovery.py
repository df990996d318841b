"""Opening: every row of the table in `recovery/recovery.py`, and every way a directory can be wrong."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, PersistPolicy, ReadOnlyLog, RecoveryProgress
from mrecordlog_async.engine.commit import upkeep
from mrecordlog_async.format.frame import encode_frames, encode_unsplit, segment_seed
from mrecordlog_async.format.header import (
    HEADER_BYTES,
    Closed,
    SegmentHeader,
    decode_closed,
    decode_header,
    encode_closed,
    encode_header,
)
from mrecordlog_async.format.record import Commit, encode_commit
from mrecordlog_async.format.table import Table, decode_table, encode_table
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import SegmentFile
from tests import damage
from tests.conftest import contents

SEGMENT_BYTES = 2 * damage.BLOCK_BYTES

Contents = dict[str, tuple[int, int, list[tuple[int, bytes]]]]


async def write_log(directory: Path, target: Path, rounds: int = 6) -> list[Contents]:
    """Write some batches to one segment and copy the directory as a crash would leave it; return each batch's state."""
    states: list[Contents] = [{}]
    async with MultiRecordLog.open(directory, segment_bytes=1 << 20) as log:
        await log.create_queue("q")
        states.append(contents(log))
        for n in range(rounds):
            await log.append_records("q", None, [b"%d-%d" % (n, k) * 20 for k in range(3)])
            states.append(contents(log))
        damage.copy(directory, target)
    return states


async def reopen(directory: Path) -> tuple[Contents, MultiRecordLog]:
    """Open, look and close."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        return contents(log), log


async def refuses(directory: Path, segment: str | None = None) -> CorruptionError:
    """Show that opening is refused, twice with the same words, by readers as well, and touches nothing."""
    before = damage.snapshot(directory)
    with pytest.raises(CorruptionError) as first:
        await MultiRecordLog.open(directory)
    with pytest.raises(CorruptionError) as second:
        await MultiRecordLog.open(directory)
    with pytest.raises(CorruptionError) as reader:
        await asyncio.to_thread(ReadOnlyLog.open, directory)
    assert str(first.value) == str(second.value) == str(reader.value)
    assert damage.snapshot(directory) == before
    if segment is not None:
        assert first.value.segment == segment
    return first.value


# The rows of the table.


async def test_only_zeros_behind_the_last_batch_is_a_clean_end(directory: Path, tmp_path: Path) -> None:
    """Reserved space after the last batch is not damage: the log continues there."""
    states = await write_log(directory, tmp_path / "crashed")
    found, log = await reopen(tmp_path / "crashed")
    assert found == states[-1]
    assert log.recovery_report.clean
    assert log.recovery_report.dropped_bytes == 0


@pytest.mark.parametrize("keep", [1, 40, 63])
async def test_torn_tail_is_cut_reported_and_never_seen_again(directory: Path, tmp_path: Path, keep: int) -> None:
    """A last batch without its whole COMMIT was never acknowledged: it is counted, zeroed and dropped."""
    crashed = tmp_path / "crashed"
    states = await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    ends = damage.batch_ends(path)
    damage.zero(path, ends[-1] - 64 + keep, 64 - keep)
    found, log = await reopen(crashed)
    assert found == states[-2]
    report = log.recovery_report
    assert not report.clean
    assert (report.segment, report.offset) == (path.name, ends[-2])
    assert 0 < report.dropped_bytes <= ends[-1] - ends[-2]
    assert not any(path.read_bytes()[ends[-2] :])
    again, log = await reopen(crashed)
    assert again == found
    assert log.recovery_report.clean


async def test_bytes_of_another_segment_are_neither_damage_nor_a_torn_tail(directory: Path, tmp_path: Path) -> None:
    """What the file held before is zeroed, and opening reports a clean log."""
    crashed = tmp_path / "crashed"
    states = await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    end = damage.batch_ends(path)[-1]
    header = decode_header(path.read_bytes()[:HEADER_BYTES])
    stale: list[bytes | memoryview] = []
    seed = segment_seed(header.log_id, 7)
    commit = Commit(header.log_id, 7, batch=900, durable_batch=899, batch_offset=end, oldest_segment=7, time_ns=0)
    encode_unsplit(encode_commit(commit), encode_frames([b"stale" * 9], end, seed, stale), seed, stale)
    damage.write_at(path, end, b"".join(stale))
    found, log = await reopen(crashed)
    assert found == states[-1]
    assert log.recovery_report.clean
    assert log.recovery_report.dropped_bytes == 0
    assert not any(path.read_bytes()[end:])


async def test_zeros_after_the_end_are_not_written_again(directory: Path, tmp_path: Path) -> None:
    """Only what is not zero is zeroed: reserved space stays as it is, and a hole stays a hole."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 8_000_000)
        file.seek(-1, 2)
        file.write(b"x")
    before = path.stat().st_blocks
    with patch.object(SegmentFile, "reserve"):
        await reopen(crashed)
    assert path.stat().st_blocks * 512 < before * 512 + 3_000_000
    assert not any(path.read_bytes()[-4_000_000:])


@pytest.mark.parametrize("place", ["header", "payload", "commit"])
async def test_damage_with_a_later_commit_is_refused(directory: Path, tmp_path: Path, place: str) -> None:
    """A later COMMIT that lists the damaged batch as durable proves that it was acknowledged."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    ends = damage.batch_ends(path)
    offset = {"header": ends[2] + 4, "payload": ends[2] + 30, "commit": ends[3] - 20}[place]
    damage.flip_byte(path, offset)
    error = await refuses(crashed, path.name)
    assert error.offset == ends[2]
    assert "acknowledged" in error.reason


async def test_a_commit_is_found_at_any_byte_behind_the_damage(directory: Path, tmp_path: Path) -> None:
    """A damaged length hides where the next frames begin; their COMMITs are found nevertheless."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    ends = damage.batch_ends(path)
    damage.zero(path, ends[0], ends[-3] - ends[0])
    error = await refuses(crashed, path.name)
    assert error.offset == ends[0]


async def test_last_batch_is_known_as_durable_after_the_mark(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle log writes an empty batch, so that rot in the last acknowledged one is seen."""
    crashed = tmp_path / "crashed"
    async with MultiRecordLog.open(directory, segment_bytes=1 << 20) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"precious")
        size = log.resource_usage().disk_written_bytes
        monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.0)  # not before the size is known
        log._engine.writer._upkeep._on_mark()
        while log.resource_usage().disk_written_bytes == size:
            await asyncio.sleep(0.001)
        damage.copy(directory, crashed)
    path = damage.last_segment(crashed)
    ends = damage.batch_ends(path)
    damage.flip_byte(path, ends[-2] - 70)
    assert (await refuses(crashed, path.name)).offset == ends[-3]


async def test_closed_log_notices_any_damage_to_its_end(directory: Path, tmp_path: Path) -> None:
    """After a clean close even a missing last batch is detected, which a single copy could not show otherwise."""
    await write_log(directory, tmp_path / "unused")
    path = damage.last_segment(directory)
    ends = damage.batch_ends(path)
    damage.zero(path, ends[-2], ends[-1] - ends[-2])
    error = await refuses(directory, path.name)
    assert error.offset == ends[-2]
    assert "CLOSED" in error.reason


async def test_closed_log_with_its_last_segment_removed_is_refused(directory: Path, tmp_path: Path) -> None:
    """CLOSED names the last segment, so its removal is detected."""
    await fill_segments(directory)
    damage.last_segment(directory).unlink()
    assert "closed" in (await refuses(directory)).reason


async def test_closed_without_any_segment_is_refused(directory: Path, tmp_path: Path) -> None:
    """A directory with a CLOSED file and no segments is not used for a new log."""
    await write_log(directory, tmp_path / "unused")
    damage.last_segment(directory).unlink()
    assert (await refuses(directory)).segment == "CLOSED"


@pytest.mark.parametrize("offset", [0, 9, 20, 40, 55])
async def test_closed_that_cannot_be_read_is_refused(directory: Path, tmp_path: Path, offset: int) -> None:
    """CLOSED is acknowledged data as well: a damaged one is named."""
    await write_log(directory, tmp_path / "unused")
    damage.flip_byte(directory / "CLOSED", offset)
    assert (await refuses(directory)).segment == "CLOSED"


async def test_bytes_after_the_end_that_closed_names_are_left_alone(directory: Path, tmp_path: Path) -> None:
    """With CLOSED, what follows the end that it states is neither judged nor zeroed, unless it is the next batch."""
    states = await write_log(directory, tmp_path / "unused")
    path = damage.last_segment(directory)
    end = damage.batch_ends(path)[-1]
    damage.write_at(path, end + 10, b"xyz")
    found, log = await reopen(directory)
    assert found == states[-1]
    assert log.recovery_report.clean
    assert path.read_bytes()[end + 10 : end + 13] == b"xyz"
    assert (await reopen(directory))[0] == found


async def _is_refused_until_closed_is_removed(mixed: Path, expected: object) -> None:
    """An outdated CLOSED is refused with advice; without it, the log holds what is *expected*."""
    error = await refuses(mixed, damage.last_segment(mixed).name)
    assert "CLOSED is older" in error.reason and "remove CLOSED" in error.reason
    (mixed / "CLOSED").unlink()
    assert (await reopen(mixed))[0] == expected


async def test_a_closed_that_is_older_than_the_batches_after_it_is_refused(directory: Path, tmp_path: Path) -> None:
    """A copy over an older one may keep its CLOSED: no batch is hidden, and without CLOSED everything is there."""
    await write_log(directory, tmp_path / "unused")
    mixed = damage.copy(directory, tmp_path / "mixed")
    async with MultiRecordLog.open(directory, segment_bytes=1 << 20) as log:
        await log.append_records("q", None, [b"1", bytes(3 * damage.BLOCK_BYTES), b"3"])
        shutil.copytree(directory, mixed, dirs_exist_ok=True)
        expected = contents(log)
    await _is_refused_until_closed_is_removed(mixed, expected)


async def test_a_closed_of_an_earlier_segment_is_refused_with_advice(directory: Path, tmp_path: Path) -> None:
    """A copy over an older one, from before the log rolled: the same advice, and the same result."""
    await write_log(directory, tmp_path / "unused")
    mixed = damage.copy(directory, tmp_path / "mixed")
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        for _ in range(4):
            await log.append_record("q", None, bytes(damage.BLOCK_BYTES))
        shutil.copytree(directory, mixed, dirs_exist_ok=True)
        expected = contents(log)
    await _is_refused_until_closed_is_removed(mixed, expected)


async def test_a_segment_of_a_copy_that_went_on_differently_is_refused(directory: Path, tmp_path: Path) -> None:
    """Everything in it is whole and in its place, but for the queues that the next segment begins with."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.create_queue("q")
    other = damage.copy(directory, tmp_path / "other")
    for place, queue in ((directory, "a"), (other, "b")):
        async with MultiRecordLog.open(place, segment_bytes=SEGMENT_BYTES) as log:
            await log.create_queue(queue)
            for _ in range(6):
                await log.append_record("q", None, bytes(damage.BLOCK_BYTES))
    shutil.copy(other / "wal-00000000000000000000", directory)
    with pytest.raises(CorruptionError, match="does not match the end of the previous segment"):
        await MultiRecordLog.open(directory)


async def test_a_closed_of_another_log_is_refused_as_such(directory: Path, tmp_path: Path) -> None:
    """Its segment may have the same number as the last one here, so that says nothing."""
    states = await write_log(directory, tmp_path / "unused")
    async with MultiRecordLog.open(tmp_path / "other"):
        pass
    shutil.copy(tmp_path / "other" / "CLOSED", directory / "CLOSED")
    error = await refuses(directory, "CLOSED")
    assert "another log" in error.reason and "remove CLOSED" in error.reason
    (directory / "CLOSED").unlink()
    assert (await reopen(directory))[0] == states[-1]


@pytest.mark.parametrize(("segment", "skipped"), [(7, 0), (0, 1)], ids=["another segment", "another number"])
async def test_a_batch_that_is_not_the_next_one_does_not_contradict_closed(
    directory: Path, tmp_path: Path, segment: int, skipped: int
) -> None:
    """After the end there may be whole batches from when the file was another segment."""
    states = await write_log(directory, tmp_path / "unused")
    path = damage.last_segment(directory)
    end = damage.batch_ends(path)[-1]
    closed = decode_closed((directory / "CLOSED").read_bytes())
    stale: list[bytes | memoryview] = []
    seed = segment_seed(closed.log_id, segment)
    commit = Commit(closed.log_id, segment, closed.last_batch + 1 + skipped, closed.last_batch, end, segment, 0)
    encode_unsplit(encode_commit(commit), end, seed, stale)
    damage.write_at(path, end, b"".join(stale))
    found, log = await reopen(directory)
    assert found == states[-1]
    assert log.recovery_report.clean


async def test_a_log_that_is_closed_again_while_it_is_read_is_read_to_its_new_end(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a reader without the lock, batches after the CLOSED that it read first are those of a writer."""
    await write_log(directory, tmp_path / "unused")
    older = decode_closed((directory / "CLOSED").read_bytes())
    async with MultiRecordLog.open(directory, segment_bytes=1 << 20) as log:
        await log.append_record("q", None, b"more")
        expected = contents(log)
    results = [older]
    closed = LogDirectory.closed
    monkeypatch.setattr(LogDirectory, "closed", lambda self: results.pop() if results else closed(self))
    with await asyncio.to_thread(ReadOnlyLog.open, directory) as reader:
        assert contents(reader) == expected
    results.append(older)
    assert not (await asyncio.to_thread(salvage, directory)).damage
    assert not results


async def test_closed_is_gone_while_the_log_is_open(directory: Path, tmp_path: Path) -> None:
    """A CLOSED that outlived a batch would take that batch for damage."""
    await write_log(directory, tmp_path / "unused")
    assert (directory / "CLOSED").exists()
    async with MultiRecordLog.open(directory) as log:
        assert not (directory / "CLOSED").exists()
        await log.append_record("q", None, b"more")
        damage.copy(directory, tmp_path / "crashed")
        expected = contents(log)
    assert (await reopen(tmp_path / "crashed"))[0] == expected


# Several segments.


async def fill_segments(directory: Path, segments: int = 4, target: Path | None = None) -> Contents:
    """Write a log of at least *segments* segments, all live; copy it as a crash would leave it."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.create_queue("q")
        await log.create_queue("other")
        n = 0
        while log.resource_usage().segments < segments:
            await log.append_records("q", None, [b"%d" % n * 1000, b"%d" % n])
            await log.append_record("other", None, b"%d" % n)
            n += 1
        await log.append_record("q", None, b"in the last segment")
        if target is not None:
            damage.copy(directory, target)
        return contents(log)


async def test_log_of_many_segments_reopens(directory: Path, tmp_path: Path) -> None:
    """Queues that reach over several segments come back whole, closed or crashed."""
    expected = await fill_segments(directory, target=tmp_path / "crashed")
    assert (await reopen(tmp_path / "crashed"))[0] == expected
    found, log = await reopen(directory)
    assert found == expected
    assert log.recovery_report.segments == 4
    with await asyncio.to_thread(ReadOnlyLog.open, directory) as reader:
        assert contents(reader) == expected


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_missing_segment_is_refused(directory: Path, tmp_path: Path, number: int) -> None:
    """Segment numbers are contiguous from the oldest live one, so a missing one is detected."""
    crashed = tmp_path / "crashed"
    await fill_segments(directory, target=crashed)
    path = damage.segments(crashed)[number]
    path.unlink()
    assert (await refuses(crashed)).segment == path.name


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "swap"])
async def test_damaged_older_segment_is_refused(directory: Path, tmp_path: Path, harm: str) -> None:
    """A segment that is not the last must be flawless up to the end that its successor states."""
    crashed = tmp_path / "crashed"
    await fill_segments(directory, target=crashed)
    first, second = damage.segments(crashed)[:2]
    if harm == "flip":
        damage.flip_byte(first, damage.batch_ends(first)[-1] - 5)
    elif harm == "cut":
        damage.cut(first, damage.batch_ends(first)[-2])
    elif harm == "empty":
        damage.cut(first, 0)
    else:
        held = first.read_bytes()
        shutil.copyfile(second, first)
        second.write_bytes(held)
    await refuses(crashed, first.name)


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("offset", [0, 8, 12, 28, 36, 44, 52, 60, 70])
async def test_damaged_header_or_table_is_refused(directory: Path, tmp_path: Path, number: int, offset: int) -> None:
    """A final name always has a durable header and table, so a flaw in them is damage."""
    crashed = tmp_path / "crashed"
    await fill_segments(directory, target=crashed)
    path = damage.segments(crashed)[number]
    damage.flip_byte(path, offset)
    await refuses(crashed, path.name)


async def test_unknown_version_says_so(directory: Path, tmp_path: Path) -> None:
    """A later format is refused by name, not taken for damage."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    damage.set_version(damage.last_segment(crashed), 3)
    assert "version 3" in (await refuses(crashed)).reason


async def test_version_1_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    """A directory of the format before says how its records come into this one."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    damage.set_version(damage.last_segment(crashed), 1)
    assert "dump the log with that release" in (await refuses(crashed)).reason


async def test_segment_of_another_log_is_refused(directory: Path, tmp_path: Path) -> None:
    """Every header holds the log id, so a segment from another log is detected."""
    crashed, other = tmp_path / "crashed", tmp_path / "other"
    await fill_segments(directory, target=crashed)
    await fill_segments(other)
    shutil.copyfile(damage.segments(other)[1], damage.segments(crashed)[1])
    await refuses(crashed, damage.segments(crashed)[1].name)


async def test_truncated_segments_are_removed_and_stay_away(directory: Path, tmp_path: Path) -> None:
    """Once a newer oldest live segment is durable, older files are removed; leftovers that reappear are ignored."""
    keep = tmp_path / "keep"
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.create_queue("q")
        while log.resource_usage().segments < 4:
            await log.append_record("q", None, bytes(5000))
        damage.copy(directory, keep)
        await log.truncate("q", log.next_position("q") - 2)
        while log.resource_usage().segments > 1:
            await log.sync()
        await log.append_record("q", None, b"more")
        expected = contents(log)
        damage.copy(directory, tmp_path / "crashed")
    assert len(damage.segments(directory)) == 1
    shutil.copyfile(damage.segments(keep)[0], tmp_path / "crashed" / damage.segments(keep)[0].name)
    assert (await reopen(tmp_path / "crashed"))[0] == expected
    assert len(damage.segments(tmp_path / "crashed")) == 1


async def test_owed_records_in_a_removed_segment_are_missed(directory: Path, tmp_path: Path) -> None:
    """A live segment below a forged oldest number is noticed: the table owes its positions."""
    crashed = tmp_path / "crashed"
    await fill_segments(directory, segments=2, target=crashed)
    first, last = damage.segments(crashed)
    data = last.read_bytes()
    header = decode_header(data[:HEADER_BYTES])
    forged = SegmentHeader(header.log_id, header.segment, header.first_batch, header.previous_end, header.segment)
    damage.write_at(last, 0, encode_header(forged))
    first.unlink()
    assert "are missing: a segment file was removed" in (await refuses(crashed, last.name)).reason


async def test_temporary_files_are_removed(directory: Path, tmp_path: Path) -> None:
    """Files half written when the writer died are removed without a report."""
    crashed = tmp_path / "crashed"
    states = await write_log(directory, crashed)
    (crashed / "wal-00000000000000000001.tmp").write_bytes(b"half")
    (crashed / "CLOSED.tmp").write_bytes(b"half")
    found, _ = await reopen(crashed)
    assert found == states[-1]
    assert sorted(path.name for path in crashed.iterdir()) == ["CLOSED", "LAST_END", "LOCK", "wal-00000000000000000000"]


async def test_writing_goes_on_where_the_log_ended(directory: Path, tmp_path: Path) -> None:
    """Open, append, crash, again and again: nothing is lost and nothing comes back."""
    crashed = await write_and_continue(directory, tmp_path)
    found, _ = await reopen(crashed)
    assert [payload for _, payload in found["q"][2]] == [b"%d" % n for n in range(8)]


async def write_and_continue(directory: Path, tmp_path: Path) -> Path:
    """Crash after each append; return the last copy."""
    here = directory
    for n in range(8):
        async with MultiRecordLog.open(here) as log:
            await log.create_queue("q", exist_ok=True)
            await log.append_record("q", None, b"%d" % n)
            here = damage.copy(here, tmp_path / f"crashed {n}")
    return here


# Records that are valid as frames and make no sense.


async def test_batch_that_does_not_fold_is_refused(directory: Path, tmp_path: Path) -> None:
    """A position that does not fit is corruption and is never skipped."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed, rounds=1)
    path = damage.last_segment(crashed)
    append = next(payload for _, _, _, payload in damage.frames(path) if payload[:1] == b"\x04")
    forge_batch(path, [append])
    assert "position 0" in (await refuses(crashed, path.name)).reason


async def test_unknown_log_record_is_refused(directory: Path, tmp_path: Path) -> None:
    """A kind that this version does not know belongs to a later one: refuse, do not lose it silently."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed, rounds=1)
    path = damage.last_segment(crashed)
    forge_batch(path, [b"\xffwhatever"])
    assert "unknown log record kind 255" in (await refuses(crashed, path.name)).reason


def forge_batch(path: Path, bodies: list[bytes]) -> None:
    """Append a batch with valid frames and any content."""
    header = decode_header(path.read_bytes()[:HEADER_BYTES])
    seed = segment_seed(header.log_id, header.segment)
    end = damage.batch_ends(path)[-1]
    batches = len(damage.batch_ends(path))
    buffers: list[bytes | memoryview] = []
    offset = end
    for body in bodies:
        offset = encode_frames([body], offset, seed, buffers)
    commit = Commit(header.log_id, header.segment, header.first_batch + batches, 0, end, 0, 0)
    encode_unsplit(encode_commit(commit), offset, seed, buffers)
    damage.write_at(path, end, b"".join(buffers))


async def test_closed_of_another_log_is_refused(directory: Path, tmp_path: Path) -> None:
    """A CLOSED that was copied here from elsewhere does not count as this log's."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    (crashed / "CLOSED").write_bytes(encode_closed(Closed(bytes(16), 0, 500, 3)))
    await refuses(crashed)


# Directories.


async def test_directory_is_made_private(directory: Path) -> None:
    """Only the owner can access a new log and its parents, whatever the umask."""
    old = os.umask(0)
    try:
        async with MultiRecordLog.open(directory / "deep" / "er") as log:
            await log.create_queue("q")
    finally:
        os.umask(old)
    assert (directory / "deep" / "er").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (directory / "deep" / "er").iterdir()} == {0o600}


async def test_create_false_wants_a_log(directory: Path) -> None:
    """Without create a missing directory, or one without a log, is FileNotFoundError, and nothing is made."""
    with pytest.raises(FileNotFoundError):
        await MultiRecordLog.open(directory, create=False)
    assert not directory.exists()
    directory.mkdir(mode=0o700)
    with pytest.raises(FileNotFoundError):
        await MultiRecordLog.open(directory, create=False)
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(ReadOnlyLog.open, directory)
    assert damage.segments(directory) == []


async def test_file_in_place_of_the_directory(directory: Path) -> None:
    """A file where the log should be is the operating system's plain error."""
    directory.write_bytes(b"not a directory")
    with pytest.raises(NotADirectoryError):
        await MultiRecordLog.open(directory)
    assert directory.read_bytes() == b"not a directory"


async def test_new_log_wants_a_directory_of_its_own(directory: Path) -> None:
    """A directory with somebody's files is refused for a new log; an existing log ignores what is not its own."""
    directory.mkdir(mode=0o700)
    (directory / "notes.txt").write_bytes(b"mine")
    with pytest.raises(OSError, match=r"notes\.txt"):
        await MultiRecordLog.open(directory)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
    (directory / "notes.txt").rename(directory.parent / "notes.txt")
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    for name in ("notes.txt", "wal-1", "wal-000000000000000000001", "lost+found"):
        (directory / name).write_bytes(b"mine")
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == ["q"]
    assert (directory / "wal-1").read_bytes() == b"mine"


async def test_a_full_disk_is_named_by_the_directory_on_it(directory: Path) -> None:
    """The system reports no name for a call on an open file, and a program may have several disks."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch.object(OsFileSystem, "reserve", side_effect=full), pytest.raises(OSError) as caught:
        await MultiRecordLog.open(directory)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(directory))


async def test_readable_directory_is_warned_about(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Wider permissions than 0700 are used, and named in a warning."""
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    async with MultiRecordLog.open(directory):
        pass
    assert "0700" in caplog.text


async def test_progress_is_told_on_the_loop(directory: Path) -> None:
    """While segments are read, the caller hears how far it has come, up to 1."""
    await fill_segments(directory)
    seen: list[RecoveryProgress] = []
    async with MultiRecordLog.open(directory, on_progress=seen.append):
        await asyncio.sleep(0)
        assert [progress.bytes_read for progress in seen] == sorted(progress.bytes_read for progress in seen)
        assert seen
        assert all(0 < progress.fraction <= 1 for progress in seen)


# Dead segments that are still there.


async def leave_dead_segments(directory: Path, target: Path) -> Contents:
    """Write a log whose last COMMITs alone name its older segments as dead; put all of them back, as a crash would."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.create_queue("q")
        while log.resource_usage().segments < 4:
            await log.append_record("q", None, bytes(5000))
        await log.append_record("q", None, b"in the last segment")
        older = damage.segments(directory)[:-1]
        damage.copy(directory, target)
        await log.truncate("q", log.next_position("q") - 2)
        while log.resource_usage().segments > 1:
            await log.sync()
        last = damage.last_segment(directory)
        shutil.copyfile(last, target / last.name)
        assert decode_header(last.read_bytes()[:HEADER_BYTES]).oldest_segment == 0
        assert [path.name for path in damage.segments(target)] == [*(path.name for path in older), last.name]
        return contents(log)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("harm", ["intact", "flip", "header", "cut", "empty", "missing", "foreign", "directory"])
async def test_a_dead_segment_never_keeps_a_log_from_opening(
    directory: Path, tmp_path: Path, harm: str, number: int
) -> None:
    """A dead segment that a crash left is removed, whatever its state: nothing in it is needed."""
    crashed = tmp_path / "crashed"
    expected = await leave_dead_segments(directory, crashed)
    path = damage.segments(crashed)[number]
    if harm == "flip":
        damage.flip_byte(path, damage.batch_ends(path)[-1] - 5)
    elif harm == "header":
        damage.flip_byte(path, 12)
    elif harm in ("cut", "empty"):
        damage.cut(path, damage.batch_ends(path)[-2] if harm == "cut" else 0)
    elif harm == "foreign":
        await fill_segments(tmp_path / "other", segments=number + 2)
        shutil.copyfile(tmp_path / "other" / path.name, path)
    elif harm in ("missing", "directory"):
        path.unlink()
    if harm == "directory":
        path.mkdir()
    with await asyncio.to_thread(ReadOnlyLog.open, crashed) as reader:
        assert contents(reader) == expected
        assert reader.recovery_report.segments == 1
    assert (await reopen(crashed))[0] == expected
    assert [left.name for left in damage.segments(crashed) if left.is_file()] == ["wal-00000000000000000003"]


async def test_a_dead_segment_that_cannot_be_read_never_keeps_a_log_from_opening(
    directory: Path, tmp_path: Path
) -> None:
    """The medium fails where nothing is needed any more."""
    crashed = tmp_path / "crashed"
    expected = await leave_dead_segments(directory, crashed)
    dead = damage.segments(crashed)[1]

    class Failing(OsFileSystem):
        def read(self, handle: int, length: int, offset: int) -> bytes:
            if dead.exists() and os.path.samestat(os.fstat(handle), dead.stat()):
                raise OSError(errno.EIO, "the medium failed", str(dead))
            return super().read(handle, length, offset)

    async with MultiRecordLog.open(crashed, segment_bytes=SEGMENT_BYTES, filesystem=Failing()) as log:
        assert contents(log) == expected


async def test_a_table_that_does_not_fit_a_dead_segment_is_not_damage(directory: Path, tmp_path: Path) -> None:
    """The segment before a live one proves nothing once it is dead."""
    crashed = tmp_path / "crashed"
    expected = await leave_dead_segments(directory, crashed)
    forge_table(damage.segments(crashed)[1], lambda table: replace(table, next_queue_id=table.next_queue_id + 1))
    assert (await reopen(crashed))[0] == expected


async def test_a_live_segment_that_cannot_be_read_is_an_error_of_the_medium(directory: Path, tmp_path: Path) -> None:
    """Not damage: the content may be all right, and another try may succeed."""
    crashed = tmp_path / "crashed"
    await fill_segments(directory, target=crashed)
    live = damage.segments(crashed)[1]

    class Failing(OsFileSystem):
        def read(self, handle: int, length: int, offset: int) -> bytes:
            if os.path.samestat(os.fstat(handle), live.stat()):
                raise OSError(errno.EIO, "the medium failed", str(live))
            return super().read(handle, length, offset)

    before = damage.snapshot(crashed)
    with pytest.raises(OSError, match="the medium failed"):
        await MultiRecordLog.open(crashed, filesystem=Failing())
    assert damage.snapshot(crashed) == before


# Readers while a writer runs.


async def test_reader_beside_a_writer_sees_whole_batches(directory: Path) -> None:
    """A reader takes no lock, writes nothing, and shows a prefix of what was acknowledged, across rolls and reclaim."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.create_queue("q")
        for n in range(60):
            write: list[Callable[[], Awaitable[object]]] = [
                lambda n=n: log.append_records("q", None, [b"%d" % n * 500] * 3),  # type: ignore[misc]  # default argument
            ]
            if n % 20 == 19:
                write.append(lambda: log.truncate("q", log.next_position("q") - 1))
            for call in write:
                acknowledged = log.next_position("q")
                _, reader = await asyncio.gather(call(), asyncio.to_thread(ReadOnlyLog.open, directory))
                assert acknowledged <= reader.next_position("q") <= log.next_position("q")
                assert reader.next_position("q") % 3 == 0


async def test_reader_of_a_torn_log_shows_what_was_acknowledged(directory: Path, tmp_path: Path) -> None:
    """A torn tail is left out and left alone."""
    crashed = tmp_path / "crashed"
    states = await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    damage.cut(path, damage.batch_ends(path)[-1] - 3)
    before = damage.snapshot(crashed)
    with await asyncio.to_thread(ReadOnlyLog.open, crashed) as reader:
        assert contents(reader) == states[-2]
        assert not reader.recovery_report.clean
    assert damage.snapshot(crashed) == before


def forge_table(path: Path, change: Callable[[Table], Table]) -> None:
    """Put another table of the same length in place of a segment's, with a checksum that is right."""
    offset, _, _, body = damage.frames(path)[0]
    header = decode_header(path.read_bytes()[:HEADER_BYTES])
    buffers: list[bytes | memoryview] = []
    table = encode_table(change(decode_table(body)))
    encode_frames(table, offset, segment_seed(header.log_id, header.segment), buffers)
    damage.write_at(path, offset, b"".join(buffers))


@pytest.mark.parametrize("which", [1, -1], ids=["middle", "last"])
async def test_a_table_that_is_not_what_the_segment_before_left_is_refused(directory: Path, which: int) -> None:
    """Though every checksum in it is right."""
    async with MultiRecordLog.open(directory, segment_bytes=damage.BLOCK_BYTES) as log:
        await log.create_queue("q")
        for _ in range(4):
            await log.append_record("q", None, bytes(40_000))
    path = damage.segments(directory)[which]
    forge_table(path, lambda table: replace(table, next_queue_id=table.next_queue_id + 1))
    error = await refuses(directory, path.name)
    assert "table of queues does not match the end of the previous segment" in str(error)


async def test_a_closed_that_names_another_last_batch_is_refused(directory: Path, tmp_path: Path) -> None:
    """Its offset may match by chance: batches of one size are at the same offsets in every log."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"a")
    closed = decode_closed((directory / "CLOSED").read_bytes())
    for wrong in (closed.last_batch - 1, closed.last_batch + 1):
        changed = Closed(closed.log_id, closed.segment, closed.end, wrong)
        (directory / "CLOSED").write_bytes(encode_closed(changed))
        assert f"CLOSED says the log ends after batch {wrong}" in str(await refuses(directory))


async def test_a_torn_tail_is_zeroed_durably_before_the_log_is_open(directory: Path, tmp_path: Path) -> None:
    """Otherwise a later power cut could bring half of it back, after or between newer records."""
    crashed = tmp_path / "crashed"
    await write_log(directory, crashed)
    path = damage.last_segment(crashed)
    end = damage.batch_ends(path)[-1]
    damage.write_at(path, end, b"half a batch")

    class Noted(OsFileSystem):
        def __init__(self) -> None:
            self.done: list[str] = []

        def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
            if offset >= end and os.path.samestat(os.fstat(handle), path.stat()):
                self.done.append("write")
            return super().write(handle, buffers, offset)

        def sync(self, handle: int) -> None:
            if os.path.samestat(os.fstat(handle), path.stat()):
                self.done.append("sync")
            super().sync(handle)

    files = Noted()
    async with MultiRecordLog.open(crashed, filesystem=files):
        assert files.done[-2:] == ["write", "sync"]


OPEN_WITH_FEW_DESCRIPTORS = """
import asyncio, resource, sys
from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.storage.filesystem import Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.storage.segment import SegmentFile

directory = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
with ReadOnlyLog.open(directory) as reader:
    assert reader.queue_summary("q").records == 100
    assert not reader.refresh()
assert not salvage(directory).damage

async def main() -> None:
    async with MultiRecordLog.open(directory, segment_bytes=32_768) as log:
        assert log.queue_summary("q").records == 100
        await log.append_record("q", None, b"one more")

asyncio.run(main())
"""


async def test_a_log_of_many_segments_is_opened_with_a_handful_of_descriptors(directory: Path) -> None:
    """The usual limit of a process is 1,024, and a log may have more segments than that."""
    policy = PersistPolicy.never()
    async with MultiRecordLog.open(directory, segment_bytes=damage.BLOCK_BYTES, persist_policy=policy) as log:
        await log.create_queue("q")
        for _ in range(100):
            await log.append_record("q", None, bytes(40_000))
        assert len(log.segments) > 90
    command = [sys.executable, "-c", OPEN_WITH_FEW_DESCRIPTORS, str(directory)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


async def test_names_that_only_look_like_segments_are_left_alone(directory: Path) -> None:
    """Names with non-ASCII digits, or with numbers that no header can hold, are not segments."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    strays = ["wal-" + "\u0663" * 20, "wal-" + "9" * 20, f"wal-{2**63:020}"]
    for name in strays:
        (directory / name).write_bytes(b"mine")
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == ["q"]
        reader = await asyncio.to_thread(ReadOnlyLog.open, directory)
        assert reader.list_queues() == ["q"]
        assert not await asyncio.to_thread(reader.refresh)
    assert [(directory / name).read_bytes() for name in strays] == [b"mine"] * 3


@pytest.mark.parametrize(
    ("kind", "words"), [("directory", "a directory has the name"), ("link", "a symbolic link has")]
)
async def test_what_has_the_name_of_the_next_segment_and_is_no_file_is_named(
    directory: Path, tmp_path: Path, kind: str, words: str
) -> None:
    """Opening is refused with the path and what to do; it would be written to otherwise."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    stray = directory / "wal-00000000000000000001"
    if kind == "directory":
        stray.mkdir()
    else:
        (tmp_path / "elsewhere").write_bytes(b"mine")
        stray.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=words) as refused:
        await MultiRecordLog.open(directory)
    assert refused.value.filename == str(stray)
    with pytest.raises(OSError, match=words):
        await asyncio.to_thread(ReadOnlyLog.open, directory)


async def test_a_directory_with_the_name_of_an_old_segment_does_not_keep_others_from_going(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left alone, and named in a warning; what is truncated gives its space back as ever."""
    async with MultiRecordLog.open(directory, segment_bytes=damage.BLOCK_BYTES) as log:
        await log.create_queue("q")
        for _ in range(4):
            await log.append_record("q", None, bytes(40_000))
        await log.truncate("q", 2)
        await log.append_record("q", None, b"")
    stray = directory / "wal-00000000000000000000"
    stray.mkdir()
    async with MultiRecordLog.open(directory, segment_bytes=damage.BLOCK_BYTES) as log:
        assert "wal-00000000000000000000" in caplog.text
        oldest = log.segments[0]
        await log.append_record("q", None, bytes(40_000))
        await log.truncate("q", log.next_position("q") - 1)
        while log.segments[0] == oldest:
            await log.append_record("q", None, b"")
    assert stray.is_dir()
