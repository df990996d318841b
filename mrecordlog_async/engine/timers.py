"""The writer's clocks: they set a flag and wake it, and do nothing themselves. All on the loop's monotonic time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MARK_SECONDS = 1.0
"""An idle log says after this time that its last batch is durable, so that rot in it is seen at the next open.

That costs one more sync for each time the log falls idle.
"""

RETRY_SECONDS = 1.0
"""Appends that wait for disk space are tried again this often, and whenever segments were removed."""


class Timers:
    """mark_due, sync_due: the time for it has come; the writer puts them back. last_batch: when one was written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self.mark_due = False
        self.sync_due = False
        self.last_batch = loop.time()
        self._loop = loop
        self._wake = wake
        self._mark: asyncio.TimerHandle | None = None
        self._sync: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None

    def arm_mark(self) -> None:
        """Set `mark_due` once nothing was written for `MARK_SECONDS`."""
        if self._mark is None:
            self._mark = self._loop.call_later(MARK_SECONDS, self._on_mark)

    def arm_sync(self, seconds: float) -> None:
        """Set `sync_due` after *seconds*."""
        if self._sync is None:
            self._sync = self._loop.call_later(seconds, self._on_sync)

    def arm_retry(self, callback: Callable[[], None]) -> None:
        """Call *callback* after `RETRY_SECONDS`."""
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, callback)

    def cancel_retry(self) -> None:
        """Forget about trying again: it is happening."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def cancel(self) -> None:
        """Stop every clock."""
        for timer in (self._mark, self._sync, self._retry):
            if timer is not None:
                timer.cancel()

    def _on_mark(self) -> None:
        # One timer serves all batches: it sleeps on while they keep coming.
        quiet = self._loop.time() - self.last_batch
        if quiet < MARK_SECONDS:
            self._mark = self._loop.call_later(MARK_SECONDS - quiet, self._on_mark)
        else:
            self._mark = None
            self.mark_due = True
            self._wake()

    def _on_sync(self) -> None:
        self._sync = None
        self.sync_due = True
        self._wake()
