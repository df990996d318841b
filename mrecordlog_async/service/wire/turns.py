"""Long work: cut into turns on the event loop, so that other tasks run after a few milliseconds, or on a thread.

All long work on the loop waits in one line and gets one turn per pass of the loop. However much of it runs, a short
request waits for one turn, not for one turn of each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

TURN_SECONDS = 0.005

SORTED_AT_ONCE = 5_000
"""Items sorted at once: two milliseconds."""

T = TypeVar("T")


async def in_thread(function: Callable[[bytes], T], body: bytes) -> T:
    """Return what *function* returns for *body*, on a thread.

    A caller that is cancelled waits for the end too: until then the thread, or the line for one, holds the body, and
    the caller's charge has to count it.
    """
    work = asyncio.create_task(asyncio.to_thread(function, body))
    try:
        await asyncio.wait((work,))
        return work.result()
    except asyncio.CancelledError:
        await asyncio.wait((work,))
        if not work.cancelled():
            work.exception()  # marks it as retrieved
        raise
    finally:
        del work  # the task keeps its error, whose traceback keeps this frame, and with it the body


async def sorted_in_turns(items: Iterable[Any]) -> list[Any]:
    """Return *items* as they are now, sorted."""
    listed, turns = list(items), Turns()
    chunks = []
    for at in range(0, len(listed), SORTED_AT_ONCE):
        chunks.append(sorted(listed[at : at + SORTED_AT_ONCE]))
        await turns.rest()
    if len(chunks) <= 1:
        return chunks[0] if chunks else []
    del listed
    found: list[Any] = []
    for number, item in enumerate(merge(*chunks)):
        found.append(item)
        if number % SORTED_AT_ONCE == 0:
            await turns.rest()
    return found


class Turns:
    """One piece of long work. Call `rest` between its steps, each of which should take less than a millisecond."""

    __slots__ = ("_line", "_since")

    def __init__(self) -> None:
        self._line = _Line.of_loop()
        self._since = perf_counter()

    async def rest(self) -> None:
        """Let others run if this work has held the loop for `TURN_SECONDS`, or if other long work waits."""
        if self._line.waiting or perf_counter() - self._since >= TURN_SECONDS:
            await self._line.wait()
            self._since = perf_counter()


class _Line:
    """Long work of one event loop that waits for its next turn."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of_loop(cls) -> _Line:
        loop = asyncio.get_running_loop()
        line = _lines.get(loop)
        if line is None:
            line = _lines[loop] = cls()
        return line

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self._next)
        turn = loop.create_future()
        self.waiting.append(turn)
        await turn

    def _next(self) -> None:
        """Give the first in line its turn, and run again in the next pass of the loop for the next one."""
        turn = self.waiting.popleft()
        while turn.done() and self.waiting:  # its request was cancelled
            turn = self.waiting.popleft()
        if not turn.done():
            turn.set_result(None)
        if self.waiting:
            asyncio.get_running_loop().call_soon(self._next)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
