"""A real service as a separate process that can be killed."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from tests import warm

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


def config(place: Path, **settings: object) -> list[str]:
    """Write *settings* of `serve` to a file in *place*; return the arguments that name it: rare ones have no option."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / "serve.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    return ["--config", str(file)]


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
