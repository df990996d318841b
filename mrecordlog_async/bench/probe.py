"""The process and its machine: how long the event loop was blocked, how much memory it holds, what it runs on."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from types import TracebackType

PROBE_SECONDS = 0.001


class StallProbe:
    """Measure the longest time the event loop was blocked while the block lasts.

    A timer of one millisecond is set again and again; its delay is the stall. The figure includes the resolution of
    the loop's clock (uvloop counts in milliseconds), so it is exact to 1 ms.
    """

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    def __enter__(self) -> StallProbe:
        self._since = time.perf_counter()
        self._timer = self._loop.call_later(PROBE_SECONDS, self._tick)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._note()

    def _tick(self) -> None:
        self._note()
        self._timer = self._loop.call_later(PROBE_SECONDS, self._tick)

    def _note(self) -> None:
        now = time.perf_counter()
        self.longest_seconds = max(self.longest_seconds, now - self._since - PROBE_SECONDS)
        self._since = now


def resident_bytes() -> int:
    """Return the memory that the process holds now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # not Linux: only the peak is available; macOS counts it in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def machine(directory: str) -> str:
    """Name the machine in one line: processor, cores, memory, kernel, Python, file system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return ", ".join(
        (
            _processor(),
            f"{os.cpu_count()} cores",
            f"{memory:.0f} GiB memory",
            f"{platform.system()} {platform.release()}",
            f"{platform.python_implementation()} {platform.python_version()}",
            f"{_file_system(os.path.abspath(directory))} file system",
        )
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(path: str) -> str:
    try:
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return "unknown"
    holding = [(mount, kind) for mount, kind in mounts if os.path.commonpath((path, mount)) == mount]
    return max(holding, key=lambda pair: len(pair[0]), default=("", "unknown"))[1]
