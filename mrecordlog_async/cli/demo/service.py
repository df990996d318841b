"""The service of the demo: a process that is killed and restarted on the same port."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import AsyncIterator

from mrecordlog_async.cli.shell.exit_codes import NotReadyError
from mrecordlog_async.cli.shell.settings import PREFIX

_LISTENING = re.compile(r"listening on (http://\S+:(\d+))")
READY_SECONDS = 60.0
ASK_SECONDS = 0.005
LAST_LINES = 10


class ServiceProcess:
    """`mrecordlog serve`, killed with SIGKILL. recovery_seconds: the time from start to ready after each kill."""

    def __init__(self, directory: str, port: int) -> None:
        self.address = ""
        self.kills = 0
        self.recovery_seconds: list[float] = []
        self._directory = directory
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self._draining: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the service and wait until it is ready. Raises NotReadyError with its output if it exits instead."""
        begun = time.perf_counter()
        command = ("-m", "mrecordlog_async", "serve", self._directory, "--port", str(self._port))
        # Without the settings of another service, such as its token, which this one would take for its own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
            env=environment,
        )
        assert self._process.stderr is not None
        last_lines: deque[str] = deque(maxlen=LAST_LINES)
        lines = _lines(self._process.stderr, last_lines)
        async for line in lines:
            found = _LISTENING.search(line)
            if found:
                self.address, self._port = found[1], int(found[2])
                break
        else:
            raise _ended(last_lines)
        self._draining = asyncio.create_task(_drain(lines))
        await self._wait_ready(last_lines)
        if self.kills:
            self.recovery_seconds.append(time.perf_counter() - begun)

    async def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.kill()
        await process.wait()
        self.kills += 1
        if self._draining is not None:
            await self._draining

    async def _wait_ready(self, last_lines: deque[str]) -> None:
        assert self._draining is not None
        end = time.monotonic() + READY_SECONDS
        while not await asyncio.to_thread(_is_ready, self.address):
            if self._draining.done():  # it has closed its standard error
                raise _ended(last_lines)
            if time.monotonic() > end:
                raise NotReadyError(f"the service is not ready after {READY_SECONDS:g} s")
            await asyncio.sleep(ASK_SECONDS)


def _ended(last_lines: deque[str]) -> NotReadyError:
    return NotReadyError("the service ended: " + "".join(last_lines).rstrip())


def _is_ready(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


async def _lines(stream: asyncio.StreamReader, last_lines: deque[str]) -> AsyncIterator[str]:
    while line := (await stream.readline()).decode(errors="replace"):
        last_lines.append(line)
        yield line


async def _drain(lines: AsyncIterator[str]) -> None:
    """Keep reading, so that a full pipe never blocks the process."""
    async for _ in lines:
        pass
