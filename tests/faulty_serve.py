"""`mrecordlog` on a disk that fails on demand: `python -m tests.faulty_serve CONTROL serve DIR …`.

The process is the real one; only its `FileSystem` obeys the files in the directory CONTROL:

| file | what the disk does |
|---|---|
| `eio-once` | the next sync fails, and the file is removed: the disk is back |
| `eio` | every sync fails |
| `full` | no space can be reserved |
| `slow` | each sync takes this many seconds longer |
| `hang` | writes and syncs do not come back until the file is removed |
| `clock` | not the disk: the machine's clock is this many seconds ahead |
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

from mrecordlog_async.cli.main import main
from mrecordlog_async.storage.filesystem import Buffer
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.support.clock import Clock


class FaultyFiles(OsFileSystem):
    """The real disk, except for what the control files say."""

    def __init__(self, control: Path) -> None:
        self._control = control

    def sync(self, handle: int) -> None:
        self._meet()
        super().sync(handle)

    def write_durable(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._meet()
        return super().write_durable(handle, buffers, offset)

    def reserve(self, handle: int, offset: int, length: int) -> None:
        if (self._control / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(handle, offset, length)

    def _meet(self) -> None:
        while (self._control / "hang").exists():
            time.sleep(0.005)
        if (slow := self._control / "slow").exists():
            time.sleep(float(slow.read_text()))
        once = self._control / "eio-once"
        if once.exists() or (self._control / "eio").exists():
            once.unlink(missing_ok=True)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class JumpingClock:
    """The clock of the machine, and what `clock` adds to it."""

    def __init__(self, control: Path) -> None:
        self._control = control
        self._time, self._time_ns = time.time, time.time_ns

    def time(self) -> float:
        return self._time() + self._jump()

    def time_ns(self) -> int:
        return self._time_ns() + self._jump() * 10**9

    def _jump(self) -> int:
        file = self._control / "clock"
        return int(file.read_text()) if file.exists() else 0


def run() -> int:
    """Run the command line with the files of CONTROL, the first argument."""
    control = Path(sys.argv[1])
    clock = JumpingClock(control)
    with (
        patch("mrecordlog_async.log.OsFileSystem", partial(FaultyFiles, control)),
        patch("mrecordlog_async.support.clock.SYSTEM", Clock(clock.time_ns)),
        patch("time.time", clock.time),
        patch("time.time_ns", clock.time_ns),
    ):
        return main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(run())
