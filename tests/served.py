"""A real service in the process of a test, on a free port."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.service.app import App
from mrecordlog_async.service.connections import Connections
from mrecordlog_async.service.listening import bind
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.watching.watch import watch


@dataclass
class Served:
    """A service in this process."""

    service: Service
    connections: Connections
    port: int
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> MultiRecordLog:
        return self.service.log

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Response:
        """Send one request; return the whole response."""
        if isinstance(body, dict):
            options["json"] = body
        else:
            options["data"] = body
        async with self.session.request(method, self.url + path, **options) as response:
            return Response(response.status, response.headers, await response.read())


@dataclass
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        import msgspec

        return msgspec.json.decode(self.body)


@asynccontextmanager
async def running(
    service: Service,
    sockets: Sequence[socket.socket],
    context: ssl.SSLContext | None = None,
    *,
    access_log: bool = False,
) -> AsyncIterator[Connections]:
    """Serve *service* at *sockets* until the end of the block; its log stays open."""
    connections = Connections(App(service), access_log=access_log)
    connections.listen(sockets, context)
    watching = asyncio.create_task(watch(connections.check, service.refused.check))
    try:
        yield connections
    finally:
        await connections.end(1.0, asyncio.Event())
        watching.cancel()


@asynccontextmanager
async def serving(
    directory: Path,
    options: ServiceOptions | None = None,
    *,
    recovered: bool = True,
    context: ssl.SSLContext | None = None,
    access_log: bool = False,
    **log_options: Any,
) -> AsyncIterator[Served]:
    """Serve *directory* on a free port on loopback, with TLS if there is a *context*.

    Without *recovered*, the log is not open yet.
    """
    service = Service(options)
    sockets = await bind("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    connecting = running(service, sockets, context, access_log=access_log)
    async with aiohttp.ClientSession() as session, connecting as connections:
        try:
            if recovered:
                await service.open(directory, segment_bytes=4 * 32_768, **log_options)
            yield Served(service, connections, port, session)
        finally:
            await session.close()
    if service.log_or_none is not None:
        await service.log_or_none.close()


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server. Python 3.11 leaves a connection open that was accepted in the same turn: that must not happen."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):  # uvloop has no such turn
        for listening in server.sockets:
            loop.remove_reader(listening)
        for _ in range(4):
            await asyncio.sleep(0)
    server.close()
