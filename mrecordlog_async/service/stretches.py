"""Refused requests in the service's log: a line where a stretch of one kind begins, and one where it ended.

What the log itself refuses is logged by the log. Here are the requests that never get so far: without a valid token,
with a foreign Host, above a limit of the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

logger = logging.getLogger("mrecordlog_async.service")

CALM_SECONDS = 30.0
"""A stretch ends once no request was refused for its reason for so long."""


@dataclass(slots=True)
class _Stretch:
    began: float
    last: float
    requests: int = 0


class Stretches:
    """The stretches of refused requests of one service."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._open: dict[str, _Stretch] = {}

    def note(self, reason: str, text: str, requests: int = 1) -> None:
        """Count refused *requests*; log *text* if they begin a stretch."""
        now = self._clock()
        stretch = self._open.get(reason)
        if stretch is not None and now - stretch.last >= CALM_SECONDS:
            self._end(reason)
            stretch = None
        if stretch is None:
            stretch = self._open[reason] = _Stretch(now, now)
            logger.warning("requests are refused: %s", text, extra={"facts": {"event": "refusing", "reason": reason}})
        stretch.last = now
        stretch.requests += requests

    def check(self) -> None:
        """End the stretches that are over. Called every second, where something calls it."""
        now = self._clock()
        for reason, stretch in list(self._open.items()):
            if now - stretch.last >= CALM_SECONDS:
                self._end(reason)

    def _end(self, reason: str) -> None:
        stretch = self._open.pop(reason)
        seconds = round(stretch.last - stretch.began, 3)
        logger.info(
            "no request was refused for %g s; %d were refused within %g s (reason: %s)",
            CALM_SECONDS,
            stretch.requests,
            seconds,
            reason,
            extra={"facts": {"event": "accepting", "reason": reason, "requests": stretch.requests, "seconds": seconds}},
        )
