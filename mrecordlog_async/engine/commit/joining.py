"""Joins the loose records of earlier segments after a roll: a little at a time, so that nobody notices.

After a roll every queue has loose records whose blocks are in an earlier segment. Settling them all at once, or each
when its queue is appended to next, stopped the event loop for a second with 10,000 queues. Here a step takes about a
millisecond, and a rest follows it. Nothing waits for the result: reads and truncates take loose records as they are.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from time import perf_counter

from mrecordlog_async.memory.queues import Queues

WORK_SECONDS = 0.001
REST_SECONDS = 0.006
"""A step works this long, and one queue longer: up to half a millisecond. So joining takes a seventh of the loop."""


class Joining:
    """Runs the steps on the log's event loop. A dropped log ends them: the timer refers to this object weakly."""

    def __init__(
        self, queues: Queues, on_step: Callable[[int], object], clock: Callable[[], float] = perf_counter
    ) -> None:
        """*on_step* is called after each step, with the bytes of memory that it freed."""
        self._queues = queues
        self._on_step = on_step
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def arm(self) -> None:
        """Take the next step after a rest if there is something to join, unless that is set already."""
        if self._timer is None and not self._stopped and self._queues.settling.has_old():
            self._timer = self._loop.call_later(REST_SECONDS, _step, weakref.ref(self))

    def stop(self) -> None:
        """Take no more steps."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def step(self) -> None:
        """Join records for `WORK_SECONDS`; set the timer for the next step if there are more."""
        self._timer = None
        held, until = self._queues.memory_bytes, self._clock() + WORK_SECONDS
        self._queues.settling.settle_old(lambda: self._clock() >= until)
        self._on_step(held - self._queues.memory_bytes)
        self.arm()


def _step(joining: weakref.ref[Joining]) -> None:
    found = joining()
    if found is not None:
        found.step()
