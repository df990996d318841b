"""How much is run: the whole, a quick look, or next to nothing for tests. And what each workload is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from mrecordlog_async.options import MIB


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of all workloads. seconds: one measured stretch; rounds: how often it alternates with the raw disk.

    mission_rate: bytes a second; mission_retained_seconds: how much of that stays in memory. gc_threshold: how many new
    objects make Python look for garbage; None leaves its collector as it is.
    """

    seconds: float
    rounds: int
    callers: tuple[int, ...]
    compared_callers: int
    records: int
    recovery_bytes: int
    memory_records: int
    short_queue: int
    long_queue: int
    queues: tuple[int, ...]
    roll_segment_bytes: int
    mission_rate: int
    mission_seconds: float
    mission_retained_seconds: float
    raw_bytes: int = 64 * MIB
    gc_threshold: int | None = None


FULL = Scale(
    seconds=0.5,
    rounds=5,
    callers=(1, 10, 100, 1_000, 10_000),
    compared_callers=1_000,
    records=1_000_000,
    recovery_bytes=768 * MIB,
    memory_records=1_000_000,
    short_queue=10_000,
    long_queue=1_000_000,
    queues=(1, 10, 100, 1_000, 10_000, 100_000),
    roll_segment_bytes=32 * MIB,
    mission_rate=60_000_000,
    mission_seconds=60,
    mission_retained_seconds=60,
)

QUICK = Scale(
    seconds=0.1,
    rounds=1,
    callers=(1, 10, 100, 1_000, 10_000),
    compared_callers=1_000,
    records=100_000,
    recovery_bytes=64 * MIB,
    memory_records=200_000,
    short_queue=10_000,
    long_queue=200_000,
    queues=(1, 100, 10_000),
    roll_segment_bytes=4 * MIB,
    mission_rate=60_000_000,
    mission_seconds=2,
    mission_retained_seconds=2,
)

TINY = Scale(
    seconds=0.01,
    rounds=1,
    callers=(1, 20),
    compared_callers=20,
    records=3_000,
    recovery_bytes=1 * MIB,
    memory_records=3_000,
    short_queue=1_000,
    long_queue=3_000,
    queues=(1, 20),
    roll_segment_bytes=1 * MIB,
    mission_rate=2_000_000,
    mission_seconds=0.1,
    mission_retained_seconds=0.1,
    raw_bytes=1 * MIB,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload gets: an empty directory of its own, its sizes, and a way to say how far it is."""

    directory: str
    scale: Scale
    say: Callable[[str], object]

    def path(self, name: str) -> str:
        """Name a place in the directory."""
        return os.path.join(self.directory, name)
