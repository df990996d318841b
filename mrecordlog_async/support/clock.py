"""The clocks of the machine that an open log reads, as one value: a test opens its log with another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

STAMP_NS_MIN, STAMP_NS_MAX = 100_000_000, 2**63 - 1
"""Times that a batch can be stamped with. It begins at 0.1 s: 0 stands for a time that is unknown."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _wall_ns() -> int:
    return time.time_ns()  # looked up each time: programs that set the time in their tests replace it


def _boot_ns() -> int:
    return time.clock_gettime_ns(_BOOT_CLOCK)


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of a log."""

    # Nanoseconds since 1970, which batches and their records are stamped with. It may be set
    wall_ns: Callable[[], int] = _wall_ns
    # Nanoseconds since the machine started, with the time in which it slept. Records age by it
    boot_ns: Callable[[], int] = _boot_ns
    seconds: Callable[[], float] = time.perf_counter  # seconds from any moment on, for how long something has taken

    def stamp_ns(self) -> int:
        """Return the wall clock as batches are stamped with it: a time from 1970 to 2262.

        The clock of a machine shows no other time. Programs that set one in their tests get the nearest.
        """
        return min(max(self.wall_ns(), STAMP_NS_MIN), STAMP_NS_MAX)


SYSTEM = Clock()


def system() -> Clock:
    """Return the clocks of the machine."""
    return SYSTEM
