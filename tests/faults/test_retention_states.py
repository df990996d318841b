"""Crashes and faults while records are removed for their age: what retention dropped stays dropped, the rest stays.

The age of all queues is a constant of the test, and its truncates are calls of the model: so everything that is
promised for a truncate is checked for them.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from mrecordlog_async import PersistPolicy
from mrecordlog_async.engine.age_clock import AgeClock
from mrecordlog_async.engine.commands import Command, TruncateQueue
from mrecordlog_async.engine.retention import Retention
from mrecordlog_async.metrics import Counters

from .driver import TIME_NS, Run
from .explore import Explorer, Tally
from .histories import Case
from .inject import faults, inject

NS = 1_000_000_000
AGE_TICKS = 300


class Aging:
    """The clock of a run, and the retention of its open log."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seconds = 0
        self.truncates: list[asyncio.Task[object]] = []
        self.retention: Retention | None = None

    def now(self) -> int:
        """Return the wall clock, which is the time since boot as well."""
        return TIME_NS + self.seconds * NS

    def opened(self) -> None:
        """Begin with the log that was just opened; every queue has the age."""
        if self.run.log is None:
            return
        queues = self.run.log._queues
        queues.newly_aging |= {queue.id for queue in queues}
        self.retention = Retention(queues, AgeClock(), Counters(), self.submit)

    def submit(self, command: Command) -> None:
        """Make the truncate of retention as a call of the model."""
        assert isinstance(command, TruncateQueue)
        call = self.run.begin("truncate", command.queue, position=command.position, forced=True)
        call.add_done_callback(lambda done: command.future.set_result(_number(done)))
        self.truncates.append(call)

    async def expire(self, seconds: int) -> None:
        """Let time pass, and remove what is too old."""
        self.seconds += seconds
        if self.retention is not None and self.run.log is not None:
            self.retention._queues.newly_aging |= {queue.id for queue in self.run.log._queues}
            self.retention.run()
            await asyncio.gather(*self.truncates, return_exceptions=True)
            await self.run.turns(3)


def _number(done: asyncio.Task[object]) -> int:
    value = None if done.cancelled() or done.exception() is not None else done.result()
    return value if isinstance(value, int) else 0


async def aging(run: Run) -> None:
    """Two queues over several segments; one pass while appends are under way, one after a restart, one that empties."""
    aging = Aging(run)
    with (
        patch("mrecordlog_async.engine.journal.time.time_ns", aging.now),
        patch("mrecordlog_async.engine.age_clock.wall_ns", aging.now),
        patch("mrecordlog_async.engine.age_clock.boot_ns", aging.now),
        patch("mrecordlog_async.engine.retention._max_age", lambda queue: queue and AGE_TICKS),
    ):
        await run.open()
        await run.create("a")
        await run.create("b")
        aging.opened()
        for number in range(6):
            await asyncio.gather(run.begin_append("a", 6_000, 30), run.begin_append("b", 40 * number))
            aging.seconds += 8
        appended = run.begin_append("a", 500)
        await aging.expire(0)
        await appended
        await run.idle()
        await run.append("a", 9_000)
        await run.close()
        aging.seconds += 20
        await run.open()
        aging.opened()
        await aging.expire(0)
        await run.append("b", 5)
        await aging.expire(100)
        await run.idle()
        await run.append("a", 1)


CASES = {
    "aging": Case(aging, early_roll_bytes=9_000),
    "aging, stepping": Case(aging, early_roll_bytes=9_000, stepping=True),
    "never, aging": Case(aging, PersistPolicy.never()),
}


@pytest.mark.parametrize("name", CASES)
def test_every_crash_state_keeps_what_is_young(name: str, tally: Tally) -> None:
    """What was removed and acknowledged stays removed, and nothing else is missing."""
    run = CASES[name].run()
    assert run.stopped is None
    assert sum(call.kind == "truncate" and call.value not in (0, None) for call in _calls(run)) >= 4
    explorer = Explorer(deep_every=100, kill_every=13)
    with CASES[name].sizes():
        explorer.explore(run, every=13)
    assert explorer.tally.crash_states + explorer.tally.nested_states > 50
    tally.add(explorer.tally)


def test_a_fault_at_any_call_loses_nothing_young(tally: Tally) -> None:
    """A failed or full disk may keep what is too old; it never loses what is young."""
    case, explorer = CASES["aging"], Explorer()
    calls = case.run(moments=False).disk.call_names
    for fault in list(faults(calls))[::19]:
        inject(case, fault, explorer)
    assert explorer.tally.faults > 5
    tally.add(explorer.tally)


def _calls(run: Run) -> list[Any]:
    return [call for life in run.lives for call in life.model.calls]
