"""Durable small files, and locks."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from mrecordlog_async.spark.checkpoints import local_lake
from mrecordlog_async.spark.checkpoints.lake import (
    Lake,
    LockedError,
    SyncFailedError,
    WriteFailedError,
)
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake


def check_files(found: Lake) -> None:
    """Check what every lake can do with small files."""
    assert found.names("d") == [] and found.read("d/1") is None
    assert found.create("d/1", b"one") and not found.create("d/1", b"two")
    assert found.read("d/1") == b"one"
    found.write("d/1", b"three")
    found.write("d/2", b"")
    assert found.read("d/1") == b"three" and found.read("d/2") == b""
    assert sorted(name for name in found.names("d") if not name.endswith(".crc")) == ["1", "2"]
    found.remove("d", ["2", "1"])
    assert [name for name in found.names("d") if not name.endswith(".crc")] == []
    found.sync()
    found.forget_cached("d/1")
    found.lock()


def test_a_directory_on_a_disk(tmp_path: Path) -> None:
    """Files are written completely or not at all."""
    found = LocalLake(str(tmp_path / "new" / "lake"))
    check_files(found)
    found.close()


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second lock is refused, and the error names the process that holds the first."""
    monkeypatch.setattr(local_lake, "LOCK_SECONDS", 0.0)
    first, second = LocalLake(str(tmp_path)), LocalLake(str(tmp_path))
    first.lock()
    with pytest.raises(LockedError, match=f"locked by process {os.getpid()}"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_a_lock_that_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    """A full disk at the start is one sentence, and the next start gets the lock."""
    lake, before = LocalLake(str(tmp_path)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(WriteFailedError, match=r"cannot be used \(File too large\): free space"):
            lake.lock()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lake.lock()
    lake.close()


@pytest.mark.parametrize(("step", "call", "name"), [("replace", "write", "d/1"), ("link", "create", "d/2")])
def test_a_disk_that_fails_at_a_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, call: str, name: str
) -> None:
    """If the last step of a write fails, the content stays as it was, and no temporary file is left."""
    lake = LocalLake(str(tmp_path))
    lake.write("d/1", b"before")

    def failing(*arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch, pytest.raises(WriteFailedError, match=rf"{name} could not .*\(Read-only"):
        patch.setattr(os, step, failing)
        getattr(lake, call)(name, b"after")
    assert lake.names("d") == ["1"] and lake.read("d/1") == b"before"
    assert lake.create("d/2", b"after") and not lake.create("d/2", b"again")
    assert sorted(lake.names("d")) == ["1", "2"]
    lake.close()


def test_the_checksum_goes_with_its_file(tmp_path: Path) -> None:
    """A removed file takes Hadoop's checksum file with it; otherwise Hadoop would check the next file against it."""
    found = LocalLake(str(tmp_path))
    for name in ("7", ".7.crc"):
        (tmp_path / "commits").mkdir(exist_ok=True)
        (tmp_path / "commits" / name).touch()
    found.remove("commits", ["7"])
    assert found.names("commits") == []
    found.close()


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    """A file in its place is one sentence that says what to do; so is a directory without rights."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WriteFailedError, match=r"file.* cannot be used \(.*\): name a directory"):
            LocalLake(str(path))


def test_a_lake_is_durable_in_parents_that_were_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain may have died right after it created them."""
    synced = list[str]()
    monkeypatch.setattr(local_lake, "sync_directory", lambda path: synced.append(str(path)))
    (tmp_path / "made").mkdir()
    LocalLake(str(tmp_path / "made" / "lake"))
    assert {str(tmp_path), str(tmp_path / "made")} <= set(synced)
    synced.clear()
    LocalLake(str(tmp_path / "made" / "lake"))
    assert {str(tmp_path), str(tmp_path / "made")} <= set(synced)


def test_only_names_above_a_lake_may_fail_to_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory above may be on another disk; the lake's own name must be durable, as that of a new parent."""
    lake, failing = tmp_path / "lake", set[Path]()

    def sync(path: Path) -> None:
        if path in failing:
            raise SyncFailedError(f"{path} could not be synced")

    monkeypatch.setattr(local_lake, "sync_directory", sync)
    LocalLake(str(lake))
    failing.add(tmp_path.parent)
    LocalLake(str(lake))
    failing.add(tmp_path)
    for refused in (lake, lake.parent / "new" / "lake"):
        with pytest.raises(SyncFailedError):
            LocalLake(str(refused))
