"""The graceful end of a log: no new records, while everything that still has to be done with the others works."""

from __future__ import annotations

import asyncio
from functools import partial

from mrecordlog_async.engine.configuring import ConfiguringLog
from mrecordlog_async.engine.intake.commands import Sync
from mrecordlog_async.errors import LogClosedError

DRAINING = "the log is being drained and stores no more records; append again once it was closed and opened"


class DrainingLog(ConfiguringLog):
    """A log that can end gracefully."""

    _draining: asyncio.Task[None] | None = None

    async def drain(self) -> None:
        """Refuse new appends, and let everybody finish: tails and consumers end after what is stored.

        The first step of a graceful shutdown; `close` is the last one. In between, acknowledgements, truncates and all
        other changes work as before:

            await log.drain()
            await worker          # its consumer ends by itself, after its last acknowledgement
            await log.close()

        Returns once the accepted appends are stored, under every policy durably. Appends that wait for space are
        refused. A repeated call waits for the same drain. Cancelling stops the waiting, not the draining.

        Raises:
            LogClosedError: The log is closed or closing.
            LogFailedError: The log has failed, or did so meanwhile.
        """
        if self._draining is None:
            sync = self._begin(Sync(self._new_future()))  # before appends are refused: it may be the one that fails
            self._admission.end(partial(LogClosedError, DRAINING))
            self._draining = self._loop.create_task(self._end_after(sync), name="mrecordlog drain")
        await asyncio.shield(self._draining)

    async def _end_after(self, stored: asyncio.Future[object]) -> None:
        try:
            await stored
        finally:
            self._changes.end()
