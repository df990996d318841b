"""The names of all queues in order, for lists. Sorting a million names takes a second, so it is done in turns."""

from __future__ import annotations

import asyncio
from time import monotonic

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.service.turns import Turns, sorted_in_turns

RANKED_SECONDS = 10.0
"""An order that changes with every record is found again after this time: with 100,000 queues it takes 40 ms."""

RANKINGS_KEPT = 8


class Names:
    """The sorted names of one log, kept until queues are created or deleted."""

    def __init__(self) -> None:
        self._version: object = None
        self._sorted: list[str] = []
        self._sorted_of: MultiRecordLog | None = None
        self._sorting = asyncio.Lock()
        self._begun = 0  # how many lists were begun
        self._listed = 0  # which of them is kept
        self._rankings: dict[tuple[str, str, int], tuple[float, list[str]]] = {}

    async def ranked(self, log: MultiRecordLog, order: str, prefix: str, most: int) -> list[str]:
        """Return the names that come first in *order*, as they were at most `RANKED_SECONDS` ago."""
        key = (order, prefix, most)
        found_at, found = self._rankings.get(key, (0.0, []))
        if found and monotonic() - found_at < RANKED_SECONDS:
            return found
        turns = Turns()
        for found in log.inspection.ranked_in_steps(order, most, prefix):  # noqa: B007  # the last one counts
            await turns.rest()
        self._rankings.pop(key, None)
        while len(self._rankings) >= RANKINGS_KEPT:
            del self._rankings[next(iter(self._rankings))]
        self._rankings[key] = (monotonic(), found)
        return found

    async def sorted(self, log: MultiRecordLog) -> list[str]:
        """Return all names, sorted. The list is shared: do not change it. Some queues may be deleted meanwhile."""
        version, _ = log.inspection.names()
        if (log, version) == self._version:
            return self._sorted
        asked = self._begun
        async with self._sorting:  # one list at a time: many requests at once would hold as many lists
            if self._sorted_of is not log or self._listed <= asked:
                self._begun += 1
                begun, (version, unsorted) = self._begun, log.inspection.names()
                found = await sorted_in_turns(unsorted)
                self._version, self._sorted, self._sorted_of, self._listed = (log, version), found, log, begun
            return self._sorted
