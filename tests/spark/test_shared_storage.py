"""The marker that proves that a directory is the same one on every machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async.spark.checkpoints.shared_storage import PREFIX, NotSharedError, check_marker, marked
from mrecordlog_async.spark.positions.partitions import Partition, Range
from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.reader import PlannedPartition
from mrecordlog_async.spark.source.stream import LogStreamReader


def test_a_machine_that_sees_the_marker_shares_the_directory(tmp_path: Path) -> None:
    """The marker is found while it exists, and removed afterwards."""
    with marked(str(tmp_path)) as marker:
        check_marker(marker)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_the_same_name_and_another_past_is_not_shared(tmp_path: Path) -> None:
    """A copy has an old marker at most: each run uses a new name and removes old markers."""
    with marked(str(tmp_path)) as first:
        Path(tmp_path, PREFIX + "left-by-a-kill").touch()
        shutil.copytree(tmp_path, tmp_path / "elsewhere")
        with marked(str(tmp_path)) as second:
            assert [path.name for path in tmp_path.glob(f"{PREFIX}*")] == [Path(second).name]
            with pytest.raises(NotSharedError, match=r"elsewhere on .* is not the directory that the driver sees"):
                check_marker(str(tmp_path / "elsewhere" / Path(second).name))
    assert first != second


def test_a_task_without_the_mount_reads_nothing(tmp_path: Path) -> None:
    """A task without the mount fails before it calls the service, so nothing is stored in the wrong place."""
    options = replace(
        Options.parse({"servers": "http://127.0.0.1:1", "retries": "0"}), shared_marker=str(tmp_path / "marker")
    )
    partition = PlannedPartition(Partition("default", (Range("q", 1, 0, 5, 5, 5),)))
    with pytest.raises(NotSharedError):
        LogStreamReader(options).read(partition)
    (tmp_path / "marker").touch()
    with pytest.raises(ServerDownError):
        list(LogStreamReader(options).read(partition))
