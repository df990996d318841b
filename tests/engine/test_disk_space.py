"""`DiskSpace`: what a log may take of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import LogFullError
from mrecordlog_async.engine.commit.disk_space import SEGMENTS_MIN, DiskSpace
from mrecordlog_async.format.frame import BLOCK_BYTES
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.options import GIB, MIB
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.recovery.torn_or_damaged import NOTHING
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import DIRECT_BLOCK_BYTES
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES, LockedDirectory, make_first_segment
from mrecordlog_async.storage.segment import LogEnd, SegmentFile


class Small(LockedDirectory):
    """A directory on a file system of one MiB."""

    def capacity_bytes(self) -> int:
        return MIB


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LockedDirectory]:
    held = Small.take(LogDirectory.at(tmp_path))
    yield held
    held.close()


def space(directory: LockedDirectory, segment_bytes: int, limit_bytes: int) -> DiskSpace:
    """Return the space of a new log in *directory*."""
    queues = Queues(1)
    file, end = make_first_segment(directory, bytes(16), queues.encoded_table())
    file.close()
    recovered = RecoveredLog(bytes(16), LogEnd(0, end, end, 1, 0, 0), 0, file.reserved_bytes, queues, NOTHING, False)
    return DiskSpace(directory, file, recovered, segment_bytes, limit_bytes)


def test_segments_are_as_small_as_the_limit_demands(directory: LockedDirectory) -> None:
    """A limit holds eight segments at least, and a segment one block; only a segment's first batch may be larger."""
    for segment_bytes, limit, full_at in [
        (GIB, 16 * GIB, GIB),
        (GIB, 8 * MIB, 8 * MIB // SEGMENTS_MIN),
        (GIB, 1, BLOCK_BYTES),
    ]:
        found, at = space(directory, segment_bytes, limit), LogEnd(1, 100, 100, 1, 1, 1)
        found.enter(SegmentFile(directory.files, "", -1, 0), at)
        assert not found.is_full(at.table_end + full_at)
        assert found.is_full(at.table_end + full_at + 1)
        at.last_batch = 0
        assert not found.is_full(at.table_end + full_at + 1)


def test_what_does_not_fit_below_the_limit_is_refused(directory: LockedDirectory) -> None:
    """The last byte fits; the error names the limit and what is taken."""
    taken = space(directory, BLOCK_BYTES, GIB).taken_bytes
    found = space(directory, BLOCK_BYTES, 10 * taken)
    found.check_room_after_roll(10 * taken - 2 * taken)
    with pytest.raises(LogFullError) as caught:
        found.check_room_after_roll(10 * taken)
    assert (caught.value.resource, caught.value.used, caught.value.limit) == ("disk", taken, 10 * taken)


@pytest.mark.parametrize(
    ("limit", "name", "least"), [(MIB // 2, "disk_bytes", MIB // 2), (GIB, "the file system", MIB)]
)
def test_the_largest_batch_is_limited_by_whichever_is_smaller(
    directory: LockedDirectory, limit: int, name: str, least: int
) -> None:
    """The log's limit or the file system, less what the segments around the batch need."""
    preamble = DIRECT_BLOCK_BYTES + RESERVE_BYTES
    found = space(directory, BLOCK_BYTES, limit).batch_bytes_max()
    assert found == (least - preamble - 2 * (preamble + preamble // 4) - DIRECT_BLOCK_BYTES, name)
