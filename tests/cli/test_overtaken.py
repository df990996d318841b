"""Commands that read a directory work if the writer removes segments between two of their calls."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.cli.errors import FAILED
from mrecordlog_async.cli.main import main
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.storage.segment import segment_name
from tests.conftest import contents
from tests.readonly.overtaking import BLOCK, Interrupted, Stages, build


class OnAnotherFileSystem(Interrupted):
    """A file system on which links are impossible."""

    def link(self, old: str, new: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old)


@pytest.fixture
async def stages(tmp_path: Path, directory: Path) -> Stages:
    """Create a log that has advanced by a few segments, and restore its first state."""
    made = await build(tmp_path, count=2, each=3, kept=6)
    directory.mkdir()
    made.put(0, directory)
    assert made.segments(0)[0] < made.segments(1)[0] < made.segments(0)[-1]
    return made


def test_cat_that_follows_ends_where_an_older_copy_takes_the_place_of_the_log(
    directory: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would print records of both from here on, without a word."""

    async def store(letter: str) -> None:
        async with MultiRecordLog.open(directory, queues=["q"]) as log:
            for number in range(log.next_position("q"), 3):
                await log.append("q", f"{letter}{number}".encode())

    async def create() -> None:
        async with MultiRecordLog.open(directory, queues=["q"]) as log:
            await log.append("q", b"A0")

    def replace(seconds: float) -> None:
        shutil.rmtree(directory)
        copy.rename(directory)
        asyncio.run(store("B"))

    asyncio.run(create())
    copy = Path(shutil.copytree(directory, directory.parent / "copy"))
    asyncio.run(store("A"))
    monkeypatch.setattr("mrecordlog_async.cli.records.time.sleep", replace)
    assert main(["cat", str(directory), "q", "--follow"]) == FAILED
    out, err = capfdbinary.readouterr()
    assert out == b"A0\nA1\nA2\n"
    assert b"an older copy took the place of the log in " in err


def shown(directory: Path) -> object:
    with ReadOnlyLog.open(directory) as log:
        return contents(log)


@pytest.mark.parametrize("turn", [0, 1, 2, 5])
@pytest.mark.parametrize("files", [Interrupted, OnAnotherFileSystem])
@pytest.mark.parametrize("link", [True, False])
def test_a_snapshot_holds_a_state_that_the_log_had(
    stages: Stages, directory: Path, tmp_path: Path, files: type[Interrupted], link: bool, turn: int
) -> None:
    """It holds the first state or the state that the writer left, and nothing else."""
    interrupted = files()
    segment = stages.segments(0)[min(turn, len(stages.segments(0)) - 1)]
    interrupted.interrupt(segment, lambda: stages.put(1, directory))
    snapshot(str(directory), str(tmp_path / "copy"), link=link, filesystem=interrupted)
    assert shown(tmp_path / "copy") in stages.states
    assert {path.name[:3] for path in (tmp_path / "copy").iterdir()} == {"wal", "CLO"}
    with ReadOnlyLog.open(tmp_path / "copy") as log:
        assert len(list((tmp_path / "copy").iterdir())) == len(log.recovered.older) + 2, "and nothing that is not live"


def test_a_snapshot_of_linked_segments_does_not_begin_again(stages: Stages, directory: Path, tmp_path: Path) -> None:
    """Segments get their second name before the log's end is read, so removing the first name loses nothing."""
    *finished, last = stages.segments(0)

    def remove() -> None:
        for number in finished:
            (directory / segment_name(number)).unlink()

    files = Interrupted()
    files.interrupt(last, remove)
    snapshot(str(directory), str(tmp_path / "copy"), filesystem=files)
    assert shown(tmp_path / "copy") == stages.states[0]


def test_a_snapshot_that_begins_again_replaces_the_copy_of_the_segment_that_was_the_last(
    stages: Stages, directory: Path, tmp_path: Path
) -> None:
    """That segment was written on meanwhile, and is linked as a finished one."""

    class AtTheFirstLink(Interrupted):
        links_made = 0

        def link(self, old: str, new: str) -> None:
            if not self.links_made:
                stages.put(1, directory)
            self.links_made += 1
            super().link(old, new)

    assert stages.segments(0)[-1] in stages.segments(1)[:-1]
    snapshot(str(directory), str(tmp_path / "copy"), filesystem=AtTheFirstLink())
    assert shown(tmp_path / "copy") == stages.states[1]


@pytest.mark.parametrize("turn", range(6))
def test_what_a_writer_removes_is_nothing_to_salvage(stages: Stages, directory: Path, turn: int) -> None:
    """When the writer removes segments, the log is read again from those that exist."""
    files = Interrupted()
    files.interrupt(stages.segments(0)[turn], lambda: stages.put(1, directory))
    found = salvage(str(directory), filesystem=files)
    assert not found.damage
    assert [queue.missing for queue in found.queues] == [[], []]


