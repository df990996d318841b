"""Tracks servers that are away: since when, whether one is expected back at any moment, and when it is probed. Pure.

Most outages are restarts. So a server that is away is looked at every `RETRY_SECONDS` for a minute, then as often as
servers that respond are, every `LOOK_SECONDS`.
"""

from __future__ import annotations

EXPECTED_SECONDS = 60.0
"""A server that has been away for longer is not expected back at any moment."""

RETRY_SECONDS = 1.0
LOOK_SECONDS = 10.0


class Absence:
    """Since when one server has been away. Times are those of the caller's clock, in seconds.

    Attributes:
        since: When it was first missed; None if it responds, or was never looked for.
    """

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: float | None = None

    def begin(self, now: float) -> None:
        """Note that the server is away: since now, unless it was already."""
        if self.since is None:
            self.since = now

    def end(self) -> None:
        """Note that the server responds."""
        self.since = None

    def is_expected(self, now: float) -> bool:
        """Return whether the server may be back at any moment."""
        return self.since is None or now - self.since < EXPECTED_SECONDS

    def pause(self, now: float) -> float:
        """Return the seconds until the server should be looked at again."""
        return RETRY_SECONDS if self.is_expected(now) else LOOK_SECONDS
