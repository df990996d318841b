"""A snapshot of a log in use is one consistent prefix, and exists whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async import CorruptionError, MultiRecordLog, ReadOnlyLog
from mrecordlog_async.cli.main import main
from mrecordlog_async.engine.commit import dead_segments
from mrecordlog_async.format.header import decode_closed, encode_closed
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.storage.filesystem import Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage
from tests.cli.running import BLOCK_BYTES, build, mrecordlog, three_queues
from tests.conftest import contents


def test_a_snapshot_shows_what_the_log_shows(tmp_path: Path) -> None:
    """Finished segments are the same files; the last one is a separate copy."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("snapshot", directory, tmp_path / "copy")
    assert (ran.code, "snapshot of 4 segments in" in ran.out) == (0, True)
    with ReadOnlyLog.open(directory) as before, ReadOnlyLog.open(tmp_path / "copy") as after:
        assert contents(after) == contents(before)
    *finished, last = damage.segments(directory)
    assert all(os.path.samefile(path, tmp_path / "copy" / path.name) for path in finished)
    assert not os.path.samefile(last, tmp_path / "copy" / last.name)
    assert mrecordlog("verify", tmp_path / "copy").code == 0


async def test_a_snapshot_beside_a_busy_writer_is_a_prefix(tmp_path: Path) -> None:
    """It holds everything acknowledged before; of later appends, each queue holds a prefix without holes."""
    async with MultiRecordLog.open(tmp_path / "wal", segment_bytes=BLOCK_BYTES) as log:
        for queue in ("a", "b"):
            await log.create_queue(queue)
        acknowledged = 0
        done = asyncio.Event()

        async def produce() -> None:
            nonlocal acknowledged
            while not done.is_set():
                await asyncio.gather(
                    log.append_record("a", None, b"a" * 500),
                    log.append_records("b", None, [b"b" * 100] * 3),
                )
                acknowledged += 1

        producer = asyncio.create_task(produce())
        for number in range(5):
            while acknowledged < 20 * (number + 1):
                assert not producer.done(), producer.exception()
                await asyncio.sleep(0)
            before = acknowledged
            await asyncio.to_thread(snapshot, str(tmp_path / "wal"), str(tmp_path / f"copy{number}"))
            with await asyncio.to_thread(ReadOnlyLog.open, tmp_path / f"copy{number}") as copy:
                queues = contents(copy)
            assert [position for position, _ in queues["a"][2]] == list(range(queues["a"][1]))
            assert queues["a"][1] >= before
            assert queues["b"][1] % 3 == 0
            assert queues["b"][1] >= 3 * before
        done.set()
        await producer


async def test_a_snapshot_can_be_opened_and_written(tmp_path: Path, log: MultiRecordLog, directory: Path) -> None:
    """A snapshot is an independent log: writing to it leaves the original unchanged."""
    for _ in range(20):
        await log.append_record("q", None, bytes(10_000))
    await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"))
    async with MultiRecordLog.open(tmp_path / "copy", segment_bytes=4 * BLOCK_BYTES, create=False) as copy:
        assert await copy.append_record("q", None, b"only here") == 20
        await copy.truncate("q", 15)
    assert (log.first_position("q"), log.next_position("q")) == (0, 20)
    assert await log.append_record("q", None, b"only there") == 20
    assert (await asyncio.to_thread(mrecordlog, "verify", directory)).code == 0


