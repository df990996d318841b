"""Durable small files, and locks."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mrecordlog_async.spark.checkpoints import local_lake
from mrecordlog_async.spark.checkpoints.hadoop_lake import HadoopLake
from mrecordlog_async.spark.checkpoints.lake import (
    Lake,
    LockedError,
    SyncFailedError,
    WriteFailedError,
    foreign_name,
)
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def test_a_directory_that_hadoop_knows(spark: SparkSession, tmp_path: Path) -> None:
    """Through Hadoop the results are the same; Hadoop's view of a disk stands in for HDFS."""
    (tmp_path / "lake").mkdir()
    found = HadoopLake(spark, (tmp_path / "lake").as_uri())
    check_files(found)
    found.close()


class Killed(BaseException):
    """The process is killed here."""


def test_a_creation_that_is_killed_leaves_nothing_that_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS shows a file as soon as it is opened: an empty one would be called damaged by the next start."""
    found = HadoopLake(spark, (tmp_path / "lake").as_uri())
    files = found._files

    class KilledWhenOpened:
        def __getattr__(self, name: str) -> Any:
            return getattr(files, name)

        def create(self, path: Any, overwrite: bool) -> Any:  # Hadoop's
            files.create(path, overwrite).close()
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(found, "_files", KilledWhenOpened())
        for put in (found.create, found.write):
            with pytest.raises(Killed):
                put("metadata", b"one")
    assert found.read("metadata") is None
    assert foreign_name(found.names(), ()) is None
    assert found.create("metadata", b"two") and found.read("metadata") == b"two"


def test_of_two_creations_at_the_same_moment_one_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one changes nothing, and leaves no file behind."""
    first, second = (HadoopLake(spark, (tmp_path / "lake").as_uri()) for _ in range(2))
    put = first._put

    def late(name: str, content: bytes, *, replace: bool) -> None:
        assert second.create(name, b"faster")
        put(name, content, replace=replace)

    monkeypatch.setattr(first, "_put", late)
    assert not first.create("d/1", b"slower")
    assert first.read("d/1") == b"faster"
    assert [name for name in first.names("d") if not name.endswith(".crc")] == ["1"]


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
