"""Histories of a prepared write next to a job of the log's thread. They reach into the log."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from .driver import Run
from .histories import Case


async def stated_in_flight(run: Run) -> None:
    """While a prepared write is under way, the log's thread states where the log ends. Then the process dies.

    So it is if a loop stands still, and somebody else has the log released.
    """
    await run.open()
    await run.create("a")
    await run.idle(0.1)  # the writer sleeps
    await run.append("a", 300)
    first = run.begin_append("a", 500)
    assert run.log is not None
    while not run.log._engine.writer._in_flight and not first.done():
        await run.turns(1)
    engine = run.log._engine
    with suppress(OSError):
        await asyncio.wrap_future(engine.thread.submit(engine.opened.journal.write_closed, None))
    await first
    await run.kill()
    await run.open()
    await run.append("a", 40)


STATED_IN_FLIGHT = {
    "prepared": Case(stated_in_flight, has_prepared=True, may_refuse=True),
    "stepping, prepared": Case(stated_in_flight, stepping=True, has_prepared=True, may_refuse=True),
}
"""Not among the others: a log that failed must not state its end."""
