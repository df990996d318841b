"""How long the event loop of a process was blocked."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

PROBE_SECONDS = 0.001


class StallProbe:
    """Measure the longest time the event loop was blocked while the block lasts.

    A timer of one millisecond is set again and again; its delay is the stall. The figure includes the resolution of
    the loop's clock (uvloop counts in milliseconds), so it is exact to 1 ms.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    def __enter__(self) -> StallProbe:
        self._since = time.perf_counter()
        self._timer = self._loop.call_later(PROBE_SECONDS, self._tick)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._note()

    def _tick(self) -> None:
        self._note()
        self._timer = self._loop.call_later(PROBE_SECONDS, self._tick)

    def _note(self) -> None:
        now = time.perf_counter()
        self.longest_seconds = max(self.longest_seconds, now - self._since - PROBE_SECONDS)
        self._since = now
