"""Paths with `~/` where no shell replaces it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.support.paths import absolute


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home directory; the working directory is another one."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


def make(path: Any) -> None:
    """Make a log with one record."""

    async def use() -> None:
        async with MultiRecordLog.open(path, queues=["q"]) as log:
            await log.append("q", b"x")

    asyncio.run(use())


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_a_log_at_a_path_that_begins_with_a_tilde_is_in_the_home_directory(
    home: Path, kind: Callable[[str], Any]
) -> None:
    """As in a shell. Reading and copying it, too."""
    make(kind("~/logs/wal"))
    assert (home / "logs" / "wal" / "LOCK").exists()
    with ReadOnlyLog.open(kind("~/logs/wal")) as log:
        assert log.directory == str(home / "logs" / "wal")
    assert snapshot(kind("~/logs/wal"), kind("~/copy")).segments == 1
    assert (home / "copy").is_dir()
    assert not Path("~").exists()


def test_a_log_in_a_directory_named_tilde_is_not_passed_over(home: Path) -> None:
    """Earlier versions made one there: the two paths are named, and either can be used."""
    make("./~/wal")
    with pytest.raises(ValueError, match="stands for") as refused:
        make("~/wal")
    assert str(home / "wal") in str(refused.value)
    assert str(Path.cwd() / "~" / "wal") in str(refused.value)
    with pytest.raises(ValueError, match="stands for"), ReadOnlyLog.open("~/wal"):
        pass
    make("./~/wal")
    Path("~/other").mkdir()
    make("~/other")  # an empty directory is no log


def test_without_a_home_directory_a_tilde_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty HOME is none; the user database may have another."""
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 3)  # a user without a name
    with pytest.raises(ValueError, match="needs a home directory"):
        make("~/wal")
    monkeypatch.setenv("HOME", "not/absolute")
    with pytest.raises(ValueError, match="needs a home directory"):
        absolute("~")


def test_only_a_tilde_alone_is_the_home_directory(home: Path) -> None:
    """`~name` and a tilde elsewhere are names like any other."""
    assert absolute("~") == str(home)
    assert absolute("~/") == str(home)
    assert absolute("~/../a") == str(home.parent / "a")
    assert [absolute(path) for path in ("~root/a", "./~/a", "a/~")] == [
        os.path.join(os.getcwd(), path) for path in ("~root/a", "~/a", "a/~")
    ]


def test_an_empty_path_is_no_directory(home: Path) -> None:
    """A variable that is not set must not put a log into the working directory."""
    with pytest.raises(ValueError, match="must not be empty"):
        make("")
    with pytest.raises(ValueError, match="must not be empty"), ReadOnlyLog.open(""):
        pass
    assert not os.listdir()
