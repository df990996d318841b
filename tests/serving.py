"""Real services for tests: in this process on a free port, or as a separate process that can be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.service.app import build_app
from mrecordlog_async.service.connections import Connections
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.service import Service


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
async def serving(
    directory: Path, options: ServiceOptions | None = None, *, recovered: bool = True, **log_options: Any
) -> AsyncIterator[Served]:
    """Serve *directory* on a free port on loopback. Without *recovered*, the log is not open yet."""
    service = Service(options)
    service.standalone = True  # as under `mrecordlog serve`
    settings: dict[str, Any] = {"access_log": None, "handler_cancellation": True, "read_bufsize": 65_536}
    runner = web.AppRunner(build_app(service), shutdown_timeout=1.0, **settings)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, service.options, service.connections)
    server = await asyncio.get_running_loop().create_server(connections.accept, "127.0.0.1", 0, backlog=2_048)
    port = server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        try:
            if recovered:
                await service.open(directory, segment_bytes=4 * 32_768, **log_options)
            yield Served(service, connections, port, session)
        finally:
            service.begin_shutdown()
            server.close()
            await session.close()
            await runner.cleanup()
            if service.log_or_none is not None:
                await service.log_or_none.close()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Process:
    """`mrecordlog serve` as a process."""

    def __init__(self, directory: Path, arguments: Sequence[str] = (), *, port: int = 0, scheme: str = "http") -> None:
        self._command = [sys.executable, "-m", "mrecordlog_async", "serve", str(directory), *arguments]
        self.port = port
        self._scheme = scheme
        self.address = ""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Process:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Start it and wait until it listens."""
        command = self._command if "--uds" in self._command else [*self._command, "--port", str(self.port)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        assert self.process.stderr is not None
        log_lines = []
        for line in self.process.stderr:
            log_lines.append(line)
            found = re.search(rf"listening on ({self._scheme}://\S+?:(\d+)|unix:\S+)", line)
            if found:
                self.address = found[1]
                self.port = int(found[2] or 0)
                return
        raise AssertionError("".join(log_lines))

    def kill(self) -> None:
        """Kill it with SIGKILL, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; return the exit code and what it wrote to standard error."""
        assert self.process is not None
        self.process.send_signal(number)
        _, stderr = self.process.communicate(timeout=30)
        code = self.process.returncode
        self.process = None
        return code, stderr
