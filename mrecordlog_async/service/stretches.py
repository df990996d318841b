"""Refused requests in the service's log: a line where an episode of one kind begins, and one where it ended.

What the log itself refuses is logged by the log. Here are the requests that never get so far: without a valid token,
with a foreign Host, above a limit of the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from mrecordlog_async.support.refusal_episodes import CALM_SECONDS, Episode, Episodes

logger = logging.getLogger("mrecordlog_async.service")


class RefusedRequests:
    """The episodes of refused requests of one service."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._episodes = Episodes(_log_end, clock)

    def note(self, reason: str, text: str, requests: int = 1) -> None:
        """Count refused *requests*; log *text* if they begin an episode."""
        if self._episodes.note(reason, requests):
            logger.warning("requests are refused: %s", text, extra={"facts": {"event": "refusing", "reason": reason}})

    def check(self) -> None:
        """End the episodes that are over. Called every second, where something calls it."""
        self._episodes.check()


def _log_end(reason: str, episode: Episode) -> None:
    facts = {"event": "accepting", "reason": reason, "requests": episode.count, "seconds": episode.seconds}
    logger.info(
        "no request was refused for %g s; %d were refused within %g s (reason: %s)",
        CALM_SECONDS,
        episode.count,
        episode.seconds,
        reason,
        extra={"facts": facts},
    )
