"""The HTTP API of a log as an ASGI application: for an ASGI server alone, or mounted in another application.

`app` opens the log with the application and closes it with it. A module of two lines serves a log:

    # wal.py: run it with `uvicorn wal:app --timeout-graceful-shutdown 10`
    from mrecordlog_async.asgi import app as log_app

    app = log_app("./wal", queues=["clicks"])

`LogApplication` serves a log that somebody else opens. Starlette runs no lifespan of an application that it mounts, so
the outer one opens the log:

    from contextlib import asynccontextmanager
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from mrecordlog_async import MultiRecordLog
    from mrecordlog_async.asgi import LogApplication

    wal = LogApplication()

    @asynccontextmanager
    async def lifespan(app):
        async with MultiRecordLog.open("./wal") as log, wal.serving(log):
            yield

    app = Starlette(lifespan=lifespan, routes=[Mount("/wal", wal)])

The API has its own limits, tokens and host names (`ServiceOptions`). It admits the same requests as `mrecordlog serve`:
on loopback only those whose Host is this machine or one of `options.hosts`; from other machines only those with a
token. Deadlines of connections and of request heads are the server's. docs/frameworks.md says which server has which.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Unpack

from mrecordlog_async.embedding import (
    Consumers,
    Embedding,
    EmbedOptions,
    OpeningStoppedError,
    Queues,
    Worker,
    check_embed,
    embedded,
)
from mrecordlog_async.log import NONE_DECLARED, MultiRecordLog
from mrecordlog_async.options import check_type
from mrecordlog_async.protocol.problems import retry
from mrecordlog_async.service.app import App
from mrecordlog_async.service.http import HttpRequest, Receive, Scope, Send
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.security import EmbeddedGuard
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.watching.trim_memory import MemoryTrimmer
from mrecordlog_async.service.watching.watch import watch
from mrecordlog_async.support.stop_signal import end_by, on_stop_signal

__all__ = ["EmbedOptions", "LogApplication", "ServiceOptions", "app"]

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("mrecordlog_async.service")


def app(
    directory: str | os.PathLike[str],
    *,
    queues: Queues = (),
    consumers: Consumers = NONE_DECLARED,
    workers: Sequence[Worker] = (),
    options: ServiceOptions | None = None,
    exposed: bool = False,
    **log_options: Unpack[EmbedOptions],
) -> Application:
    """Return an ASGI application that opens the log in *directory* at its start and closes it at its end.

    Args:
        directory: The directory of the log; it is created if it does not exist.
        queues: Queues to create if they do not exist: names, or `QueueOptions` by name. One that exists keeps its
            options.
        consumers: Consumers to create if they do not exist, before any worker runs: lists of names by queue, or by a
            pattern.
        workers: Coroutine functions that take the log, such as consumers. They run next to the application; one that
            raises is started again. When the application ends, their loops end after the batch that they have.
        options: Limits, tokens and host names of the API.
        exposed: Admit other machines without a token, because something in front authenticates requests.
        log_options: Further options, those of `MultiRecordLog.open` and of workers: see `EmbedOptions`.

    Returns:
        The application. Its start fails if another process still has the log open after `lock_seconds`, or if the log
            cannot be opened; the server then reports the error and ends.

    Raises:
        ValueError: An argument has a value that is not allowed.
        TypeError: *options* or the options of a queue are of another class, or there is no such option.
    """
    embedding = check_embed(directory, queues, consumers, workers, log_options, ("options", "exposed"))
    application = LogApplication(options, exposed=exposed)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(embedding, application, receive, send)
        else:
            await application(scope, receive, send)

    return serve


async def _live(embedding: Embedding, application: LogApplication, receive: Receive, send: Send) -> None:
    """Open the log, serve it until the server ends, and close it."""
    await receive()
    stage = "startup"
    try:
        async with embedded(embedding) as log, application.serving(log):
            with on_stop_signal(lambda _: application.begin_shutdown()):  # the server waits for open tails
                await send({"type": "lifespan.startup.complete"})
                stage = "shutdown"
                await receive()
    except OpeningStoppedError as stopped:
        end_by(stopped.number)
        await send({"type": "lifespan.startup.failed", "message": str(stopped)})
    except Exception as error:
        await send({"type": f"lifespan.{stage}.failed", "message": f"{type(error).__name__}: {error}"})
    else:
        await send({"type": "lifespan.shutdown.complete"})


class LogApplication:
    """An ASGI application that serves a log while `serving` is entered.

    An ASGI server waits for requests before it ends, by default for ever. So after `begin_shutdown` tails end, and
    requests that still run after `drain_seconds` are dropped.
    """

    def __init__(self, options: ServiceOptions | None = None, *, exposed: bool = False) -> None:
        """Make it; nothing is opened.

        Args:
            options: Limits, tokens and host names of the API.
            exposed: Admit other machines without a token, because the application authenticates requests itself.

        Raises:
            TypeError: *options* are of another class.
        """
        self.options = ServiceOptions() if options is None else options
        check_type("options", self.options, ServiceOptions)
        self._exposed = exposed
        self._app: App | None = None
        self._running: set[asyncio.Task[object]] = set()
        self._dropped: set[asyncio.Task[object]] = set()
        self._dropping: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def serving(self, log: MultiRecordLog) -> AsyncIterator[None]:
        """Serve *log*, which the caller has opened and will close, until the end of the block."""
        service = Service(self.options)
        service.guard = EmbeddedGuard(self.options.tokens, self.options.hosts, exposed=self._exposed)
        service.attach(log)
        self._app = App(service)
        watching = asyncio.create_task(watch(MemoryTrimmer(service).check, service.refused.check))
        try:
            yield
        finally:
            self._app = None
            if self._dropping is not None:
                self._dropping.cancel()
                self._dropping = None
            service.begin_shutdown()
            watching.cancel()

    def begin_shutdown(self) -> None:
        """Stop being ready and end tails; other requests continue for at most `drain_seconds`."""
        if self._app is not None and self._dropping is None:
            self._app.service.begin_shutdown()
            self._dropping = asyncio.get_running_loop().call_later(self.options.drain_seconds, self._drop)

    def _drop(self) -> None:
        """End every request that still runs: its body never arrives, or its response is not read."""
        if self._running:
            facts = {"event": "dropped", "requests": len(self._running)}
            text = "%d requests did not finish in time and are dropped"
            logger.warning(text, len(self._running), extra={"facts": facts})
        for task in self._running:
            self._dropped.add(task)
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        app = self._app
        if app is None:
            raise RuntimeError(
                "the log is not open: mount it on the application that has the lifespan of the log; in tests, enter "
                "their client: `with TestClient(app) as client`"
            )
        request, task = HttpRequest(scope, receive, send), asyncio.current_task()
        assert task is not None, "a coroutine runs in one"
        self._running.add(task)
        try:
            await app.serve(request)
        except asyncio.CancelledError:
            if task not in self._dropped:
                raise
            task.uncancel()
            # With its body it may have reached the log, which may still carry it out: a 503 would deny that. Without a
            # response, the server ends the connection, or responds with its own 500.
            if request.begun:
                await request.break_off()
            elif request.unread:
                request.unread = False  # nothing is waited for any more
                problem = retry(503, "closing", "the service is shutting down; try again", state="closing")
                await app.refuse(request, problem)
        finally:
            self._running.discard(task)
            self._dropped.discard(task)
