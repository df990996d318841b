"""Queues: create, truncate, delete and configure."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    Limits,
    MultiRecordLog,
    QueueExistsError,
    QueueNotFoundError,
    QueueOptions,
)
from tests.conftest import contents


async def test_truncate_is_inclusive_and_counts(log: MultiRecordLog) -> None:
    """Truncating drops records up to and including the position, and returns how many."""
    await log.append_records("q", None, [b"%d" % n for n in range(10)])
    assert await log.truncate("q", 3) == 4
    assert await log.truncate("q", 3) == 0
    assert await log.truncate("q", 1) == 0
    assert log.first_position("q") == 4
    assert [position for position, _ in log.range("q")] == [4, 5, 6, 7, 8, 9]


async def test_truncate_past_the_end_moves_the_next_position(log: MultiRecordLog, directory: Path) -> None:
    """Truncating past the end uses up those positions, even after reopening: none is assigned again."""
    await log.append_record("q", None, b"a")
    assert await log.truncate("q", 99) == 1
    assert (log.first_position("q"), log.next_position("q"), log.last_position("q")) == (100, 100, 99)
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert await again.append_record("q", None, b"b") == 100


async def test_truncate_of_another_incarnation_is_refused(log: MultiRecordLog) -> None:
    """A truncate that names a queue id spares a queue made again under the name."""
    first = log.queue_summary("q").id
    await log.delete_queue("q")
    await log.create_queue("q")
    await log.append_record("q", None, b"new")
    with pytest.raises(QueueNotFoundError):
        await log.truncate("q", 0, queue_id=first)
    assert await log.truncate("q", 0, queue_id=log.queue_summary("q").id) == 1


async def test_deleted_queue_does_not_exist_and_a_new_one_is_new(log: MultiRecordLog, directory: Path) -> None:
    """A deleted queue never comes back; its name may be used again, with another id, from position 0."""
    await log.append_record("q", None, b"old")
    old = log.queue_summary("q").id
    await log.delete_queue("q")
    assert not log.queue_exists("q")
    await log.create_queue("q")
    assert log.queue_summary("q").id > old
    assert log.next_position("q") == 0
    await log.close()
    async with MultiRecordLog.open(directory) as again:
        assert contents(again) == {"q": (0, 0, [])}


async def test_create_queue_twice(log: MultiRecordLog) -> None:
    """A second create is an error, or with exist_ok no news."""
    with pytest.raises(QueueExistsError) as caught:
        await log.create_queue("q")
    assert caught.value.queue == "q"
    assert await log.create_queue("q", exist_ok=True) is False
    assert await log.create_queue("new", exist_ok=True) is True
    assert log.list_queues() == ["new", "q"]


async def test_options_of_a_queue_are_queue_options(log: MultiRecordLog) -> None:
    """A dict creates no queue, and changes none; None is for a new queue only."""
    wrong: Any
    for wrong in ({"max_records": 1}, Limits()):
        with pytest.raises(TypeError, match=r"options must be QueueOptions, not (dict|Limits)"):
            await log.create_queue("other", options=wrong)
    for wrong in ({"max_records": 1}, None):
        with pytest.raises(TypeError, match=r"options must be QueueOptions, not (dict|NoneType)"):
            await log.configure_queue("q", wrong)
    assert log.list_queues() == ["q"] and log.queue_options("q") == QueueOptions()


async def test_concurrent_creates_make_one_queue(log: MultiRecordLog) -> None:
    """A result that depends on a command of the same batch is the one a later call would get."""
    results = await asyncio.gather(*(log.create_queue("r") for _ in range(3)), return_exceptions=True)
    assert results[0] is True
    assert [type(result) for result in results[1:]] == [QueueExistsError] * 2
