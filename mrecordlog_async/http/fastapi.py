"""The log inside a FastAPI application.

    app = FastAPI(lifespan=lifespan("./wal"))
    add_exception_handlers(app)

    @app.post("/ingest/{queue}")
    async def ingest(queue: str, request: Request, log: Log):
        return {"position": await log.append_record(queue, None, await request.body())}

The log is opened before the first request and closed, drained and synced, after the last. One directory has one
process: with `--workers 4` the second worker fails to start with LogLockedError, which names the ways out.

uvicorn waits for open responses before it ends the lifespan, so a handler that streams a tail must end by itself: use
`tail_until_disconnect`, and start uvicorn with `--timeout-graceful-shutdown`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.http.problems import CONTENT_TYPE, problem_of
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import Record

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]

STATE_NAME = "mrecordlog"


def lifespan(directory: str | os.PathLike[str], inner: Lifespan | None = None, **log_options: Any) -> Lifespan:
    """Return a lifespan that holds the log in *directory* open.

    inner: the application's own lifespan, which runs inside, so that it may use `log_of(app)`; what it yields stays the
    application's state. log_options: those of `MultiRecordLog.open`.
    """

    @asynccontextmanager
    async def hold_open(app: FastAPI) -> AsyncIterator[Any]:
        async with MultiRecordLog.open(directory, **log_options) as log:
            setattr(app.state, STATE_NAME, log)
            if inner is None:
                yield
            else:
                async with inner(app) as state:
                    yield state

    return hold_open


def log_of(app: FastAPI) -> MultiRecordLog:
    """Return the open log of *app*."""
    log = getattr(app.state, STATE_NAME, None)
    if not isinstance(log, MultiRecordLog):
        raise RuntimeError("the log is not open: give FastAPI(lifespan=lifespan(directory)), and start the application")
    return log


async def _log_of_request(request: Request) -> MultiRecordLog:
    return log_of(request.app)


Log = Annotated[MultiRecordLog, Depends(_log_of_request)]
"""The open log as a dependency: `async def handler(log: Log)`."""


def add_exception_handlers(app: FastAPI) -> None:
    """Answer errors of the log as problem documents, with the statuses of the service itself."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        return Response(problem.document(), problem.status, problem.headers, media_type=CONTENT_TYPE)

    app.add_exception_handler(RecordLogError, answer)


async def tail_until_disconnect(
    request: Request, log: MultiRecordLog, queue: str, start: int | None = None, *, look_seconds: float = 1.0
) -> AsyncIterator[Record]:
    """Yield the records of *queue* as they come, until the client leaves, the queue is deleted or the log closes."""
    queue_id = log.queue_summary(queue).id
    position = log.first_position(queue) if start is None else start
    while not await request.is_disconnected():
        if not log.queue_exists(queue) or log.queue_summary(queue).id != queue_id:
            return
        try:
            async with asyncio.timeout(look_seconds):
                if not await log.wait_for(queue, position):
                    return
        except TimeoutError:
            continue
        for record in log.range(queue, position):
            yield record
            position = record.position + 1