async def test_a_log_that_goes_on_and_is_closed_meanwhile_misses_no_segment(directory: Path) -> None:
    """`CLOSED` names a segment that was created after the listing."""
    async with MultiRecordLog.open(directory, segment_bytes=BLOCK) as log:
        await log.create_queue("q")
        for _ in range(8):
            await log.append_record("q", None, bytes(40_000))

    class Late(Interrupted):
        """Lists the segments of an earlier moment, once."""

        def list_names(self, path: str) -> list[str]:
            found = sorted(name for name in super().list_names(path) if name.startswith("wal-"))
            return found if self.listed > 1 else found[:-2]

    found = await asyncio.to_thread(salvage, str(directory), filesystem=Late())
    assert not found.damage
    assert [queue.record_count for queue in found.queues] == [8]
    await asyncio.to_thread(snapshot, str(directory), f"{directory}.copy", filesystem=Late())
    with await asyncio.to_thread(ReadOnlyLog.open, f"{directory}.copy") as log_of_the_copy:
        assert log_of_the_copy.next_position("q") in (6, 8)


class Shrinking(Interrupted):
    """Removes a segment and frees its space while it is read for the *reads*-th time."""

    def __init__(self, stages: Stages, directory: Path, reads: int) -> None:
        super().__init__()
        self.stages, self.directory, self.reads = stages, directory, reads
        self.victim = directory / segment_name(stages.segments(0)[0])

    def read(self, handle: int, length: int, offset: int) -> bytes:
        piece = super().read(handle, length, offset)
        if self.victim.exists() and os.path.samestat(os.fstat(handle), self.victim.stat()):
            self.reads -= 1
            if not self.reads:
                with self.victim.open("r+b") as file:
                    self.stages.put(1, self.directory)
                    file.truncate(BLOCK // 2)
        return piece


@pytest.mark.parametrize("reads", [1, 2])
def test_a_segment_that_shrinks_while_it_is_read_is_no_damage(stages: Stages, directory: Path, reads: int) -> None:
    """No command reports damage in a healthy log whose segment shrinks during a read."""
    files = Shrinking(stages, directory, reads)
    assert not salvage(str(directory), filesystem=files).damage
    assert not files.victim.exists()


def test_a_copy_of_a_segment_that_shrinks_meanwhile_is_made_again(
    stages: Stages, directory: Path, tmp_path: Path
) -> None:
    """On another file system, nothing prevents the writer from freeing the space of a removed segment."""

    class Files(Shrinking, OnAnotherFileSystem):
        pass

    files = Files(stages, directory, 1)
    snapshot(str(directory), str(tmp_path / "copy"), link=False, filesystem=files)
    assert not files.victim.exists()
    assert shown(tmp_path / "copy") == stages.states[1]


async def test_a_copy_of_a_segment_that_had_shrunk_when_it_was_opened_does_not_count(
    directory: Path, tmp_path: Path
) -> None:
    """No read shows that the segment is shorter than before; only its missing name does."""
    stages = await build(tmp_path, count=2, each=1, kept=6)
    directory.mkdir()
    stages.put(0, directory)
    assert stages.segments(1)[0] == stages.segments(0)[0] + 1, "only one segment went"
    victim = directory / segment_name(stages.segments(0)[0])

    class CutWhenOpened(OnAnotherFileSystem):
        def open(self, path: str, *, write: bool = True) -> int:
            handle = super().open(path, write=write)
            if path == str(victim) and victim.exists():
                with victim.open("r+b") as file:
                    stages.put(1, directory)
                    file.truncate(BLOCK // 2)
            return handle

    files = CutWhenOpened()
    await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"), link=False, filesystem=files)
    assert not victim.exists()
    assert await asyncio.to_thread(shown, tmp_path / "copy") == stages.states[1]


@pytest.mark.parametrize("link", [True, False])
async def test_what_an_earlier_attempt_copied_and_is_not_live_any_more_is_removed(
    directory: Path, tmp_path: Path, link: bool
) -> None:
    """If all segments of the first attempt are no longer live, nothing of that attempt stays."""
    stages = await build(tmp_path, count=2, each=8, kept=4)
    directory.mkdir()
    stages.put(0, directory)
    assert stages.segments(0)[-1] < stages.segments(1)[0]
    files = OnAnotherFileSystem()
    files.interrupt(stages.segments(0)[1], lambda: stages.put(1, directory))
    await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "copy"), link=link, filesystem=files)
    assert await asyncio.to_thread(shown, tmp_path / "copy") == stages.states[1]
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        "CLOSED",
        *map(segment_name, stages.segments(1)),
    }
