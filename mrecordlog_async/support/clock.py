"""The clocks of the machine that an open log reads, as one value: a test opens its log with another one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

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


SYSTEM = Clock()


def system() -> Clock:
    """Return the clocks of the machine."""
    return SYSTEM
