"""A log inside an application: opened with it, with its queues and workers, and ended gracefully. For the embeds."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from mrecordlog_async.errors import LogClosedError, LogFailedError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import QueueOptions

Worker = Callable[[MultiRecordLog], Coroutine[Any, Any, object]]
"""A coroutine function that takes the log: it consumes, and ends by itself once the log is drained."""

Queues = Iterable[str] | Mapping[str, QueueOptions]

WORKER_SECONDS = 20.0
"""Seconds that workers may take to end after the log is drained."""

logger = logging.getLogger("mrecordlog_async.embedding")


@asynccontextmanager
async def embedded(
    directory: str | os.PathLike[str],
    queues: Mapping[str, QueueOptions | None],
    workers: Sequence[Worker],
    log_options: Mapping[str, Any],
) -> AsyncIterator[MultiRecordLog]:
    """Open the log, run *workers* next to the application, and at its end drain the log, then close it.

    The log is drained only when the application is done with it, so its last appends are not refused. Workers then
    read what is there, acknowledge it and end; one that does not is cancelled after `WORKER_SECONDS`.
    """
    async with MultiRecordLog.open(directory, queues=queues, **log_options) as log:
        tasks = [asyncio.create_task(_work(worker, log)) for worker in workers]
        try:
            yield log
        finally:
            try:
                with suppress(LogClosedError, LogFailedError):  # `close` reports a failure
                    await log.drain()
                await _wait(tasks)
            finally:
                await _cancel(tasks)


async def _work(worker: Worker, log: MultiRecordLog) -> None:
    log.workers.running += 1
    try:
        await worker(log)
        log.workers.ended += 1
    except Exception:
        log.workers.failed += 1
        logger.exception("the worker %s failed and does not run any more", getattr(worker, "__qualname__", worker))
    finally:
        log.workers.running -= 1


async def _wait(tasks: list[asyncio.Task[None]]) -> None:
    """Wait until every worker has ended, but not for ever."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=WORKER_SECONDS)
        if late:
            logger.warning("%d workers did not end within %g s and are cancelled", len(late), WORKER_SECONDS)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the workers that still run: the log is about to close."""
    late = [task for task in tasks if task.cancel()]
    if late:
        await asyncio.wait(late)
