"""The checks of a service that no request causes: deadlines, episodes of refusals, the memory of the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("mrecordlog_async.service")

CHECK_SECONDS = 1.0


async def watch(*checks: Callable[[], object]) -> None:
    """Call *checks* every second until cancelled.

    An error is logged, and everything is called again a second later: nothing awaits this task, and without it no
    connection has a deadline.
    """
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        for check in checks:
            try:
                check()
            except Exception:
                logger.exception("watching the service failed; trying again in a second")
