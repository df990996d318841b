"""Episodes of refusals: a line of the log where one begins and one where it ended, instead of a line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

CALM_SECONDS = 30.0
"""An episode ends once nothing was refused for its reason for this long."""


@dataclass(slots=True)
class Episode:
    """Refusals for one reason. Times are of the clock."""

    began: float
    last: float
    count: int = 0

    @property
    def seconds(self) -> float:
        """Seconds that it lasted, from the first refusal to the last."""
        return round(self.last - self.began, 3)


class Episodes:
    """The episodes under way, by reason. on_end: called with the reason and the episode once it is over."""

    def __init__(self, on_end: Callable[[str, Episode], object], clock: Callable[[], float] = monotonic) -> None:
        self._on_end = on_end
        self._clock = clock
        self._open: dict[str, Episode] = {}

    def note(self, reason: str, count: int = 1) -> bool:
        """Count refusals. Returns whether they begin an episode; one that is over ends first."""
        now = self._clock()
        episode = self._open.get(reason)
        if episode is not None and now - episode.last >= CALM_SECONDS:
            self._end(reason)
            episode = None
        begins = episode is None
        if episode is None:
            episode = self._open[reason] = Episode(now, now)
        episode.last = now
        episode.count += count
        return begins

    def check(self) -> bool:
        """End the episodes that are over. Returns whether one goes on."""
        now = self._clock()
        for reason, episode in list(self._open.items()):
            if now - episode.last >= CALM_SECONDS:
                self._end(reason)
        return bool(self._open)

    def _end(self, reason: str) -> None:
        self._on_end(reason, self._open.pop(reason))
