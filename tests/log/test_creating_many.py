"""Many queues are created in one step: all of them or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogFullError,
    MultiRecordLog,
    QueueExistsError,
    QueueNameError,
    QueueOptions,
)
from tests.damage import segments


async def test_many_queues_are_created_in_one_step(log: MultiRecordLog) -> None:
    """All or none: an existing queue or a bad name leaves the log as it was. A name that is given twice counts once."""
    assert await log.create_queues(["a", "b", "a"], options=QueueOptions(max_records=7)) == 2
    assert log.queue_options("b").max_records == 7
    before = log.list_queues()
    with pytest.raises(QueueExistsError):
        await log.create_queues(["c", "b"])
    with pytest.raises(QueueNameError):
        await log.create_queues(["c", "x\0y"])
    with pytest.raises(TypeError, match="not a single one"):
        await log.create_queues("cd")
    assert log.list_queues() == before
    assert await log.create_queues(["c", "b"], exist_ok=True) == 1
    assert await log.create_queues(["c", "b"], exist_ok=True) == 0
    assert await log.create_queues([]) == 0
    assert (log.queue_options("c").max_records, log.queue_options("b").max_records) == (None, 7)


async def test_a_limit_on_queues_creates_none_of_many(tmp_path: Path) -> None:
    """Rules count, too: what a call creates fits as a whole, or nothing of it is written."""
    async with MultiRecordLog.open(tmp_path, limits=Limits(queues=3, consumers=3)) as log:
        with pytest.raises(LogFullError):
            await log.create_queues(["a", "b", "c", "d"])
        await log.create_consumer("*", "audit")
        with pytest.raises(LogFullError):
            await log.create_queues(["a", "b", "c"])
        assert log.list_queues() == []
        assert await log.create_queues(["a", "b"]) == 2
        assert [list(log.consumers(queue)) for queue in ("a", "b")] == [["audit"], ["audit"]]


async def test_declaring_existing_queues_again_works_above_a_limit_that_was_lowered(tmp_path: Path) -> None:
    """A log may hold more queues and consumers than its limits allow now: a call that creates nothing needs no room."""
    async with MultiRecordLog.open(tmp_path, queues=["a", "b", "c"]) as log:
        for queue in ("a", "b"):
            await log.create_consumer(queue, "audit")
    async with MultiRecordLog.open(tmp_path, limits=Limits(queues=2, consumers=1)) as log:
        assert await log.create_queues(["a", "b"], exist_ok=True) == 0
        assert await log.create_queues([], exist_ok=True) == 0
        with pytest.raises(LogFullError):
            await log.create_queues(["a", "d"], exist_ok=True)
        assert await log.append_record("a", None, b"x") == 0


async def test_a_crash_leaves_all_of_many_queues_or_none(tmp_path: Path) -> None:
    """Wherever the writing of the batch ends, opening finds the queues of the call together, or none of them."""
    names = [f"queue-{number:03d}" for number in range(300)]
    async with MultiRecordLog.open(tmp_path / "wal", segment_bytes=65_536, queues=["first"]) as log:
        (segment,) = segments(tmp_path / "wal")
        begun = len(segment.read_bytes().rstrip(b"\0"))
        assert await log.create_queues(names) == 300
        content = segment.read_bytes()
    ended = len(content.rstrip(b"\0"))
    assert ended > begun + 300 * 10
    for number, cut in enumerate([*range(begun, ended, (ended - begun) // 12), ended - 1, ended]):
        copy = tmp_path / str(number)
        copy.mkdir()
        (copy / segment.name).write_bytes(content[:cut] + bytes(len(content) - cut))
        async with MultiRecordLog.open(copy, segment_bytes=65_536) as log:
            assert log.list_queues() == (["first", *names] if cut >= ended else ["first"])