SHRINK_BYTES = 64 * 1024


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free the space of removed segments in steps that are small compared with a segment."""
    monkeypatch.setattr(dead_segments, "SHRINK_BYTES", SHRINK_BYTES)


async def drain(log: MultiRecordLog) -> None:
    """Truncate everything, and wait until the old segments are removed and their space is freed."""
    before = log.segments
    await log.truncate("q", log.next_position("q") - 1)
    while log.segments[0] <= before[-1] or log._engine.opened.journal.space.unfreed:
        await log.append_record("q", None, bytes(40_000))
        await log.truncate("q", log.next_position("q") - 1)


async def fill(log: MultiRecordLog) -> None:
    await log.create_queue("q")
    for number in range(40):
        await log.append_record("q", None, bytes([number]) * 20_000)
    assert len(log.segments) > 3


async def shown(directory: Path) -> object:
    def read() -> object:
        with ReadOnlyLog.open(directory) as log:
            return contents(log)

    return await asyncio.to_thread(read)


@pytest.mark.parametrize("open_files", [False, True])
async def test_a_log_that_is_drained_leaves_its_snapshot_whole(
    tmp_path: Path, directory: Path, small_steps: None, open_files: bool
) -> None:
    """Segments are larger than the step in which space is freed; the snapshot's files may be open meanwhile."""
    async with MultiRecordLog.open(directory, segment_bytes=8 * BLOCK_BYTES) as log:
        await fill(log)
        before = contents(log)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"))
        files = [path.open("rb") for path in damage.segments(tmp_path / "copy")] if open_files else []
        bytes_before = damage.snapshot(tmp_path / "copy")
        await drain(log)
        for file in files:
            file.close()
    assert damage.snapshot(tmp_path / "copy") == bytes_before
    assert await shown(tmp_path / "copy") == before
    async with MultiRecordLog.open(tmp_path / "copy", create=False) as copy:
        assert contents(copy) == before


@pytest.mark.parametrize("open_files", [False, True])
async def test_a_snapshot_that_is_drained_leaves_its_log_whole(
    tmp_path: Path, directory: Path, small_steps: None, open_files: bool
) -> None:
    """The log stays whole while it is open, and after it is closed and opened again."""
    async with MultiRecordLog.open(directory, segment_bytes=8 * BLOCK_BYTES) as log:
        await fill(log)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"))
        before = contents(log)
        files = [path.open("rb") for path in damage.segments(directory)] if open_files else []
        async with MultiRecordLog.open(tmp_path / "copy", segment_bytes=8 * BLOCK_BYTES, create=False) as copy:
            await drain(copy)
        for file in files:
            file.close()
        assert await shown(directory) == before
        assert await log.append_record("q", None, b"goes on") == 40
        before = contents(log)
    async with MultiRecordLog.open(directory, create=False) as log:
        assert contents(log) == before


@pytest.mark.parametrize("first", ["wal", "copy"])
async def test_two_trees_of_hard_links_leave_each_other_alone(tmp_path: Path, small_steps: None, first: str) -> None:
    """Trees as `cp -al` creates them: even the last segment, `CLOSED` and the lock have two names."""
    directories = {"wal": tmp_path / "wal", "copy": tmp_path / "copy"}
    async with MultiRecordLog.open(directories["wal"], segment_bytes=8 * BLOCK_BYTES) as log:
        await fill(log)
        before = contents(log)
    directories["copy"].mkdir(mode=0o700)
    for path in directories["wal"].iterdir():
        os.link(path, directories["copy"] / path.name)
    (second,) = set(directories) - {first}
    bytes_before = damage.snapshot(directories[second])
    async with MultiRecordLog.open(directories[first], segment_bytes=8 * BLOCK_BYTES) as log:
        assert contents(log) == before
        async with MultiRecordLog.open(directories[second], segment_bytes=8 * BLOCK_BYTES) as other:
            assert await other.append_record("q", None, b"other") == 40
            await drain(log)
            assert contents(other)["q"][:2] == (0, 41)
    async with MultiRecordLog.open(directories[second]) as other:
        assert contents(other)["q"][2] == [*before["q"][2], (40, b"other")]
    assert {name: damage.snapshot(directories[second])[name] for name in bytes_before if name.startswith("wal")} == {
        name: data for name, data in bytes_before.items() if name.startswith("wal")
    }


