"""A directory has its name when it is complete. What another run builds under the same name is left alone."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mrecordlog_async.maintenance.new_directory import free_names, new_directory
from mrecordlog_async.maintenance.transfer import new_log
from mrecordlog_async.storage.os_filesystem import OsFileSystem

FILES = OsFileSystem()


def test_a_directory_has_only_what_was_put_into_it(tmp_path: Path) -> None:
    """The lock that others see while it is built is removed before it gets its name."""
    with new_directory(FILES, tmp_path / "new") as partial:
        assert partial == str(tmp_path / "new.partial")
        Path(partial, "file").touch()
    assert os.listdir(tmp_path) == ["new"]
    assert os.listdir(tmp_path / "new") == ["file"]


def test_nothing_is_left_of_one_that_fails(tmp_path: Path) -> None:
    """The error of the block is raised."""
    with pytest.raises(KeyError), new_directory(FILES, tmp_path / "new") as partial:
        Path(partial, "file").touch()
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_of_a_log_that_fails(tmp_path: Path) -> None:
    """An import or a repair that has failed can be repeated, as a snapshot can."""

    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        build_log(tmp_path / "new", fail)
    assert os.listdir(tmp_path) == []
    build_log(tmp_path / "new", lambda: None)


def test_nothing_is_left_of_a_log_that_cannot_be_created(tmp_path: Path) -> None:
    """The first segment may find no space."""
    files = FullAfterAMoment()
    files.is_full = True

    async def build() -> None:
        async with new_log(str(tmp_path / "new"), filesystem=files):
            raise AssertionError("it was created")

    with pytest.raises(OSError, match="space"):
        asyncio.run(build())
    assert os.listdir(tmp_path) == []


def test_one_that_is_being_built_is_not_called_left_over(tmp_path: Path) -> None:
    """Removing it would destroy the work of a running process, so the message says to wait."""
    with new_directory(FILES, tmp_path / "new") as partial:
        with pytest.raises(FileExistsError, match=f"process {os.getpid()} is writing it; wait until it ends"):
            free_names(FILES, tmp_path / "new")
        shutil.copytree(partial, tmp_path / "killed.partial")
    with pytest.raises(FileExistsError, match="left over from an interrupted run"):
        free_names(FILES, tmp_path / "killed")


def build_log(path: Path, work: Callable[[], None]) -> None:
    """Build a log, as an import and a repair do; *work* is done meanwhile."""

    async def build() -> None:
        async with new_log(str(path)):
            work()

    asyncio.run(build())


def test_a_log_that_is_being_built_is_not_called_left_over(tmp_path: Path) -> None:
    """The log of an import or a repair is locked while it is written."""
    with pytest.raises(FileExistsError, match=f"process {os.getpid()} is writing it; wait until it ends"):
        build_log(tmp_path / "new", lambda: print(free_names(FILES, tmp_path / "new")))


@pytest.mark.parametrize("leads_to", ["other", "nowhere"])
def test_a_symbolic_link_is_refused_before_anything_is_written(tmp_path: Path, leads_to: str) -> None:
    """The finished directory could not be renamed over it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / leads_to)
    with pytest.raises(FileExistsError, match="cannot be replaced; name a directory inside it"):
        free_names(FILES, tmp_path / "new")
    assert free_names(FILES, tmp_path / "new" / "inside")[0] == str(tmp_path / "new" / "inside")


class Mounted(OsFileSystem):
    """A disk on which the directory "new" is a mount point."""

    def is_replaceable(self, path: str) -> bool:
        return os.path.basename(path) != "new"


def test_a_mount_point_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The work would be done on the disk that it is mounted over."""
    (tmp_path / "new").mkdir()
    with pytest.raises(FileExistsError, match="cannot be replaced; name a directory inside it"):
        free_names(Mounted(), tmp_path / "new")
    assert free_names(Mounted(), tmp_path / "new" / "inside")[0] == str(tmp_path / "new" / "inside")


def replace(partial: Path) -> None:
    """Remove what is being built, and begin another one in its place."""
    shutil.rmtree(partial)
    partial.mkdir()
    (partial / "half").touch()


def test_the_directory_of_another_run_gets_no_name(tmp_path: Path) -> None:
    """A half-made directory must not become the target because an earlier run has ended."""
    replaced = pytest.raises(FileNotFoundError, match="replaced or removed while it was written")
    with replaced, new_directory(FILES, tmp_path / "new") as partial:
        replace(Path(partial))
    assert os.listdir(tmp_path) == ["new.partial"]
    assert os.listdir(tmp_path / "new.partial") == ["half"]


def test_the_log_of_another_run_gets_no_name(tmp_path: Path) -> None:
    """A half-made log must not become the target because an earlier import has ended."""
    with pytest.raises(FileNotFoundError, match="replaced or removed while it was written"):
        build_log(tmp_path / "new", lambda: replace(tmp_path / "new.partial"))
    assert os.listdir(tmp_path) == ["new.partial"]
    assert os.listdir(tmp_path / "new.partial") == ["half"]


def test_a_run_that_fails_removes_nothing_of_another(tmp_path: Path) -> None:
    """Only the directory that it created itself is removed."""
    with pytest.raises(KeyError), new_directory(FILES, tmp_path / "new") as partial:
        replace(Path(partial))
        raise KeyError
    assert os.listdir(tmp_path / "new.partial") == ["half"]


class FullAfterAMoment(OsFileSystem):
    """A disk that has space until *is_full* is set."""

    is_full = False

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(handle, offset, length)


def test_a_new_log_on_a_full_disk_says_where_and_what_to_do(tmp_path: Path) -> None:
    """It has no queues that somebody could truncate. What it had so far is removed, so the same command can follow."""
    files = FullAfterAMoment()

    async def build() -> None:
        async with new_log(str(tmp_path / "new"), filesystem=files) as log:
            await log.create_queue("q")
            files.is_full = True
            await log.append("q", bytes(4 << 20))

    with pytest.raises(OSError, match="free disk space and retry") as refused:
        asyncio.run(build())
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(tmp_path / "new"))
    assert os.listdir(tmp_path) == []


class Tiny(OsFileSystem):
    """A file system that is smaller than one batch of the records."""

    def space_of(self, handle: int) -> tuple[int, int]:
        return 1 << 20, 1 << 20

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if offset + length > 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(handle, offset, length)


def test_a_new_log_on_a_tiny_disk_says_so(tmp_path: Path) -> None:
    """The person who repairs a log does not choose how much is written in one call."""

    async def build() -> None:
        async with new_log(str(tmp_path / "new"), filesystem=Tiny()) as log:
            await log.append("q", bytes(2 << 20), create=True)

    with pytest.raises(OSError, match="the disk is full; free disk space and retry"):
        asyncio.run(build())


class WithoutLocks(OsFileSystem):
    """A network share that has no locks."""

    def lock(self, path: str) -> int:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), path)


def test_a_file_system_without_locks_takes_a_new_directory(tmp_path: Path) -> None:
    """The lock only makes a better message: a backup needs none."""
    with new_directory(WithoutLocks(), tmp_path / "new") as partial:
        Path(partial, "file").touch()
    assert os.listdir(tmp_path / "new") == ["file"]
