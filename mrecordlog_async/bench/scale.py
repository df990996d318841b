"""How much is measured, in the full run or in a quick look; and what each workload is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mrecordlog_async.options import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of all workloads.

    Attributes:
        seconds: length of one measurement.
        rounds: how often the log alternates with the raw disk.
        callers: numbers of concurrent callers to measure.
        compared_callers: the number of callers whose latencies the report draws.
        raw_bytes: size of the raw disk's file.
        gc_threshold: new objects after which Python looks for reference cycles; None leaves its collector alone.
    """

    seconds: float
    rounds: int
    callers: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    compared_callers: int = 1_000
    raw_bytes: int = 64 * MIB
    gc_threshold: int | None = None


FULL = Scale(seconds=0.5, rounds=5)
QUICK = Scale(seconds=0.1, rounds=1)

S = TypeVar("S", bound=Scale, covariant=True)


@dataclass(frozen=True, slots=True)
class Bench(Generic[S]):
    """What a workload is given: its own empty directory, its sizes, and a function that reports progress."""

    directory: str
    scale: S
    say: Callable[[str], object]

    def path(self, name: str) -> str:
        """Return the path of *name* in the directory."""
        return os.path.join(self.directory, name)
