"""Dead segments become later ones: which files, in which order, and never at the cost of anything else."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, PersistPolicy
from mrecordlog_async.engine.commit.batch import CommitRequest
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from tests import damage
from tests.conftest import contents

BLOCK = 32_768
SEGMENT_BYTES = 8 * BLOCK


class Recycling(OsFileSystem):
    """The real disk, taken for one that recycles and that can be written past the cache, whatever it is.

    Notes the changes to names and sizes, and calls `after_rename` after a segment was renamed to a temporary name.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.after_rename: Callable[[str], None] = lambda path: None

    def recycles(self, handle: int) -> bool:
        return True

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.calls.append(f"rename {_short(old)} {_short(new)}")
        if new.endswith(".tmp"):
            self.after_rename(new)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.calls.append(f"unlink {_short(path)}")

    def set_size(self, handle: int, size: int) -> None:
        super().set_size(handle, size)
        self.calls.append(f"cut {size}")


def _short(path: str) -> str:
    return path.rpartition("/")[2].replace("wal-00000000000000000", "")


@pytest.fixture
def files(directory: Path) -> Recycling:
    """Return the disk; skip where no file can be written past the cache."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    found, probe = Recycling(), directory.parent / "probe"
    handle = found.create(str(probe))
    try:
        found.set_direct(handle, True)
    except OSError:
        pytest.skip("the file system of the tests has no direct access")
    finally:
        found.close(handle)
        probe.unlink()
    return found


@asynccontextmanager
async def opened(directory: Path, files: OsFileSystem, **options: object) -> AsyncIterator[MultiRecordLog]:
    """Open a log of small segments."""
    chosen: dict[str, object] = {"segment_bytes": SEGMENT_BYTES, "filesystem": files, **options}
    async with MultiRecordLog.open(directory, **chosen) as log:  # type: ignore[arg-type]  # options of `open`
        await log.create_queue("q", exist_ok=True)
        yield log


async def roll(log: MultiRecordLog, size: int = 9_000) -> None:
    """Append until the log has rolled once more."""
    last = log.segments[-1]
    while log.segments[-1] == last:
        await log.append_record("q", None, os.urandom(size))


async def truncate_behind(log: MultiRecordLog) -> None:
    """Truncate everything but the last record, and let the writer reclaim the segments before it."""
    await log.truncate("q", log.next_position("q") - 2)
    while log.segments[0] < (log.queue_summary("q").first_segment or 0):
        await log.sync()
        await asyncio.sleep(0)


def spare_of(directory: Path) -> Path:
    return next(path for path in directory.iterdir() if path.name.endswith(".tmp"))


async def test_a_dead_segment_becomes_the_next_spare(directory: Path, files: Recycling) -> None:
    """Its file is renamed, cut to one segment, and becomes the next segment: every record reads back."""
    async with opened(directory, files) as log:
        await roll(log)
        file = damage.segments(directory)[0].stat().st_ino
        await truncate_behind(log)
        spare = spare_of(directory)
        assert spare.stat().st_ino == file
        assert SEGMENT_BYTES <= spare.stat().st_size <= SEGMENT_BYTES + 3 * BLOCK
        assert spare.stat().st_size % 4_096 == 0
        await roll(log)
        assert damage.last_segment(directory).stat().st_ino == file
        kept = contents(log)
        damage.copy(directory, directory.with_name("crashed"))
    for path in (directory, directory.with_name("crashed")):
        async with MultiRecordLog.open(path) as log:
            assert log.recovery_report.clean
            assert contents(log) == kept


async def test_space_is_counted_with_a_recycled_spare(directory: Path, files: Recycling) -> None:
    """`disk_bytes` is what the files take, and a log that keeps truncating does not grow."""
    async with opened(directory, files) as log:
        sizes = []
        for _ in range(6):
            await roll(log)
            await truncate_behind(log)
            stored = sum(path.stat().st_size for path in directory.iterdir() if path.name.startswith("wal-"))
            assert log.resource_usage().disk_bytes == stored
            sizes.append(stored)
        assert len({*sizes[2:]}) == 1
        assert len([call for call in files.calls if call.startswith("rename") and call.endswith(".tmp")]) == 6


async def test_a_linked_segment_is_only_unlinked(directory: Path, files: Recycling, tmp_path: Path) -> None:
    """A snapshot has the segment too: its bytes stay as they are."""
    async with opened(directory, files) as log:
        await roll(log)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"))
        before = damage.snapshot(tmp_path / "copy")
        await truncate_behind(log)
        assert files.calls[-1].startswith("unlink 000")
        for _ in range(3):
            await roll(log)
            await truncate_behind(log)
        assert damage.snapshot(tmp_path / "copy") == before


async def test_a_segment_that_was_linked_just_before_its_rename_is_only_unlinked(
    directory: Path, files: Recycling, tmp_path: Path
) -> None:
    """The links are counted after the rename, when nobody can add one by the old name any more; then nothing is cut."""
    link = tmp_path / "link"
    files.after_rename = lambda path: None if link.exists() else os.link(path, link)
    async with opened(directory, files) as log:
        await roll(log)
        before = damage.segments(directory)[0].read_bytes()
        await truncate_behind(log)
        assert link.read_bytes() == before
        assert link.stat().st_nlink == 1
        await roll(log)
        await truncate_behind(log)
        await roll(log)
        kept = contents(log)
    assert link.read_bytes() == before
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == kept


async def test_a_spare_that_was_linked_is_not_cut(directory: Path, files: Recycling, tmp_path: Path) -> None:
    """`cp -al` links temporary names as well. When space is needed, such a spare is removed, and a fresh one made."""
    async with opened(directory, files) as log:
        await roll(log)
        await truncate_behind(log)
        os.link(spare_of(directory), tmp_path / "link")
        before = (tmp_path / "link").read_bytes()
        assert await asyncio.to_thread(log._engine.opened.journal.space.cut_spare)
        await roll(log)
        assert (tmp_path / "link").read_bytes() == before


@pytest.mark.parametrize("kind", ["append", "truncate"])
async def test_the_spare_is_cut_before_a_batch_is_refused(directory: Path, files: Recycling, kind: str) -> None:
    """The disk is full with a whole segment kept as the spare: its space is used first."""
    async with opened(directory, files, segment_bytes=3 << 20) as log:
        await roll(log, 200_000)
        await truncate_behind(log)
        original = files.reserve

        def full(handle: int, offset: int, length: int) -> None:
            if not [call for call in files.calls if call.startswith("cut")]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            original(handle, offset, length)

        files.calls.clear()
        files.reserve = full  # type: ignore[method-assign]  # the disk is full from here on
        before = log.resource_usage().disk_bytes
        if kind == "append":
            await log.append_record("q", None, bytes(2 << 20))
        else:
            file = log._engine.opened.journal._file
            request = CommitRequest([], None, sync=True)
            await asyncio.to_thread(log._engine.opened.journal.space.reserve, file.reserved_bytes + 1, request)
        assert [call for call in files.calls if call.startswith("cut")]
        assert log.resource_usage().disk_bytes < before + (2 << 20)


async def test_what_is_too_small_or_much_too_large_is_unlinked(directory: Path, files: Recycling) -> None:
    """A spare of less than half a segment gains little, and cutting much at once holds up the commits."""
    async with opened(directory, files) as log:
        await roll(log)
        journal = log._engine.opened.journal
        first = directory / damage.segments(directory)[0].name
        size = first.stat().st_size
        dead = journal.dead
        assert not await asyncio.to_thread(dead.recycle, str(first), 2, size + 1, size + 4_096)
        assert not await asyncio.to_thread(dead.recycle, str(first), 2, 0, size - 17 * (1 << 20))
        assert first.exists()


@pytest.mark.parametrize("reason", ["option", "file system", "policy"])
async def test_dead_segments_are_unlinked_where_nothing_is_gained(
    directory: Path, files: Recycling, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `recycle=False`, on other file systems than ext4 and XFS, and where writes go through the cache."""
    options: dict[str, object] = {"recycle": reason != "option"}
    if reason == "file system":
        monkeypatch.setattr(files, "recycles", lambda handle: False)
    if reason == "policy":
        options["persist_policy"] = PersistPolicy.interval(1)
    async with opened(directory, files, **options) as log:
        await roll(log)
        await truncate_behind(log)
        assert not [call for call in files.calls if call.endswith(".tmp") and call.startswith("rename")]
        assert "unlink 000" in files.calls


