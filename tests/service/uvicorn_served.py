"""The service mounted in a FastAPI application, under a real uvicorn in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from fastapi import FastAPI

from mrecordlog_async.asgi import LogApplication
from mrecordlog_async.fastapi import ServiceOptions, lifespan, mount
from mrecordlog_async.service.service import Service
from tests.served import Served

PREFIX = "/wal"


@dataclass
class Mounted(Served):
    """A service below a path of a FastAPI application."""

    @property
    def url(self) -> str:
        return super().url + PREFIX


@asynccontextmanager
async def running(app: FastAPI, **config: Any) -> AsyncIterator[uvicorn.Server]:
    """Run *app* under uvicorn on a free port."""
    config = {"port": 0, "log_level": "critical", "timeout_graceful_shutdown": 2, **config}
    server = uvicorn.Server(uvicorn.Config(app, **config))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
        if serving.done():
            await serving
            raise AssertionError("the application did not start")
    try:
        yield server
    finally:
        server.should_exit = True
        await serving


def port_of(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


def service_of(application: LogApplication) -> Service | None:
    """Return what the routes of its log share; None while it serves none."""
    return None if application._app is None else application._app.service


@asynccontextmanager
async def mounted(directory: Path, options: ServiceOptions | None = None, **log_options: Any) -> AsyncIterator[Mounted]:
    """Serve *directory* below a path of a FastAPI application, as `tests.serving.serving` does at the root."""
    app = FastAPI(lifespan=lifespan(directory, segment_bytes=4 * 32_768, **log_options))
    mount(app, PREFIX, options=options)
    (bridge,) = app.state.mrecordlog_mounts
    async with running(app) as server, aiohttp.ClientSession() as session:
        connections: Any = None  # they are uvicorn's
        service = service_of(bridge)
        assert service is not None
        yield Mounted(service, connections, port_of(server), session)
