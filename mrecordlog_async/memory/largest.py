"""Which queue holds the most memory, for the error of a call that memory has no space for."""

from __future__ import annotations

from operator import attrgetter
from time import perf_counter

from mrecordlog_async.memory.queues import Queues

SECONDS_MIN = 1.0
COST_FACTOR = 50
"""The queues are searched again after a second, or after so many times what the last search took: 2 % of the time."""

_MEMORY = attrgetter("memory_bytes")


class LargestQueue:
    """Searches the queues of one log, rarely: while memory is full, every append would ask."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._name = ""
        self._search_after = 0.0

    def name(self) -> str:
        """Return the queue's name, as of a short while ago; "" without queues."""
        begun = perf_counter()
        if begun >= self._search_after:
            found = max(self._queues, key=_MEMORY, default=None)
            self._name = found.name if found is not None else ""
            ended = perf_counter()
            self._search_after = ended + max(SECONDS_MIN, COST_FACTOR * (ended - begun))
        return self._name
