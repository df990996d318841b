"""Directories of a lake that only Hadoop reaches: creations that are killed, or at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mrecordlog_async.spark.checkpoints.hadoop_lake import HadoopLake
from mrecordlog_async.spark.checkpoints.lake import foreign_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
