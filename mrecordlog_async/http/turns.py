"""Long work on the event loop, cut into turns: after a few milliseconds the others are let in."""

from __future__ import annotations

import asyncio
from time import perf_counter

TURN_SECONDS = 0.005


class Turns:
    """One piece of long work. Call `rest` between its steps, each of which should take less than a millisecond."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = perf_counter()

    async def rest(self) -> None:
        """Let other tasks run if this one has held the loop for `TURN_SECONDS`."""
        if perf_counter() - self._since >= TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = perf_counter()
