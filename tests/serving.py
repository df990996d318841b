"""Real services for tests: in this process on a free port, or as a separate process that can be killed."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.service.app import build_app
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.wire.connections import Connections
from mrecordlog_async.service.wire.listening import Listener, bind
from tests import warm


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
    directory: Path,
    options: ServiceOptions | None = None,
    *,
    recovered: bool = True,
    context: ssl.SSLContext | None = None,
    **log_options: Any,
) -> AsyncIterator[Served]:
    """Serve *directory* on a free port on loopback, with TLS if there is a *context*.

    Without *recovered*, the log is not open yet.
    """
    service = Service(options)
    service.standalone = True  # as under `mrecordlog serve`
    settings: dict[str, Any] = {"access_log": None, "handler_cancellation": True, "read_bufsize": 65_536}
    runner = web.AppRunner(build_app(service), shutdown_timeout=1.0, **settings)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, service.options, service.connections)
    listener = Listener(await bind("127.0.0.1", 0), connections, context, service.options.header_seconds)
    async with aiohttp.ClientSession() as session:
        try:
            if recovered:
                await service.open(directory, segment_bytes=4 * 32_768, **log_options)
            yield Served(service, connections, listener.port, session)
        finally:
            service.begin_shutdown()
            listener.close()
            await session.close()
            await runner.cleanup()
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


TIMEOUT_SECONDS = 120.0
"""Only a test that fails waits this long."""
PORTS = range(10_000, 32_000)
"""Below the ports that the kernel gives to clients and for port 0: between a kill and a restart, nobody takes one."""
_turns = count(os.getpid() * 1_009)
"""Processes of one run of the suite begin at different ports."""


def free_port() -> int:
    """Return a port on which nothing listens, another one in each call."""
    while True:
        port = PORTS[next(_turns) % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Process:
    """`mrecordlog serve` as a process. As a context, it is ready; after `start`, it listens and may still recover.

    cold: start Python for it; see `tests.warm`.
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str] = (),
        *,
        port: int = 0,
        scheme: str = "http",
        cold: bool = False,
    ) -> None:
        self._arguments, self._cold = ["serve", str(directory), *arguments], cold
        self.port = port or free_port()
        self._scheme = scheme
        self.address = ""
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Process:
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, environment: dict[str, str] | None = None) -> None:
        """Start it and wait until it listens."""
        port = [] if "--uds" in self._arguments else ["--port", str(self.port)]
        self.process = self._spawn([*self._arguments, *port], {**os.environ, **(environment or {})})
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

    def _spawn(self, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return warm.start(arguments, cold=self._cold, environment=environment, stderr=pipe, text=True)

    def wait_ready(self) -> None:
        """Wait until its log is open."""
        while (status := self._status_of("/readyz")) != 200:
            assert status == 503, status
            time.sleep(0.01)

    def _status_of(self, path: str) -> int:
        connection = self._connection()
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host = urlsplit(self.address).hostname or "127.0.0.1"
        if self._scheme == "https":
            context = ssl._create_unverified_context()
            return http.client.HTTPSConnection(host, self.port, timeout=TIMEOUT_SECONDS, context=context)
        connection = http.client.HTTPConnection(host, self.port, timeout=TIMEOUT_SECONDS)
        if self.address.startswith("unix:"):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self.address.removeprefix("unix:"))
        return connection

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
        timer = threading.Timer(TIMEOUT_SECONDS, self.process.kill)  # a timeout of `communicate` reads past the buffer
        timer.start()
        _, stderr = self.process.communicate()
        timer.cancel()
        code = self.process.returncode
        self.process = None
        return code, stderr
