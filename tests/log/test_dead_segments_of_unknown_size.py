"""Dead segments whose size the system does not report."""

from __future__ import annotations

import errno

from mrecordlog_async import MultiRecordLog
from tests.faults.disk import Disk

DIRECTORY = "/data/wal"
SEGMENT_BYTES = 4 * 32_768


class UnknownSizes(Disk):
    """A disk that reports no size of a file that existed when it was opened, while `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self._opened = set[int]()

    def open(self, path: str, *, write: bool = True) -> int:
        handle = super().open(path, write=write)
        self._opened.add(handle)
        return handle

    def size(self, handle: int) -> int:
        if self.fails and handle in self._opened:
            raise OSError(errno.EIO, "no size")
        return super().size(handle)


async def fill_and_empty(log: MultiRecordLog, rolls: int) -> None:
    """Append as much as so many segments hold, and truncate behind each record."""
    for _ in range(2 * rolls):
        position = await log.append("q", bytes(SEGMENT_BYTES // 2))
        await log.truncate("q", max(position - 1, 0))


async def test_a_dead_segment_of_unknown_size_goes_and_its_handle_is_closed() -> None:
    """It cannot become a later segment, so it is removed like any other: space comes back, and no handle is left."""
    disk = UnknownSizes()
    async with MultiRecordLog.open(DIRECTORY, filesystem=disk, segment_bytes=SEGMENT_BYTES, queues=["q"]) as log:
        await fill_and_empty(log, 4)
        handles, segments = disk.open_handles(), log.resource_usage().segments
        disk.fails = True
        await fill_and_empty(log, 8)
        assert disk.open_handles() <= handles
        assert log.resource_usage().segments <= segments + 1
        disk.fails = False
    assert disk.open_handles() == 0
