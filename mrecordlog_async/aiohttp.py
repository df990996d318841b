"""Put a log into an aiohttp application: `setup` opens it with the application, handlers find it under `LOG`.

    from aiohttp import web
    from mrecordlog_async.aiohttp import LOG, setup

    async def ingest(request):
        position = await request.app[LOG].append("orders", await request.read())
        return web.json_response({"position": position})

    app = web.Application()
    app.router.add_post("/ingest", ingest)
    setup(app, "./wal", queues=["orders"], prefix="/wal")

With `prefix` the application also serves the whole HTTP API of the log below that path; without it only the handlers
use the log. The API has its own limits, tokens and host names (`ServiceOptions`). It admits the same requests as
`mrecordlog serve`: on loopback only those whose Host is this machine or one of `options.hosts`; from other machines
only those with a token. If `options` has tokens, every request needs one, even on loopback and on a Unix socket. The
health checks and the page need none, because the page holds no data. The application protects its own routes, and its
server sets the deadlines of connections. Without TLS, tokens and payloads are sent in the clear.

Only one process can open a directory. The start waits up to 25 s (`lock_seconds`) for another process, so that a server
may start its next process before the last one has ended; then it fails with LogLockedError.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Unpack

from mrecordlog_async.support.extras import naming

try:
    from aiohttp import web
    from yarl import URL

    from mrecordlog_async.asgi import LogApplication
    from mrecordlog_async.embedding import Consumers, EmbedOptions, Queues, Worker, check_embed, embedded
    from mrecordlog_async.log import NONE_DECLARED, MultiRecordLog
    from mrecordlog_async.service.bridge import Bridge
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.service.watching.watch import watch
except ModuleNotFoundError as error:
    raise naming(error, "server") from None

__all__ = ["LOG", "EmbedOptions", "ServiceOptions", "setup"]

LOG = web.AppKey("mrecordlog.log", MultiRecordLog)
"""The key of the open log: `request.app[LOG]`."""

_IS_SET_UP = web.AppKey("mrecordlog.is_set_up", bool)


def setup(
    app: web.Application,
    directory: str | os.PathLike[str],
    *,
    queues: Queues = (),
    consumers: Consumers = NONE_DECLARED,
    workers: Sequence[Worker] = (),
    prefix: str | None = None,
    options: ServiceOptions | None = None,
    exposed: bool = False,
    **log_options: Unpack[EmbedOptions],
) -> None:
    """Open the log in *directory* when *app* starts, and close it when *app* has ended and its workers have.

    Args:
        app: The application. Add handlers and other `cleanup_ctx` entries as usual; entries added after this call may
            use `app[LOG]`.
        directory: The directory of the log; it is created if it does not exist.
        queues: Queues to create if they do not exist: names, or `QueueOptions` by name. One that exists keeps its
            options.
        consumers: Consumers to create if they do not exist, before any worker runs: lists of names by queue, or by a
            pattern. Name the consumer of every worker: otherwise records that one worker has acknowledged may be
            removed before another one attaches for the first time. See `MultiRecordLog.open`.
        workers: Coroutine functions that take the log, such as consumers. They run next to the application; one that
            raises is started again. When the application ends, their loops end after the batch that they have.
        prefix: Path below which the whole HTTP API is served too, for example `"/wal"`. None: no API.
        options: Limits, tokens and host names of that API.
        exposed: Admit other machines without a token, because the application authenticates requests itself (its
            middlewares see every request).
        log_options: Further options, those of `MultiRecordLog.open` and of workers: see `EmbedOptions`.

    Raises:
        ValueError: *app* has a log already, or *prefix* has characters that URLs encode, such as a space.
        TypeError: *options* or the options of a queue are of another class, or there is no such option.
        LogLockedError: Raised when *app* starts and another process still has the log open after `lock_seconds`.
        LogClosedError: Raised when SIGTERM or SIGINT comes while *app* starts.
        RecordLogError: Raised when *app* starts and the log cannot be opened; see `MultiRecordLog.open`.
    """
    if _IS_SET_UP in app:
        raise ValueError(
            "the application has a log already: set up the other one in an app that you add with add_subapp"
        )
    embedding = check_embed(directory, queues, consumers, workers, log_options, ("prefix", "options", "exposed"))
    api: LogApplication | None = None
    if prefix is not None:
        _check_prefix(prefix)
        api = LogApplication(options, exposed=exposed)
        path, bridge = prefix.rstrip("/"), Bridge(api)
        # The page finds its data by relative paths, so it needs the slash. Registered first: the API would respond 404.
        app.router.add_get(path, _to_the_page)
        app.router.add_route("*", path + r"/{path:[\s\S]*}", bridge.respond, expect_handler=_ask_later)
    app[_IS_SET_UP] = True

    async def keep_open(app: web.Application) -> AsyncIterator[None]:
        async with embedded(embedding) as log, AsyncExitStack() as stack:
            app[LOG] = log
            if api is not None:
                await stack.enter_async_context(api.serving(log))
                watching = asyncio.create_task(watch(partial(bridge.cut_stalled, api.options.write_seconds)))
                stack.callback(watching.cancel)
            yield

    async def end_tails(app: web.Application) -> None:
        if api is not None:
            api.begin_shutdown()

    app.cleanup_ctx.append(keep_open)
    app.on_shutdown.append(end_tails)


def _check_prefix(prefix: str) -> None:
    """Raise ValueError unless aiohttp finds the routes below *prefix*."""
    url = URL(prefix) if prefix.startswith("/") and prefix.rstrip("/") else None
    # It compares the prefix with the path as the client encoded it, and with that path decoded.
    if url is None or not url.raw_path == url.path_safe == prefix:
        raise ValueError(f"prefix must be a path like '/wal' without characters that URLs encode, not {prefix!r}")


async def _to_the_page(request: web.Request) -> web.StreamResponse:
    """Redirect `/wal` to `/wal/`, relative to itself: a proxy may have removed the beginning of the path."""
    raise web.HTTPPermanentRedirect(request.path.rpartition("/")[2] + "/")


async def _ask_later(request: web.Request) -> None:
    """Ask for no body yet: the service asks once it has admitted the request."""
