"""What the process feels: how long its event loop stood still, how much memory it holds, what machine it is on."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import time
from types import TracebackType

PROBE_SECONDS = 0.001


class StallProbe:
    """Measure the longest time in which the event loop ran nothing, while the block lasts.

    A timer of a millisecond is set again and again; what it comes late is a stall. Its own coarseness (uvloop counts
    in milliseconds) is part of the figure, so it says up to 1 ms too much and never too little by more.
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
    except FileNotFoundError:  # not Linux: only the highest mark is to be had without help; macOS counts it in bytes
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
