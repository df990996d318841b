"""A directory that has held a log and has lost all its segments: half of a copy is not taken for a new log."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.maintenance.snapshot import snapshot
from tests.cli.running import mrecordlog
from tests.faults.disk import Disk, Fault, Snapshot
from tests.faults.states import plans

LOST = "held a log, and all its segments are missing"
WAY_OUT = "delete LOCK to begin a new log"
LOG = "/data/log"


async def hold(directory: Path | str, **options: Any) -> None:
    """Open the log in *directory*, append a record to the queue "q" and close it."""
    async with MultiRecordLog.open(directory, queues=["q"], segment_bytes=32_768, **options) as log:
        await log.append("q", b"record")


def lose_segments(directory: Path) -> None:
    """Remove every file but LOCK, as a copy is left whose other names had vanished when their turn came."""
    for path in directory.iterdir():
        if path.name != "LOCK":
            path.unlink()


@pytest.fixture
async def half(directory: Path) -> Path:
    """A directory that has held a log, with LOCK alone."""
    await hold(directory)
    lose_segments(directory)
    return directory


@pytest.mark.parametrize("create", [True, False])
async def test_it_is_not_opened(half: Path, create: bool) -> None:
    """The error says what is missing and how to begin anew; nothing is changed."""
    before = (half / "LOCK").read_bytes()
    with pytest.raises(CorruptionError, match=LOST) as refused:
        await MultiRecordLog.open(half, create=create)
    assert WAY_OUT in str(refused.value) and str(half) in str(refused.value)
    assert [path.name for path in half.iterdir()] == ["LOCK"]
    assert (half / "LOCK").read_bytes() == before


async def test_it_is_not_read_either(half: Path, tmp_path: Path) -> None:
    """A reader and a snapshot say the same: it is no empty directory."""
    with pytest.raises(CorruptionError, match=LOST):
        await asyncio.to_thread(ReadOnlyLog.open, half)
    with pytest.raises(CorruptionError, match=LOST):
        await asyncio.to_thread(snapshot, half, tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()


@pytest.mark.parametrize(
    "command", [["verify"], ["ls"], ["cat", "q"], ["repair"], ["serve"], ["append", "q", "--create"]], ids=" ".join
)
async def test_a_command_says_so(half: Path, command: list[str]) -> None:
    """With the exit code of damage, and without the advice to repair it, which cannot help."""
    done = await asyncio.to_thread(mrecordlog, command[0], half, *command[1:], stdin="record\n")
    assert done.code == 3, done
    said = done.out + done.err
    assert LOST in said and WAY_OUT in said, done
    assert "mrecordlog repair" not in said


@pytest.mark.parametrize("what", ["LOCK", "directory"])
async def test_a_new_log_begins_once_lock_or_the_directory_is_deleted(half: Path, what: str) -> None:
    """As the error says."""
    (half / "LOCK").unlink()
    if what == "directory":
        half.rmdir()
    async with MultiRecordLog.open(half) as log:
        assert log.recovery_report.created


async def test_a_directory_of_an_earlier_version_begins_a_log(directory: Path) -> None:
    """Its LOCK has a pid alone: whether there were segments is not known."""
    directory.mkdir()
    for content in (b"", b"4711\n", b"4711\nThis directory holds a log.\n", bytes(100)):
        (directory / "LOCK").write_bytes(content)
        async with MultiRecordLog.open(directory) as log:
            assert log.recovery_report.created
        lose_segments(directory)


async def test_earlier_versions_read_the_pid(log: MultiRecordLog, directory: Path) -> None:
    """They take 32 bytes, and nothing but digits between white space, for one."""
    assert (directory / "LOCK").read_bytes()[:32].strip() == b"%d" % os.getpid()


async def test_an_earlier_version_may_have_had_it_open(directory: Path) -> None:
    """It leaves its pid alone in LOCK; the next opening sets the mark again."""
    await hold(directory)
    (directory / "LOCK").write_bytes(b"4711\n")
    await hold(directory)
    lose_segments(directory)
    with pytest.raises(CorruptionError, match=LOST):
        await MultiRecordLog.open(directory)


async def test_a_copy_of_links_and_its_original_are_both_marked(directory: Path, tmp_path: Path) -> None:
    """The copy gets its own LOCK, and the original keeps its mark."""
    await hold(directory)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy, copy_function=os.link)
    await hold(copy)
    for place in (directory, copy):
        lose_segments(place)
        with pytest.raises(CorruptionError, match=LOST):
            await MultiRecordLog.open(place)


async def test_a_snapshot_and_a_restored_log_carry_no_mark_until_they_are_opened(
    directory: Path, tmp_path: Path
) -> None:
    """A copy that is complete has no LOCK; its first opening makes one."""
    await hold(directory)
    await asyncio.to_thread(snapshot, directory, tmp_path / "snapshot")
    assert not (tmp_path / "snapshot" / "LOCK").exists()
    await hold(tmp_path / "snapshot")
    lose_segments(tmp_path / "snapshot")
    with pytest.raises(CorruptionError, match=LOST):
        await MultiRecordLog.open(tmp_path / "snapshot")


# A first opening that ends at any call.


async def outcome(disk: Disk) -> BaseException | None:
    """Return how an opening of the log on *disk*, with a record, ends."""
    try:
        await hold(LOG, filesystem=disk)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("effect", ["before", "after", "half"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO], ids=errno.errorcode.get)
async def test_an_opening_that_failed_at_any_call_is_followed_by_one_that_opens(number: int, effect: str) -> None:
    """A full disk, no descriptors or an I/O error at the n-th call leave a directory that can be opened."""
    at, failed = 0, 0
    while True:
        at += 1
        disk = Disk()
        disk.fault = Fault(at, number, effect=effect)
        failed += await outcome(disk) is not None
        if not disk.fault.hit:
            break
        left = disk.snapshot().kill()
        assert await outcome(left) is None, (at, disk.call_names[at - 1 : at + 1])
    assert failed > 5


async def moments(disk: Disk) -> list[Snapshot]:
    """Return the disk before each call of an opening with a record and a close, and after the last."""
    taken: list[Snapshot] = []
    disk.on_call = lambda name: taken.append(disk.snapshot())
    await hold(LOG, filesystem=disk)
    disk.on_call = lambda name: None
    return [*taken, disk.snapshot()]


async def test_an_opening_that_was_killed_at_any_call_is_followed_by_one_that_opens() -> None:
    """Everything that was written is there, but for what was not begun."""
    taken = await moments(Disk())
    assert len(taken) > 20
    for moment in taken:
        assert await outcome(moment.kill()) is None


async def test_a_power_cut_at_any_call_of_an_opening_is_followed_by_one_that_opens() -> None:
    """Whatever had reached the medium: the mark is never there before a segment is."""
    chance, tried = random.Random(7), 0
    for moment in await moments(Disk()):
        for name, plan in plans(moment, chance):
            tried += 1
            assert await outcome(moment.crash(plan)) is None, name
    assert tried > 200


async def test_the_mark_stays_when_a_later_opening_is_killed_at_any_call() -> None:
    """LOCK is written in place: the new pid never removes the mark, not even for a moment."""
    disk = Disk()
    await hold(LOG, filesystem=disk)
    for moment in await moments(disk.snapshot().kill()):
        left = moment.kill()
        for name in left.list_names(LOG):
            if name != "LOCK":
                left.unlink(f"{LOG}/{name}")
        refused = await outcome(left)
        assert isinstance(refused, CorruptionError) and LOST in str(refused), refused


async def test_a_full_disk_keeps_a_log_openable_without_a_mark() -> None:
    """There is no room for a byte of LOCK: the log opens, and what is lost later goes unnoticed as before."""
    disk = Disk()
    disk.fault = Fault(1, errno.ENOSPC, on=True, calls=frozenset({"write"}))
    log: Any = await outcome(disk)
    assert isinstance(log, OSError)  # no segment without room, either
    assert await outcome(disk.snapshot().kill()) is None
