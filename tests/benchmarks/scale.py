"""Sizes of the workloads that only the project runs: everything, a quick look, or next to nothing for tests."""

from __future__ import annotations

from dataclasses import dataclass

from mrecordlog_async.bench import scale
from mrecordlog_async.options import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(scale.Scale):
    """Adds to the sizes of `mrecordlog bench`.

    Attributes:
        mission_rate: bytes per second.
        mission_retained_seconds: how much of that rate stays in memory.
        peer_rows: rows of `compare` in which all stores take part.
        at_most: bound on the records and queues that a row of `compare` prepares.
    """

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
    peer_rows: tuple[str, ...] = ("1000-callers", "10000-callers")
    at_most: int = 10**9


FULL = Scale(
    seconds=0.5,
    rounds=5,
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
    at_most=100_000,
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
    peer_rows=("10-callers",),
    at_most=300,
    raw_bytes=1 * MIB,
)
