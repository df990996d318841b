"""Log once that requests are being retried, and once that they succeed again.

A caller that waits looks like one that hangs. One object is shared by all calls of a client. The first second of
retries is silent: a restart often takes less.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from mrecordlog_async.protocol.attempts import LONG_SECONDS

SILENT_SECONDS = 1.0
QUIET_SECONDS = 30.0
"""Between two lines about the same client: with a log that is full, some requests succeed and others do not."""

logger = logging.getLogger("mrecordlog_async.client")


class Outage:
    """Failures that one client has met since a request last succeeded."""

    def __init__(self, address: str, clock: Callable[[], float] = monotonic) -> None:
        self._address = address
        self._clock = clock
        self._since: float | None = None
        self._said_at: float | None = None
        self._reported = False

    def failed(self, reason: Exception, left_seconds: float) -> None:
        """Note an attempt that will be repeated for *left_seconds* at most."""
        now = self._clock()
        if self._since is None:
            self._since = now
        recently = self._said_at is not None and now - self._said_at < QUIET_SECONDS
        if self._reported or recently or now - self._since < SILENT_SECONDS:
            return
        self._reported, self._said_at = True, now
        text = getattr(reason, "reason", reason)  # without the address, which the line begins with
        until = "until it succeeds" if left_seconds > LONG_SECONDS else f"for up to {max(left_seconds, 0.0):.0f} s"
        logger.warning("%s: %s; trying again %s", self._address, text, until)

    def ended(self) -> None:
        """Note that a request succeeded."""
        if self._reported and self._since is not None:
            logger.warning("%s: requests succeed again, after %.1f s", self._address, self._clock() - self._since)
        self._since, self._reported = None, False
