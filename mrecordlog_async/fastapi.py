"""The log inside a FastAPI application.

    app = FastAPI(lifespan=lifespan("./wal"))
    add_exception_handlers(app)

    @app.post("/ingest/{queue}")
    async def ingest(queue: str, request: Request, log: Log):
        return {"position": await log.append_record(queue, None, await request.body())}

The log is opened before the first request and closed, drained and synced, after the last; `Log` works in routes, in
WebSocket routes and in mounted applications. Endpoints that use it are `async def`: a `def` endpoint runs in a thread,
from where `anyio.from_thread.run(log.append_record, queue, None, payload)` reaches it.

One directory has one process: with `--workers 2` one worker fails to start with LogLockedError, which names the ways
out, and uvicorn then ends the others too.

The routes are the application's own, and so is who may call them. On loopback add Starlette's TrustedHostMiddleware:
a page elsewhere that makes its name point to 127.0.0.1 would reach them (DNS rebinding). On other addresses ask for a
token.

uvicorn waits for open responses before it ends the lifespan, so a handler that streams a tail must end by itself: use
`tail_until_disconnect`, and start uvicorn with `--timeout-graceful-shutdown`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from traceback import walk_tb
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.requests import HTTPConnection

from mrecordlog_async.errors import LogClosedError, RecordLogError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import LogState, Record
from mrecordlog_async.protocol.problems import CONTENT_TYPE, ProblemError, problem_of

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]

STATE_NAME = "mrecordlog"

logger = logging.getLogger("mrecordlog_async.http")


def lifespan(directory: str | os.PathLike[str], inner: Lifespan | None = None, **log_options: Any) -> Lifespan:
    """Return a lifespan that holds the log in *directory* open.

    inner: the application's own lifespan, which runs inside, so that it may use `log_of(app)`; what it yields stays the
    application's state, to which the log is added: mounted applications find it there, as they see no other
    application than themselves. log_options: those of `MultiRecordLog.open`.
    """

    @asynccontextmanager
    async def hold_open(app: FastAPI) -> AsyncIterator[Any]:
        async with MultiRecordLog.open(directory, **log_options) as log:
            setattr(app.state, STATE_NAME, log)
            if inner is None:
                yield {STATE_NAME: log}
            else:
                async with inner(app) as state:
                    yield {**(state or {}), STATE_NAME: log}

    return hold_open


def log_of(app: FastAPI) -> MultiRecordLog:
    """Return the open log of *app*."""
    return _opened(getattr(app.state, STATE_NAME, None))


def _opened(log: object) -> MultiRecordLog:
    if not isinstance(log, MultiRecordLog):
        raise RuntimeError("the log is not open: give FastAPI(lifespan=lifespan(directory)), and start the application")
    return log


def _find(connection: HTTPConnection) -> object:
    own = getattr(connection.app.state, STATE_NAME, None)
    return own if own is not None else connection.scope.get("state", {}).get(STATE_NAME)


async def _log_of_connection(connection: HTTPConnection) -> MultiRecordLog:
    return _opened(_find(connection))


Log = Annotated[MultiRecordLog, Depends(_log_of_connection)]
"""The open log as a dependency: `async def handler(log: Log)`."""


def add_exception_handlers(app: FastAPI) -> None:
    """Respond to errors of the log with problem documents, with the statuses of the service itself.

    Also to what the disk refuses (OSError), where it comes from the log. A mounted application needs its own call.
    """

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, OSError) and not _is_of_log(error):
            raise error
        problem = _of_other_loop(request, error) or problem_of(error)
        return Response(problem.document(), problem.status, problem.headers, media_type=CONTENT_TYPE)

    app.add_exception_handler(RecordLogError, respond)
    app.add_exception_handler(OSError, respond)


def _is_of_log(error: OSError) -> bool:
    """Tell whether *error* passed through the log: the application may have OSErrors of its own."""
    modules = (frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__))
    return MultiRecordLog.__module__ in modules


def _of_other_loop(request: Request, error: Exception) -> ProblemError | None:
    """Return the problem where an open log says "closed": it was called from another thread, a mistake of the code."""
    log = _find(request)
    if not isinstance(error, LogClosedError) or not isinstance(log, MultiRecordLog) or log.state is not LogState.OPEN:
        return None
    logger.error("%s", error)
    return ProblemError(500, "internal", "the application called the log from a wrong thread; its own log says more")


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