def test_everything_is_on_the_disk_before_the_snapshot_has_its_name(tmp_path: Path) -> None:
    """First every file is synced, then the names in the new directory, then its own name and those of its parents."""
    directory = build(tmp_path / "wal", three_queues)

    class Noted(OsFileSystem):
        def __init__(self) -> None:
            self.done: list[tuple[str, str]] = []
            self.paths: dict[int, str] = {}

        def create(self, path: str) -> int:
            handle = super().create(path)
            self.paths[handle] = path
            return handle

        def open_directory(self, path: str) -> int:
            handle = super().open_directory(path)
            self.paths[handle] = path
            return handle

        def lock(self, path: str) -> int:
            handle = super().lock(path)
            self.paths[handle] = path
            return handle

        def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
            if not self.paths[handle].endswith("LOCK"):  # it is removed before the end
                self.done.append(("write", self.paths[handle]))
            return super().write(handle, buffers, offset)

        def sync(self, handle: int) -> None:
            self.done.append(("sync", self.paths[handle]))
            super().sync(handle)

        def sync_directory(self, handle: int) -> None:
            self.done.append(("sync", self.paths[handle]))
            super().sync_directory(handle)

        def rename(self, old: str, new: str) -> None:
            self.done.append(("rename", old))
            super().rename(old, new)

    files = Noted()
    target = tmp_path / "new" / "backups" / "copy"
    snapshot(str(directory), str(target), link=False, filesystem=files)
    renamed = files.done.index(("rename", f"{target}.partial"))
    for written in {path for what, path in files.done if what == "write"}:
        assert ("sync", written) in files.done[:renamed]
        assert ("write", written) not in files.done[files.done.index(("sync", written)) :]
    assert files.done[renamed - 1] == ("sync", f"{target}.partial")
    assert files.done[renamed + 1 :] == [("sync", str(parent)) for parent in target.parents]
    assert ("sync", str(tmp_path)) in files.done[:renamed]


@pytest.mark.parametrize("link", [True, False])
async def test_a_log_without_any_batch_has_a_snapshot_that_opens(directory: Path, tmp_path: Path, link: bool) -> None:
    """Its end is stated as that of a log whose next batch is the first one."""
    async with MultiRecordLog.open(directory):
        pass
    await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"), link=link)
    async with MultiRecordLog.open(tmp_path / "copy") as log:
        await log.append("q", b"first", create=True)
    async with MultiRecordLog.open(tmp_path / "copy") as log:
        assert [record.payload for record in log.range("q")] == [b"first"]


def test_a_copy_shares_no_bytes(tmp_path: Path) -> None:
    """With --copy, damage to the original leaves the snapshot whole."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("snapshot", directory, tmp_path / "copy", "--copy")
    assert ": 0 B linked, " in ran.out
    damage.flip_byte(damage.segments(directory)[1], 20_000)
    assert mrecordlog("verify", directory).code == 3
    assert mrecordlog("verify", tmp_path / "copy").code == 0


def test_a_damaged_log_is_not_copied(tmp_path: Path) -> None:
    """A backup of a damaged log would look like a good one; no files are left."""
    directory = build(tmp_path / "wal", three_queues)
    damage.flip_byte(damage.last_segment(directory), 20_000)
    with pytest.raises(CorruptionError):
        snapshot(str(directory), str(tmp_path / "copy"))
    assert [path.name for path in tmp_path.iterdir()] == ["wal"]


def lose_the_last_segment(directory: Path) -> None:
    """`CLOSED` still names it."""
    damage.last_segment(directory).unlink()


def lose_the_last_segment_after_a_kill(directory: Path) -> None:
    """A writer that is killed leaves no `CLOSED`. The number of its spare segment shows what is missing."""
    last = damage.last_segment(directory)
    spare = last.with_name(f"wal-{int(last.name[4:]) + 1:020}.tmp")
    last.unlink()
    (directory / "CLOSED").unlink()
    spare.touch()


def lose_a_live_segment(directory: Path) -> None:
    damage.segments(directory)[1].unlink()


def damage_closed(directory: Path) -> None:
    damage.flip_byte(directory / "CLOSED", 30)


def name_another_last_batch(directory: Path) -> None:
    """`CLOSED` is that of a copy that was written further, and an end of that one lies where a batch ends here."""
    path, ends = directory / "CLOSED", damage.batch_ends(damage.last_segment(directory))
    closed = decode_closed(path.read_bytes())
    path.write_bytes(encode_closed(replace(closed, end=ends[-3])))


@pytest.mark.parametrize("options", [[], ["--copy"], ["--verify"]])
@pytest.mark.parametrize(
    "harm",
    [
        lose_the_last_segment,
        lose_the_last_segment_after_a_kill,
        lose_a_live_segment,
        damage_closed,
        name_another_last_batch,
    ],
)
def test_a_log_whose_end_is_in_doubt_is_not_copied(
    tmp_path: Path, harm: Callable[[Path], None], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A snapshot says itself where it ends, so it would hide the loss: the exit code is 3, and no files are left."""
    directory = build(tmp_path / "wal", three_queues)
    harm(directory)
    with pytest.raises(CorruptionError):
        ReadOnlyLog.open(directory)
    assert main(["snapshot", str(directory), str(tmp_path / "copy"), *options]) == 3
    assert f"{directory} is damaged" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["wal"]


