"""Another process that has a log open, until the test has it close the log, or kills it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

HELD = b"stored by the holder"

_PROGRAM = """
import asyncio, sys
from mrecordlog_async import MultiRecordLog

async def main():
    async with MultiRecordLog.open(sys.argv[1], queues=["q"]) as log:
        await log.append("q", sys.argv[2].encode())
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


class Holder:
    """A process that has appended `HELD` to the queue "q" of the log in *directory*, and has it open."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(directory), HELD.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # otherwise it is like a worker that this process's server has started with it
        )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        """Have the process close the log and end; return at once."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
