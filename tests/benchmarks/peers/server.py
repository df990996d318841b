"""A peer's server for the length of a run: finding its program and a free port, keeping its output for errors."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence

from tests.benchmarks.peers.peer import MissingPeerError

START_SECONDS = 20.0
STOP_SECONDS = 20.0


def find_program(name: str) -> str:
    """Return the path of *name*, from PATH or from this Python's environment.

    Raises:
        MissingPeerError: it is in neither.
    """
    beside_python = os.path.dirname(sys.executable)
    found = shutil.which(name) or shutil.which(name, path=beside_python)
    if found is None:
        raise MissingPeerError(f"no {name} on PATH or in {beside_python}")
    return found


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not in use now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A process that listens on 127.0.0.1:port."""

    def __init__(self, command: Sequence[str], port: int, output: str, user: str | None = None) -> None:
        """Start *command*, as another *user* if root wants that; its output goes to the file *output*."""
        self.port = port
        self._output = output
        with open(output, "wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, user=user, cwd=os.path.dirname(output)
            )
        atexit.register(self._process.kill)  # even where an error ends this process before `stop`

    async def wait(self) -> None:
        """Return when it accepts connections; raise MissingPeerError with its last line of output if it ends before."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            if self._process.poll() is not None or asyncio.get_running_loop().time() > deadline:
                raise MissingPeerError(f"it did not start: {await asyncio.to_thread(self._last_line)}")
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stop it and wait for its end."""
        atexit.unregister(self._process.kill)
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _last_line(self) -> str:
        with open(self._output, encoding="utf-8", errors="replace") as file:
            lines = file.read().strip().splitlines()
        return lines[-1] if lines else "it printed nothing"