class Unreadable(OsFileSystem):
    """A disk that cannot read the second block of the segment with *name*, whichever path it was opened by.

    forbidden: it cannot be opened either.
    """

    def __init__(self, name: str, forbidden: bool) -> None:
        self.name, self.forbidden, self.handles = name, forbidden, set[int]()

    def open(self, path: str, *, write: bool = True) -> int:
        if self.forbidden and self.name in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        handle = super().open(path, write=write)
        if self.name in path:
            self.handles.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self.handles.discard(handle)
        super().close(handle)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        if handle in self.handles and offset + length > BLOCK_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, length, offset)


@pytest.mark.parametrize("place", [0, -1], ids=["finished", "last"])
@pytest.mark.parametrize("link", [True, False], ids=["linked", "copied"])
@pytest.mark.parametrize("forbidden", [False, True])
def test_a_segment_that_cannot_be_read_is_named_as_in_the_log(
    tmp_path: Path, forbidden: bool, link: bool, place: int
) -> None:
    """Its link in the unfinished snapshot is removed, and no file of that name would be found."""
    directory = build(tmp_path / "wal", three_queues)
    segment = damage.segments(directory)[place]
    files = Unreadable(segment.name, forbidden)
    with pytest.raises(OSError, match="Permission denied" if forbidden else "Input/output error") as refused:
        snapshot(directory, tmp_path / "copy", link=link, check=True, filesystem=files)
    assert refused.value.filename == str(segment)
    assert os.listdir(tmp_path) == ["wal"]


class Full(OsFileSystem):
    """A disk without space."""

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_that_of_the_target(tmp_path: Path) -> None:
    """The error names the directory that was to be made: the log may be on another disk."""
    directory = build(tmp_path / "wal", three_queues)
    with pytest.raises(OSError, match="No space left") as refused:
        snapshot(directory, tmp_path / "copy", filesystem=Full())
    assert refused.value.filename == str(tmp_path / "copy")
    assert os.listdir(tmp_path) == ["wal"]


def test_an_existing_target_is_left_alone(tmp_path: Path) -> None:
    """A snapshot never replaces anything."""
    directory = build(tmp_path / "wal", three_queues)
    before = damage.snapshot(directory)
    assert mrecordlog("snapshot", directory, directory).code == 2
    assert damage.snapshot(directory) == before


class BegunElsewhere(OsFileSystem):
    """A disk on which another process begins the same snapshot a moment earlier."""

    def make_directory(self, path: str) -> None:
        if path.endswith(".partial"):
            os.makedirs(path, exist_ok=True)
            Path(path, "wal-of-the-other").touch()
        super().make_directory(path)


def test_two_snapshots_with_one_target_do_not_mix(tmp_path: Path) -> None:
    """The second is refused, and removes nothing of the first."""
    directory = build(tmp_path / "wal", three_queues)
    with pytest.raises(FileExistsError):
        snapshot(directory, tmp_path / "new" / "copy", filesystem=BegunElsewhere())
    assert os.listdir(tmp_path / "new") == ["copy.partial"]
    assert os.listdir(tmp_path / "new" / "copy.partial") == ["wal-of-the-other"]


def test_a_queue_is_deleted(tmp_path: Path) -> None:
    """The queue is deleted with all its records."""
    directory = build(tmp_path / "wal", three_queues)
    ran = mrecordlog("delete", directory, "audit")
    assert (ran.code, ran.out) == (0, "audit: deleted\n")
    with ReadOnlyLog.open(directory) as log:
        assert log.list_queues() == ["idle", "orders"]
    assert mrecordlog("delete", directory, "audit").code == 1
