"""A process that only watches the clock: how long the machine itself delays a process.

An event loop stands still when its own code is slow, and also when the machine gives the processor to somebody else.
The second affects every process, so a process without work shows how long it was.
"""

from __future__ import annotations

import asyncio
import sys
from math import nan
from types import TracebackType

from tests.deep.service.stall_probe import StallProbe


class IdleProcess:
    """Watches while the block lasts; then `longest_seconds` is its longest stall. Costs a few percent of one core."""

    def __init__(self) -> None:
        self.longest_seconds = nan
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> IdleProcess:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        await self._process.stdout.readline()  # it has started, and watches
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        said, _ = await self._process.communicate(b"")  # the end of input stops it
        self.longest_seconds = float(said or nan)


async def _watch() -> None:
    with StallProbe() as probe:
        print("watching", flush=True)
        # A thread waits for the end of input: the loop has nothing else to do than to be on time.
        await asyncio.to_thread(sys.stdin.read)
    print(probe.longest_seconds)


if __name__ == "__main__":
    asyncio.run(_watch())
