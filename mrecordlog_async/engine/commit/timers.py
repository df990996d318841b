"""The writer's timers: each sets a flag and wakes the writer, which does the work. Times are the loop's, monotonic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MARK_SECONDS = 1.0
"""A log that was idle for this long writes a mark after its last batch, so that later damage to that batch is noticed.

It costs one more sync each time the log becomes idle.
"""

RETRY_SECONDS = 1.0
"""Appends that wait for disk space are tried again this often, and each time segments were removed."""


class Timers:
    """mark_due, sync_due: it is time; the writer resets them. last_batch: the time when the last batch was stored."""

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
        """Set `mark_due` once no batch was stored for `MARK_SECONDS`."""
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
        """Cancel the retry: the calls are being tried already."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def cancel(self) -> None:
        """Cancel every timer."""
        for timer in (self._mark, self._sync, self._retry):
            if timer is not None:
                timer.cancel()

    def _on_mark(self) -> None:
        # One timer serves all batches: while they keep coming it is set again, instead of once per batch.
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
