"""Put a log into a FastAPI application: `lifespan` opens it, the dependency `Log` passes it to endpoints.

    from fastapi import FastAPI, Request
    from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan

    app = FastAPI(lifespan=lifespan("./wal", queues=["clicks"]))
    add_exception_handlers(app)

    @app.post("/ingest")
    async def ingest(request: Request, log: Log):
        return {"position": await log.append("clicks", await request.body())}

The log is opened before the first request, and synced and closed after the last. `Log` works in endpoints, in WebSocket
endpoints and in mounted applications. Endpoints that use it are `async def`: FastAPI runs a `def` endpoint in a thread,
where `anyio.from_thread.run(log.append, queue, payload)` reaches the log.

Only one process can open a directory. Entering the lifespan waits up to 25 s (`lock_seconds`) for another process, so
that a server may start its next process before the last one has ended: `gunicorn` at HUP, a rolling update. With
`--workers 2` no process ends, so after 5 s a worker fails to start with LogLockedError, and uvicorn stops the others.

The endpoints are the application's, so it decides who may call them. On loopback add Starlette's TrustedHostMiddleware,
or a web page whose host name resolves to 127.0.0.1 reaches them (DNS rebinding). On other addresses require a token.

`mount(app, "/wal")` adds the page, the HTTP API, /metrics and the health checks of the service below a path.

uvicorn waits for open responses before it ends the lifespan, so a handler that streams a tail must end by itself: use
`tail_until_disconnect`, which ends when the process is told to stop. It waits for a body that never arrives, too: start
it with `--timeout-graceful-shutdown 10`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from traceback import walk_tb
from typing import Annotated, Any, Unpack
from weakref import WeakKeyDictionary

from mrecordlog_async.support.extras import naming

try:
    from fastapi import Depends, FastAPI, Request, Response
    from starlette.requests import HTTPConnection

    from mrecordlog_async.asgi import LogApplication
    from mrecordlog_async.embedding import (
        Consumers,
        EmbedOptions,
        OpeningStoppedError,
        Queues,
        Worker,
        check_embed,
        embedded,
    )
    from mrecordlog_async.errors import LogClosedError, QueueNotFoundError, RecordLogError
    from mrecordlog_async.log import NONE_DECLARED, MultiRecordLog
    from mrecordlog_async.model import LogState, Record
    from mrecordlog_async.protocol.problems import CONTENT_TYPE, ProblemError, problem_of
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.support.stop_signal import end_by, on_stop_signal
except ModuleNotFoundError as error:
    raise naming(error, "fastapi") from None

__all__ = [
    "EmbedOptions",
    "Log",
    "ServiceOptions",
    "add_exception_handlers",
    "lifespan",
    "log_of",
    "mount",
    "tail_until_disconnect",
]

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]

STATE_NAME = "mrecordlog"
MOUNTS_NAME = "mrecordlog_mounts"

logger = logging.getLogger("mrecordlog_async.fastapi")


def lifespan(
    directory: str | os.PathLike[str],
    inner: Lifespan | None = None,
    *,
    queues: Queues = (),
    consumers: Consumers = NONE_DECLARED,
    workers: Sequence[Worker] = (),
    **log_options: Unpack[EmbedOptions],
) -> Lifespan:
    """Return a lifespan that holds the log in *directory* open.

    Args:
        directory: The directory of the log; it is created if it does not exist.
        inner: The application's own lifespan. It runs inside, so it may use `log_of(app)`. The log is added to the
            state that it yields, because mounted applications see that state and not the outer application.
        queues: Queues to create if they do not exist: names, or `QueueOptions` by name. One that exists keeps its
            options.
        consumers: Consumers to create if they do not exist, before any worker runs: lists of names by queue, or by a
            pattern. Name the consumer of every worker: otherwise records that one worker has acknowledged may be
            removed before another one attaches for the first time. See `MultiRecordLog.open`.
        workers: Coroutine functions that take the log, such as consumers. They run next to the application; one that
            raises is started again. When the application ends, their loops end after the batch that they have.
        log_options: Further options, those of `MultiRecordLog.open` and of workers: see `EmbedOptions`.

    Returns:
        A lifespan for `FastAPI(lifespan=...)`. Entering it raises LogLockedError if another process still has the log
            open after `lock_seconds`, ValueError if the application has a log already, LogClosedError if SIGTERM or
            SIGINT comes first, or another error of `MultiRecordLog.open`.
    """
    embedding = check_embed(directory, queues, consumers, workers, log_options, ("inner",))

    @asynccontextmanager
    async def hold_open(app: FastAPI) -> AsyncIterator[Any]:
        present = getattr(app.state, STATE_NAME, None)
        if isinstance(present, MultiRecordLog) and present.state is LogState.OPEN:
            raise ValueError(
                f"the application has a log already, {present.directory!r}: open other logs with MultiRecordLog.open "
                "in your own lifespan"
            )
        async with AsyncExitStack() as stack:
            _shorten_log_of_uvicorn()
            try:
                log = await stack.enter_async_context(embedded(embedding))
            except OpeningStoppedError as stopped:
                end_by(stopped.number)
                raise
            setattr(app.state, STATE_NAME, log)
            _directories[log] = os.fspath(directory)
            for mounted in _mounts_of(app):
                await stack.enter_async_context(mounted.serving(log))
            stack.enter_context(on_stop_signal(partial(_end_tails, app, log)))
            if inner is None:
                yield {STATE_NAME: log}
            else:
                async with inner(app) as state:
                    yield {**(state or {}), STATE_NAME: log}

    _directories[hold_open] = os.fspath(directory)
    return hold_open


_directories: WeakKeyDictionary[Any, str | bytes] = WeakKeyDictionary()
"""Directories, by their lifespan and by the open log."""


def _shorten_log_of_uvicorn() -> None:
    """Have uvicorn log no traceback of a stop that somebody asked for, until the task of the lifespan ends."""
    uvicorn, task = logging.getLogger("uvicorn.error"), asyncio.current_task()
    own = partial(_without_traceback)  # another application of this process may end before
    if task is not None:
        uvicorn.addFilter(own)
        task.add_done_callback(lambda _: uvicorn.removeFilter(own))


def _without_traceback(record: logging.LogRecord) -> bool:
    """Return whether to log *record*, shortened to its last line if a signal came before the log was open."""
    _, stopped, reason = record.getMessage().rstrip().rpartition(f"{OpeningStoppedError.__name__}: ")
    if stopped:  # Starlette passes uvicorn the whole traceback as text
        record.msg, record.args = reason, ()
    error = record.exc_info[1] if record.exc_info else None
    # Of a request that uvicorn cancels itself at its end: it says so in one line before.
    return not (isinstance(error, asyncio.CancelledError) and "timeout graceful shutdown" in str(error))


def mount(app: FastAPI, path: str = "/wal", *, options: ServiceOptions | None = None, exposed: bool = False) -> None:
    """Serve the page, the HTTP API, /metrics and the health checks of the log below *path*.

    The same service as `mrecordlog serve`, with its own limits, tokens and host names. On loopback it admits requests
    whose Host is this machine or one of `options.hosts`, from other machines only those with a token. If `options` has
    tokens, every request needs one, even on loopback and on a Unix socket. The health checks and the page need none,
    because the page holds no data.

    Args:
        app: An application that was created with `lifespan`, which opens the log.
        path: Path below which the service is mounted; the page is at this path followed by "/".
        options: Limits, tokens and host names of the API.
        exposed: Admit other machines without a token, because the application authenticates requests itself (its
            middlewares see every request).
    """
    mounted = LogApplication(options, exposed=exposed)
    app.mount(path, mounted, name=STATE_NAME)
    setattr(app.state, MOUNTS_NAME, [*_mounts_of(app), mounted])


def _mounts_of(app: FastAPI) -> list[LogApplication]:
    return getattr(app.state, MOUNTS_NAME, [])


def _end_tails(app: FastAPI, log: MultiRecordLog, number: int) -> None:
    """End every response that follows a queue: the server wants to stop, and waits for open responses."""
    _stopping_of(log).set()
    for mounted in _mounts_of(app):
        mounted.begin_shutdown()


def _stopping_of(log: MultiRecordLog) -> asyncio.Event:
    """Return the event that is set once the process of *log* is told to stop."""
    return _stopping.setdefault(log, asyncio.Event())


_stopping: WeakKeyDictionary[MultiRecordLog, asyncio.Event] = WeakKeyDictionary()


def log_of(app: FastAPI) -> MultiRecordLog:
    """Return the open log of *app*.

    Args:
        app: An application that was created with `lifespan`.

    Returns:
        The log, for as long as the application runs.

    Raises:
        RuntimeError: The application has not started, or has no log.
    """
    return _opened(getattr(app.state, STATE_NAME, None))


def _opened(log: object) -> MultiRecordLog:
    if not isinstance(log, MultiRecordLog):
        raise RuntimeError(
            "the log is not open: pass FastAPI(lifespan=lifespan(directory)) and start the app; in tests, enter its "
            "client: `with TestClient(app) as client`"
        )
    return log


def _find(connection: HTTPConnection) -> object:
    app = connection.app
    own = getattr(app.state, STATE_NAME, None)
    if own is not None:
        return own
    outer = connection.scope.get("state", {}).get(STATE_NAME)
    wanted = _directories.get(getattr(app.router, "lifespan_context", None))
    if isinstance(outer, MultiRecordLog) and wanted not in (None, _directories.get(outer)):
        raise RuntimeError(
            f"the log {wanted!r} of a mounted application is not open: Starlette runs the lifespan of the "
            "outermost application only. Enter this one there: `async with mounted.router.lifespan_context(mounted)`"
        )
    return outer


async def _log_of_connection(connection: HTTPConnection) -> MultiRecordLog:
    return _opened(_find(connection))


Log = Annotated[MultiRecordLog, Depends(_log_of_connection)]
"""The open log as a dependency: `async def handler(log: Log)`."""


def add_exception_handlers(app: FastAPI) -> None:
    """Respond to errors of the log with problem documents (RFC 9457), with the statuses that the service uses.

    An OSError is handled if it was raised in the log; the application's own are raised again.

    Args:
        app: The application. A mounted application needs its own call.
    """

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, OSError) and not _is_of_log(error):
            raise error
        problem = _of_other_loop(request, error) or problem_of(error)
        return Response(problem.document(), problem.status, problem.headers, media_type=CONTENT_TYPE)

    app.add_exception_handler(RecordLogError, respond)
    app.add_exception_handler(OSError, respond)


def _is_of_log(error: OSError) -> bool:
    """Return whether *error* passed through the log: the application may raise OSErrors itself."""
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__))
    return any(name.startswith(_LOG_MODULES) for name in modules)


_LOG_MODULES = ("mrecordlog_async.log", "mrecordlog_async.engine.", "mrecordlog_async.compiled.")


def _of_other_loop(request: Request, error: Exception) -> ProblemError | None:
    """Return the problem of an open log that raises LogClosedError: the application called it from another thread."""
    log = _find(request)
    if not isinstance(error, LogClosedError) or not isinstance(log, MultiRecordLog) or log.state is not LogState.OPEN:
        return None
    logger.error("%s", error)
    return ProblemError(500, "internal", "the log was called from the wrong thread; see the application's log")


async def tail_until_disconnect(
    request: Request, log: MultiRecordLog, queue: str, start: int | None = None, *, poll_seconds: float = 1.0
) -> AsyncIterator[Record]:
    """Yield the records of *queue* as they arrive, until the client disconnects, the queue is deleted or the log ends.

    It also ends at SIGTERM and SIGINT, after the records that are there: servers wait for open responses.

    Args:
        request: The request whose response is streamed.
        log: The open log.
        queue: The queue to follow.
        start: First position; None starts at the first retained record.
        poll_seconds: How often to check whether the client is still connected while no record arrives.

    Yields:
        Records in the order of their positions.

    Raises:
        QueueNotFoundError: The queue does not exist when the tail starts.
    """
    queue_id = log.queue_summary(queue).id
    position = log.first_position(queue) if start is None else start
    stopping = _stopping_of(log)
    while not stopping.is_set() and not await request.is_disconnected():
        if not log.inspection.is_there(queue, queue_id):
            return
        # The wait is for a position that has not been assigned yet, and ends at once where the records were truncated.
        position = max(position, log.first_position(queue))
        if not await _wait_for(log, queue, position, stopping, poll_seconds):
            return
        if not log.inspection.is_there(queue, queue_id):  # deleted, and maybe recreated, during the wait
            return
        async for record in log.read(queue, position, log.next_position(queue)):  # some may be on the disk alone
            yield record
            position = record.position + 1


async def _wait_for(log: MultiRecordLog, queue: str, position: int, stopping: asyncio.Event, seconds: float) -> bool:
    """Wait until *queue* holds *position*, the process is told to stop or *seconds* pass; False if the queue ended."""
    waiting, ending = asyncio.ensure_future(log.wait_for(queue, position)), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((waiting, ending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not waiting.done() or waiting.result()
    except QueueNotFoundError:  # it was deleted in the turn before the wait began
        return False
    finally:
        waiting.cancel()
        ending.cancel()
