"""Loose records of earlier segments are joined after a roll, in short steps between which others run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.commit.upkeep import REST_SECONDS, WORK_SECONDS, Joining
from mrecordlog_async.format.controls import Create
from mrecordlog_async.format.record import Many
from mrecordlog_async.memory.queues import Queues
from tests.memory.states import state_of

QUEUES = 40


def queues_after_a_roll() -> Queues:
    """Make queues with 10 loose records each, of an earlier segment."""
    queues = Queues(1)
    ids = range(1, QUEUES + 1)
    for queue_id in ids:
        queues.apply(0, Create(queue_id, str(queue_id)))
    for position in range(10):
        queues.apply_all(0, [Many.of(ids, [position] * QUEUES, [b"x" * 100] * QUEUES)])
    queues.apply_all(1, [])
    return queues


def count_loose(queues: Queues) -> int:
    """Return how many queues have loose records."""
    return sum(bool(queue.store.loose) for queue in queues)


class Clock:
    """Time passes only while a queue is joined, which takes as long each time."""

    def __init__(self, queues: Queues, seconds: float) -> None:
        self._queues = queues
        self._seconds = seconds

    def __call__(self) -> float:
        """Return the time."""
        return self._seconds * (QUEUES - count_loose(self._queues))


async def steps_of(queues: Queues, seconds: float) -> tuple[list[int], list[float]]:
    """Take every step, with a clock by which each queue takes *seconds*; return what each joined, and the rests."""
    freed: list[int] = []
    timers: list[tuple[float, Callable[[], object]]] = []

    def call_later(delay: float, step: Callable[..., object], *arguments: Any) -> object:
        timers.append((delay, lambda: step(*arguments)))
        return SimpleNamespace(cancel=timers.clear)

    joining = Joining(queues, freed.append, Clock(queues, seconds))
    joining._loop = SimpleNamespace(call_later=call_later)  # type: ignore[assignment]  # it needs nothing else of a loop
    memory, left, rests = queues.memory_bytes, [count_loose(queues)], []
    joining.arm()
    joining.arm()
    while timers:
        [(delay, step)] = timers
        timers.clear()
        step()
        rests.append(delay)
        left.append(count_loose(queues))
    assert memory - queues.memory_bytes == sum(freed)
    return [before - after for before, after in pairwise(left)], rests


async def test_step_ends_when_its_time_is_over() -> None:
    """A millisecond of work, then a rest of six."""
    joined, rests = await steps_of(queues_after_a_roll(), WORK_SECONDS / 6.5)
    assert joined == [7, 7, 7, 7, 7, 5]
    assert rests == [REST_SECONDS] * 6


async def test_every_step_joins_something() -> None:
    """However slow the machine is, the work ends."""
    joined, _ = await steps_of(queues_after_a_roll(), 1.0)
    assert [step for step in joined if step] == [1] * QUEUES
    assert len(joined) <= QUEUES + 1


async def test_nothing_is_joined_once_it_was_stopped() -> None:
    """The log is closed, or has failed."""
    queues = queues_after_a_roll()
    joining = Joining(queues, lambda freed: None)
    joining.arm()
    joining.stop()
    joining.arm()
    assert joining._timer is not None
    assert joining._timer.cancelled()


async def test_log_joins_what_it_held_before_a_roll(tmp_path: Path) -> None:
    """Even while nobody calls; every record is read as it was, and the memory in use is what the queues hold."""
    names = [str(number) for number in range(QUEUES)]
    async with MultiRecordLog.open(tmp_path / "wal", segment_bytes=100_000) as log:
        for name in names:
            await log.create_queue(name)
        for number in range(60):
            await asyncio.gather(*(log.append_record(name, None, b"%d" % number * 25) for name in names))
        assert log.stats().rolls > 0
        async with asyncio.timeout(60):
            while log._engine.queues.settling.has_old():
                await asyncio.sleep(0)
        state_of(log._engine.queues)
        assert max(len(queue.store.loose) for queue in log._engine.queues) < 60
        for name in names:
            assert [record.payload for record in log.range(name)] == [b"%d" % number * 25 for number in range(60)]


async def test_records_are_joined_after_any_roll(directory: Path) -> None:
    """Opening a log whose segment has a second name rolls too, and so does a batch that the disk then refuses."""
    async with MultiRecordLog.open(directory, queues=[str(number) for number in range(QUEUES)]) as log:
        await asyncio.gather(*[log.append(str(number), b"x" * 100) for number in range(QUEUES)])
        segment = directory / log.recovery_report.segment
    os.link(segment, directory.with_name("linked"))
    async with MultiRecordLog.open(directory) as log:
        assert count_loose(log._engine.queues) == QUEUES
        await log.append("0", b"x")
        async with asyncio.timeout(60):
            while count_loose(log._engine.queues):
                await asyncio.sleep(REST_SECONDS)
        assert all(log.next_position(str(number)) == 1 + (not number) for number in range(QUEUES))
