"""Appends that repeat a stored record, in one batch with a delete of its queue and an append that the disk refuses."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import LogFullError, MultiRecordLog
from tests.full_disk import FullDisk

REFUSES = pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "failing"])


async def outcomes(directory: Path, error: int, calls: list[str]) -> list[Any]:
    """Make *calls* at the same time, the first of them one that finds no space; return their results and errors."""
    disk = FullDisk()
    disk.full, disk.error = False, error
    async with MultiRecordLog.open(directory, filesystem=disk, queues=["large", "q"]) as log:
        await log.append_records("q", 0, [b"0", b"1", b"2"])
        disk.full = True
        makes: dict[str, Callable[[], Awaitable[object]]] = {
            "large": lambda: log.append_record("large", None, bytes(3 << 20)),
            "delete": lambda: log.delete_queue("q"),
            "repeat": lambda: log.append_record("q", 2, b"2"),
        }
        found = await asyncio.gather(*(makes[call]() for call in calls), return_exceptions=True)
        disk.full = False
        assert log.queue_exists("q") is ("delete" not in calls)
        assert isinstance(found[0], LogFullError if error == errno.ENOSPC else OSError)
        return found[1:]


@REFUSES
async def test_a_repeat_after_a_delete_of_its_queue_is_not_acknowledged(directory: Path, error: int) -> None:
    """Calls keep their order: the record that it repeats was deleted before, and is stored nowhere."""
    deleted, repeated = await outcomes(directory, error, ["large", "delete", "repeat"])
    assert deleted is None
    assert isinstance(repeated, Exception)


@REFUSES
async def test_a_repeat_before_a_delete_of_its_queue_is_acknowledged(directory: Path, error: int) -> None:
    """It repeats what is stored, which needs no space: a refusal would say that the record is not stored."""
    assert await outcomes(directory, error, ["large", "repeat", "delete"]) == [None, None]
    assert await outcomes(directory.with_name("other"), error, ["large", "repeat"]) == [None]
