"""If the event loop ends, even in the middle of close, the lock and every file are released exactly once."""

from __future__ import annotations

import asyncio
import random

import pytest

from mrecordlog_async import PersistPolicy
from tests.faults.disk import Disk
from tests.faults.driver import DIRECTORY, Run, repeatable, without_chance
from tests.faults.explore import Tally, open_twice
from tests.faults.histories import NEVER
from tests.faults.judge import Verdict
from tests.faults.states import few_plans


def end_the_loop(run: Run, turns: int, *, closing: bool, closing_first: bool) -> Disk:
    """Run some calls, begin to close, and cancel every task after some turns, as the end of a loop does."""

    async def whole() -> None:
        await run.open()
        await run.create("a")
        await run.append("a", 100)
        pending = [run.begin_append("a", 200), run.begin("truncate", "a", position=0)]
        log = run.log
        assert log is not None
        ends = [asyncio.ensure_future(log.close())] if closing else []
        await run.turns(turns)
        tasks = [task for task in (log._engine._closing, log._engine._writer_task, *ends, *pending) if task is not None]
        for task in tasks if closing_first else reversed(tasks):
            task.cancel()
        await asyncio.wait(tasks)
        await run.turns(40)  # the thread's last work

    with repeatable() as loop:
        loop.run_until_complete(whole())
    return run.disk


@pytest.mark.parametrize("policy", [PersistPolicy.always(), NEVER], ids=["always", "never"])
@pytest.mark.parametrize("closing", [True, False], ids=["closing", "not closing"])
@pytest.mark.parametrize("closing_first", [True, False], ids=["close first", "writer first"])
def test_loop_that_ends_at_any_turn_gives_everything_back(
    policy: PersistPolicy, closing: bool, closing_first: bool, tally: Tally
) -> None:
    """No handle stays open, none is closed twice, and `CLOSED` is never written for batches that were not synced."""
    for turns in range(40):
        run = Run(policy=policy)
        run.record_moments = False
        disk = end_the_loop(run, turns, closing=closing, closing_first=closing_first)
        assert not disk.open_handles() and not disk.misuse, f"after {turns} turns: {disk.misuse}"
        verdict, bounds = Verdict(run.model), run.model.bounds()
        snapshot = disk.snapshot()
        with without_chance():
            for name, plan in few_plans(snapshot, random.Random(turns)):
                verdict.check(open_twice(snapshot.crash(plan), name), bounds, f"after {turns} turns, {name}")
                tally.crash_states += 1


def test_history_reaches_the_end_of_close() -> None:
    """The last of those turns come after a complete close."""
    disk = end_the_loop(Run(), 39, closing=True, closing_first=True)
    assert "CLOSED" in disk.content(DIRECTORY)
