"""What the log says of the disk's speed: the time inside system calls, and none of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import perf_counter
from types import FrameType
from typing import Any

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.testing import MemoryDisk

STOPS = 40


class MarkedDisk:
    """A disk that knows whether a call to it is under way."""

    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self.is_called = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._disk, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.is_called = True
            try:
                return method(*arguments, **options)
            finally:
                self.is_called = False

        return call


class Stops:
    """Stops threads that are begun under `threading.setprofile`, at calls of functions of the package."""

    def __init__(self, disk: MarkedDisk) -> None:
        self._disk = disk
        self.left = 0
        self.stands = threading.Event()
        self.goes_on = threading.Event()

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Stop, unless the disk is called."""
        in_package = "mrecordlog_async" in frame.f_code.co_filename
        if event == "call" and in_package and self.left and not self._disk.is_called:
            self.left -= 1
            self.stands.set()
            self.goes_on.wait()
            self.goes_on.clear()


async def test_the_disk_is_not_blamed_for_what_the_log_does_itself() -> None:
    """While its thread works between two system calls, the time of the disk stands still."""
    disk = MarkedDisk()
    stops = Stops(disk)
    threading.setprofile(stops.profile)
    try:
        log = await MultiRecordLog.open("/data/wal", filesystem=disk, queues=["q"])
    finally:
        threading.setprofile(None)
    async with log:
        stops.left = STOPS
        append = asyncio.ensure_future(log.append_records("q", None, [b"1", b"2"]))
        stopped = 0
        try:
            while not append.done():
                if not stops.stands.is_set():
                    await asyncio.sleep(0)
                    continue
                stops.stands.clear()
                blamed, now = log.inspection.under_way_seconds, perf_counter()
                while perf_counter() - now < 0.002:
                    await asyncio.sleep(0)
                assert log.inspection.under_way_seconds <= blamed
                stopped += 1
                stops.goes_on.set()
        finally:
            stops.left = 0
            stops.goes_on.set()
        assert await append == 1
        assert stopped > 3
