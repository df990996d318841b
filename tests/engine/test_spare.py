"""The spare: the next segment is ready, table and all, before it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.journal import Journal
from mrecordlog_async.storage.filesystem import Buffer
from tests.cached_files import CachedFiles


class Watched(CachedFiles):
    """Notes at each write whether the spare has room for the table as it will be after that batch."""

    def __init__(self) -> None:
        self.journal: Journal | None = None
        self.new_table_bytes = 0
        self.was_ready: list[bool] = []

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.journal is not None:
            self.was_ready.append(not self.journal.wants_spare(self.new_table_bytes))
        return super().write(handle, buffers, offset)


async def test_the_spare_has_room_for_queues_before_they_are_made(directory: Path) -> None:
    """Their batch makes the table longer. On a disk that is full by then the next roll, and with it giving space back,
    would fail."""
    files = Watched()
    names = [f"{number:03}" * 80 for number in range(300)]
    async with MultiRecordLog.open(directory, filesystem=files) as log:
        files.journal = log._opened.journal
        files.new_table_bytes = sum(len(name) + 26 for name in names)
        assert files.journal.wants_spare(files.new_table_bytes), "the spare as it is would do for them"
        await asyncio.gather(*map(log.create_queue, names))
        assert files.was_ready == [True]
        files.journal = None
