"""Histories in which records are removed for their age: what retention dropped stays dropped, the rest stays.

The retention of the log works by clocks that only the history moves, and its truncates are calls of the model: so
everything that is promised for a truncate is checked for them. The times of records are a part of every state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from mrecordlog_async import PersistPolicy, QueueOptions

from . import inside
from .driver import TIME_NS, Run
from .histories import Case
from .inside import TruncateQueue
from .judge import Violation

NS = 1_000_000_000
AGE_SECONDS = 30
AGED = QueueOptions(max_age=AGE_SECONDS)


class Clocks:
    """The clocks of a run.

    seconds: what really passed. ahead: how far the wall clock is set ahead of that. It changes between calls only.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seconds = 0
        self.ahead = 0
        self._stored: dict[bytes, tuple[int, int]] = {}  # by payload: life and second
        run.on_expiry = self._check_expiry

    @contextmanager
    def installed(self) -> Iterator[Clocks]:
        """Let the log use them."""
        with patch("time.time_ns", self.wall_ns), patch("time.clock_gettime_ns", self.boot_ns):
            yield self

    def wall_ns(self) -> int:
        """Return the wall clock."""
        return TIME_NS + (self.seconds + self.ahead) * NS

    def boot_ns(self, clock: int = 0) -> int:
        """Return the time since boot."""
        return self.seconds * NS

    async def append(self, queue: str, *sizes: int) -> None:
        """Append, and note when that was."""
        payloads = self.run.payloads(*sizes)
        self._stored |= dict.fromkeys(payloads, (len(self.run.lives), self.seconds))
        await self.run.do("append", queue, payloads=payloads)

    async def expire(self, seconds: int) -> None:
        """Let time pass, and have the log remove what is too old."""
        self.seconds += seconds
        if self.run.log is not None:
            inside.look_for_old_records(self.run.log)
            await self.run.idle(0.5)

    def _check_expiry(self, command: TruncateQueue) -> None:
        """Raise Violation if a record is removed that is younger than its age. Only one life knows how old it is."""
        assert self.run.log is not None
        for position, payload in self.run.log.range(command.queue, None, command.position + 1):
            life, second = self._stored.get(bytes(payload), (0, 0))
            if life == len(self.run.lives) and self.seconds - second < AGE_SECONDS:
                raise Violation(f"{command.queue}: record {position} is removed after {self.seconds - second} s")


async def aging(run: Run) -> None:
    """Two queues over several segments; one pass while appends are under way, one after a restart, one that empties."""
    with Clocks(run).installed() as clocks:
        await run.open()
        await run.do("create", "a", options=AGED)
        await run.do("create", "b", options=AGED)
        for number in range(6):
            await clocks.append("a", 6_000, 30)
            await clocks.append("b", 40 * number + 4)
            clocks.seconds += 8
        appended = run.begin_append("a", 500)
        await clocks.expire(0)
        await appended
        await run.idle()
        await clocks.append("a", 9_000)
        await run.close()
        clocks.seconds += 20
        await run.open()
        await clocks.expire(0)
        await clocks.append("b", 5)
        await clocks.expire(100)
        await run.idle()
        await run.append("a", 1)


async def clock_jumps(run: Run) -> None:
    """The wall clock is set ahead and back, while the log is open and while it is not; a process dies in between."""
    with Clocks(run).installed() as clocks:
        await run.open()
        await run.do("create", "a", options=AGED)
        await run.create("b")
        for ahead in (0, 3_600, -7_200, 5, -3_600):
            clocks.ahead = ahead
            await clocks.append("a", 7_000, 30)
            await clocks.append("b", 500)
            await clocks.expire(9)
        await run.idle()
        await run.close()
        clocks.ahead = -9_000
        await run.open()
        await clocks.append("a", 40)
        await clocks.expire(20)
        await clocks.append("b", 9_000)
        await run.kill()
        clocks.ahead = 20
        await run.open()
        await clocks.append("a", 50)
        await clocks.expire(15)
        await run.do("configure", "b", options=AGED)
        await clocks.expire(40)
        await clocks.append("a", 60)
        recreated = [run.begin("delete", "a"), run.begin("create", "a"), run.begin_append("a", 70)]
        await clocks.expire(AGE_SECONDS + 1)  # decides before these calls, and truncates after them: not this queue
        await asyncio.gather(*recreated)
        await run.idle()


AGED_CASES = {
    "aging": Case(aging, early_roll_bytes=9_000),
    "aging, stepping": Case(aging, early_roll_bytes=9_000, stepping=True),
    "never, aging": Case(aging, PersistPolicy.never()),
    "clock jumps": Case(clock_jumps, early_roll_bytes=9_000),
}