async def test_an_empty_log_keeps_no_segment_as_spare(
    directory: Path, files: Recycling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once nothing is live, the log gives its space back, the spare's too."""
    monkeypatch.setattr("mrecordlog_async.engine.commit.upkeep.EARLY_ROLL_BYTES", BLOCK)
    async with opened(directory, files) as log:
        await roll(log)
        await truncate_behind(log)
        assert spare_of(directory).stat().st_size >= SEGMENT_BYTES
        await log.append_record("q", None, bytes(2 * BLOCK))
        await log.truncate("q", log.next_position("q") - 1)
        while len(log.segments) > 1 or log.resource_usage().disk_bytes >= SEGMENT_BYTES:
            await log.sync()
            await asyncio.sleep(0)


@pytest.mark.parametrize("call", ["rename", "set_size", "reserve", "links", "open"])
async def test_a_segment_that_cannot_be_recycled_is_removed(directory: Path, files: Recycling, call: str) -> None:
    """An error on the way does not fail the log: a fresh spare is made, and appends go on."""
    async with opened(directory, files) as log:
        await roll(log)
        first = damage.segments(directory)[0]
        original = getattr(files, call)

        def fail(*arguments: object, **options: object) -> object:
            if call in ("rename", "open") and not str(arguments[0]).endswith(first.name):
                return original(*arguments, **options)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        journal, oldest = log._engine.opened.journal, first.stat().st_size

        def recycle() -> tuple[bool, list[Path]]:
            setattr(files, call, fail)
            taken = journal.dead.recycle(str(first), 2, 0, oldest - oldest % 4_096 - 4_096)
            setattr(files, call, original)
            return taken, [path for path in directory.iterdir() if path.name.endswith(".tmp")]

        # On the log's thread, which makes a fresh spare as soon as it has nothing else to do.
        taken, temporary = await asyncio.wrap_future(log._engine.thread.submit(recycle))
        assert taken == (call in ("set_size", "reserve"))
        assert first.exists() != taken
        assert not journal.space.spare.is_recycled
        if taken:
            assert not temporary


async def test_temporary_files_and_leftovers_are_never_recycled(directory: Path, files: Recycling) -> None:
    """What opening finds of them is unlinked: what they hold is not known."""
    async with opened(directory, files) as log:
        for _ in range(2):
            await roll(log)
        await truncate_behind(log)
        damage.copy(directory, directory.with_name("crashed"))
    crashed = directory.with_name("crashed")
    old = spare_of(crashed)
    (crashed / "wal-00000000000000000000").write_bytes(old.read_bytes())
    files.calls.clear()
    async with MultiRecordLog.open(crashed, filesystem=files, segment_bytes=SEGMENT_BYTES):
        assert f"unlink {_short(str(old))}" in files.calls
        assert "unlink 000" in files.calls
        assert not [call for call in files.calls if call.startswith("rename")]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which file system it is")
def test_the_real_disk_says_whether_it_recycles(tmp_path: Path) -> None:
    """ext4 and XFS do; memory does not."""
    names = {line.split()[1]: line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}
    if "/" not in names:
        pytest.skip("/proc/mounts does not show the root directory of a chroot")
    disk = OsFileSystem()
    for path in [str(tmp_path), *(mount for mount, name in names.items() if name in ("tmpfs", "proc"))]:
        mount = max((mount for mount in names if f"{path}/".startswith(f"{mount.rstrip('/')}/")), key=len)
        try:
            handle = disk.open_directory(path)
        except OSError:
            continue
        assert disk.recycles(handle) == (names[mount] in ("ext4", "ext3", "ext2", "xfs")), path
        disk.close(handle)
