"""The sorted names of all queues, for lists. Sorting a million names takes a second, so it is done in turns."""

from __future__ import annotations

from heapq import merge

from mrecordlog_async.memory.reads import QueueReader
from mrecordlog_async.service.turns import Turns

CHUNK = 5_000
"""Names sorted at once: two milliseconds."""


class Names:
    """The sorted names of one log, kept until queues are created or deleted."""

    def __init__(self) -> None:
        self._version: object = None
        self._sorted: list[str] = []

    async def sorted(self, log: QueueReader) -> list[str]:
        """Return all names, sorted. The list is shared: do not change it. Some queues may be deleted meanwhile."""
        version, unsorted = log.names()
        if (log, version) == self._version:
            return self._sorted
        names, turns = list(unsorted), Turns()
        chunks = []
        for at in range(0, len(names), CHUNK):
            chunks.append(sorted(names[at : at + CHUNK]))
            await turns.rest()
        found: list[str] = []
        for number, name in enumerate(merge(*chunks)):
            found.append(name)
            if number % CHUNK == 0:
                await turns.rest()
        self._version, self._sorted = (log, version), found
        return found
