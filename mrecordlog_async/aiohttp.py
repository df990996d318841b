"""The log inside an aiohttp application: `setup(app, directory)` is all there is to it.

    app = web.Application()
    setup(app, "./wal", prefix="/wal")        # opened at start-up, closed at the end; the whole API below /wal

    async def ingest(request):
        position = await request.app[LOG].append_record("orders", None, await request.read())
        return web.json_response({"position": position})

The application's own server decides about deadlines of connections. The API below the prefix has its own limits, tokens
and names in `options`, and lets in what `mrecordlog serve` would: on loopback only requests that name this machine (or
one of `options.hosts`, as behind a proxy); from other machines nobody without a token. The application's own routes are
its own business. Without TLS, tokens and payloads travel in the clear.

One directory has one process: a second worker fails to start with LogLockedError, which names the ways out.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.service.app import build_app
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.security import EmbeddedGuard
from mrecordlog_async.service.service import Service

LOG = web.AppKey("mrecordlog.log", MultiRecordLog)
"""Where the open log is found: `request.app[LOG]`."""


def setup(
    app: web.Application,
    directory: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    options: ServiceOptions | None = None,
    exposed: bool = False,
    **log_options: Any,
) -> None:
    """Open the log in *directory* when *app* starts, and close it, drained and synced, when *app* ends.

    prefix: also serve the whole API there, `"/wal"` for example. options: limits, tokens and names of that API.
    exposed: let other machines use it without a token, because the application checks who may (its middlewares see
    every request). log_options: those of `MultiRecordLog.open`.
    """
    service: Service | None = None
    if prefix is not None:
        service = Service(options)
        service.guard = EmbeddedGuard(service.options.tokens, service.options.hosts, exposed=exposed)
        app.add_subapp(prefix, build_app(service))

    async def keep_open(app: web.Application) -> AsyncIterator[None]:
        async with MultiRecordLog.open(directory, **log_options) as log:
            app[LOG] = log
            if service is not None:
                service.attach(log)
            yield

    async def end_tails(app: web.Application) -> None:
        if service is not None:
            service.begin_shutdown()

    app.cleanup_ctx.append(keep_open)
    app.on_shutdown.append(end_tails)
