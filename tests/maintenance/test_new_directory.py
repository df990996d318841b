"""A directory has its name when it is complete. What another run builds under the same name is left alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from mrecordlog_async.maintenance.new_directory import new_directory
from mrecordlog_async.maintenance.rebuild import new_log
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


def test_one_that_is_being_built_is_told_from_a_leftover(tmp_path: Path) -> None:
    """Whoever removed it would destroy the work of a running process, so the message says to wait."""
    with new_directory(FILES, tmp_path / "new") as partial:
        with pytest.raises(FileExistsError, match=f"process {os.getpid()} is writing it; wait until it ends"):
            with new_directory(FILES, tmp_path / "new"):
                raise AssertionError("begun twice")
        shutil.copytree(partial, tmp_path / "killed.partial")
    with pytest.raises(FileExistsError, match="left over from an interrupted run"):
        with new_directory(FILES, tmp_path / "killed"):
            raise AssertionError("begun in a leftover")


async def test_a_log_that_is_being_built_is_told_from_a_leftover(tmp_path: Path) -> None:
    """An import or a repair that runs says so, as a snapshot does."""
    async with new_log(str(tmp_path / "new")):
        with pytest.raises(FileExistsError, match=f"process {os.getpid()} is writing it; wait until it ends"):
            async with new_log(str(tmp_path / "new")):
                raise AssertionError("begun twice")


def replace(partial: Path) -> None:
    """Remove what is being built, and begin another one in its place."""
    shutil.rmtree(partial)
    partial.mkdir()
    (partial / "half").touch()


def test_the_directory_of_another_run_gets_no_name(tmp_path: Path) -> None:
    """A half-made directory must not become the target because an earlier run has ended."""
    with pytest.raises(FileNotFoundError, match="replaced or removed while it was written"):
        with new_directory(FILES, tmp_path / "new") as partial:
            replace(Path(partial))
    assert os.listdir(tmp_path) == ["new.partial"]
    assert os.listdir(tmp_path / "new.partial") == ["half"]


async def test_the_log_of_another_run_gets_no_name(tmp_path: Path) -> None:
    """A half-made log must not become the target because an earlier import has ended."""
    with pytest.raises(FileNotFoundError, match="replaced or removed while it was written"):
        async with new_log(str(tmp_path / "new")):
            replace(tmp_path / "new.partial")
    assert os.listdir(tmp_path) == ["new.partial"]
    assert os.listdir(tmp_path / "new.partial") == ["half"]


def test_a_run_that_fails_removes_nothing_of_another(tmp_path: Path) -> None:
    """Only the directory that it created itself is removed."""
    with pytest.raises(KeyError), new_directory(FILES, tmp_path / "new") as partial:
        replace(Path(partial))
        raise KeyError
    assert os.listdir(tmp_path / "new.partial") == ["half"]


class WithoutLocks(OsFileSystem):
    """A network share that has no locks."""

    def lock(self, path: str) -> int:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), path)


def test_a_file_system_without_locks_takes_a_new_directory(tmp_path: Path) -> None:
    """The lock only makes a better message: a backup needs none."""
    with new_directory(WithoutLocks(), tmp_path / "new") as partial:
        Path(partial, "file").touch()
    assert os.listdir(tmp_path / "new") == ["file"]
