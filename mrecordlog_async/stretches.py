"""Stretches of refusals: a line of the log where one begins and one where it ended, instead of a line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

CALM_SECONDS = 30.0
"""A stretch ends once nothing was refused for its reason for so long."""


@dataclass(slots=True)
class Stretch:
    """Refusals for one reason. Times are of the clock."""

    began: float
    last: float
    count: int = 0

    @property
    def seconds(self) -> float:
        """How long it lasted, from the first refusal to the last."""
        return round(self.last - self.began, 3)


class Stretches:
    """The stretches under way, by reason. on_end: called with the reason and the stretch once it is over."""

    def __init__(self, on_end: Callable[[str, Stretch], object], clock: Callable[[], float] = monotonic) -> None:
        self._on_end = on_end
        self._clock = clock
        self._open: dict[str, Stretch] = {}

    def note(self, reason: str, count: int = 1) -> bool:
        """Count refusals. Returns whether they begin a stretch; one that is over ends first."""
        now = self._clock()
        stretch = self._open.get(reason)
        if stretch is not None and now - stretch.last >= CALM_SECONDS:
            self._end(reason)
            stretch = None
        begins = stretch is None
        if stretch is None:
            stretch = self._open[reason] = Stretch(now, now)
        stretch.last = now
        stretch.count += count
        return begins

    def check(self) -> bool:
        """End the stretches that are over. Returns whether one goes on."""
        now = self._clock()
        for reason, stretch in list(self._open.items()):
            if now - stretch.last >= CALM_SECONDS:
                self._end(reason)
        return bool(self._open)

    def _end(self, reason: str) -> None:
        self._on_end(reason, self._open.pop(reason))
