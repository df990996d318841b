"""Long work on the event loop, cut into turns: all of it together gets one turn per pass of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from heapq import merge
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

TURN_SECONDS = 0.005
SORTED_AT_ONCE = 5_000
"""Items sorted at once: two milliseconds."""


class Turns:
    """One piece of long work. Call `rest` between its steps, each of which should take less than a millisecond."""

    __slots__ = ("_line", "_since")

    def __init__(self) -> None:
        self._line = _lines.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        self._since = perf_counter()

    async def rest(self) -> None:
        """Let others run if this work has held the loop for `TURN_SECONDS`, or if other long work waits."""
        if self._line.locked() or perf_counter() - self._since >= TURN_SECONDS:
            async with self._line:
                await asyncio.sleep(0)
            self._since = perf_counter()


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def sorted_in_turns(items: Iterable[Any]) -> list[Any]:
    """Return *items* as they are now, sorted."""
    listed, turns = list(items), Turns()
    chunks = []
    for at in range(0, len(listed), SORTED_AT_ONCE):
        chunks.append(sorted(listed[at : at + SORTED_AT_ONCE]))
        await turns.rest()
    found: list[Any] = []
    for number, item in enumerate(merge(*chunks)):
        found.append(item)
        if number % SORTED_AT_ONCE == 0:
            await turns.rest()
    return found
