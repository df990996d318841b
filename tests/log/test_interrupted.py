"""Exceptions that end a program, raised while the log is at work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mrecordlog_async import LogFailedError, MultiRecordLog
from tests.cached_files import CachedFiles


class Interrupted(CachedFiles):
    """A disk of which the next sync raises `error`, if there is one."""

    error: BaseException | None = None

    def sync(self, handle: int) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        super().sync(handle)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["Ctrl-C", "exit"])
def test_what_ends_a_program_ends_it_while_the_log_is_at_work(directory: Path, error: BaseException) -> None:
    """The log does not take it for an error of the disk: it fails its calls, and passes it on to the loop."""
    disk, ended = Interrupted(), list[BaseException | None]()

    async def work() -> None:
        async with MultiRecordLog.open(directory, filesystem=disk, queues=["q"]) as log:
            await log.append("q", b"before")
            disk.error = error
            call = log.append_soon("q", b"in flight")
            call.add_done_callback(lambda done: ended.append(done.exception()))
            await asyncio.wait([call])

    with pytest.raises(type(error)):
        asyncio.run(work())
    assert [type(each) for each in ended] == [LogFailedError]
