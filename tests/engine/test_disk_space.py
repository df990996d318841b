"""`DiskSpace`: what a log may take of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import LogFullError
from mrecordlog_async.engine.commit.disk_space import SEGMENTS_MIN, DiskSpace
from mrecordlog_async.format.frame import BLOCK_BYTES
from mrecordlog_async.options import GIB, MIB
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.locked_directory import LockedDirectory


class Small(LockedDirectory):
    """A directory on a file system of one MiB."""

    def capacity_bytes(self) -> int:
        return MIB


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LockedDirectory]:
    held = Small.take(LogDirectory.at(tmp_path))
    yield held
    held.close()


def test_segments_are_as_small_as_the_limit_demands(directory: LockedDirectory) -> None:
    """A limit holds eight segments at least, and a segment one block."""
    assert DiskSpace(directory, GIB, 16 * GIB).segment_bytes == GIB
    assert DiskSpace(directory, GIB, 8 * MIB).segment_bytes == 8 * MIB // SEGMENTS_MIN
    assert DiskSpace(directory, GIB, 1).segment_bytes == BLOCK_BYTES


def test_what_does_not_fit_below_the_limit_is_refused(directory: LockedDirectory) -> None:
    """The last byte fits; the error names the limit and what is taken. What takes no more always fits."""
    space = DiskSpace(directory, BLOCK_BYTES, 1_000)
    space.check(400, 600)
    space.check(0, 5_000)
    with pytest.raises(LogFullError) as caught:
        space.check(401, 600)
    assert (caught.value.resource, caught.value.used, caught.value.limit) == ("disk", 600, 1_000)


@pytest.mark.parametrize(
    ("limit", "name", "least"), [(MIB // 2, "disk_bytes", MIB // 2), (GIB, "the file system", MIB)]
)
def test_the_largest_batch_is_limited_by_whichever_is_smaller(
    directory: LockedDirectory, limit: int, name: str, least: int
) -> None:
    """The log's limit or the file system, less what the segments around the batch need."""
    assert DiskSpace(directory, BLOCK_BYTES, limit).batch_bytes_max(1_000) == (least - 1_000 - 2 * 1_250, name)
