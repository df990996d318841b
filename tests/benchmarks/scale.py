"""How much is measured, in the full run or in a quick look; and what each workload is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from mrecordlog_async.options import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of all workloads; the defaults are those of a full run.

    Attributes:
        seconds: length of one measurement.
        rounds: how often the log alternates with the raw disk; many short ones decide more than few long ones.
        callers: numbers of concurrent callers to measure.
        compared_callers: the number of callers whose latencies the report draws.
        raw_bytes: size of the raw disk's file.
        gc_threshold: new objects after which Python looks for reference cycles; None leaves its collector alone.
        records: in the queue that is read.
        recovery_bytes: payloads in the log that is opened.
        memory_records: retained records whose memory is measured.
        short_queue, long_queue: records in the queues that are truncated.
        queues: numbers of queues that records are appended to in turn.
        roll_segment_bytes: size of a segment in the log that rolls.
        mission_rate: bytes per second.
        mission_retained_seconds: how much of that rate stays in memory.
        peer_rows: rows of `compare` in which all stores take part.
        spark_records: records that a drain moves.
        spark_queues: queues of a drain without work, and of a trigger.
        spark_idle_seconds: how long a drain without work is watched.
        spark_triggers: triggers that are measured.
        at_most: bound on the records and queues that a row of `compare` prepares.
    """

    seconds: float = 0.25
    rounds: int = 12
    callers: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    compared_callers: int = 1_000
    raw_bytes: int = 64 * MIB
    gc_threshold: int | None = None
    records: int = 1_000_000
    recovery_bytes: int = 768 * MIB
    memory_records: int = 1_000_000
    short_queue: int = 10_000
    long_queue: int = 1_000_000
    queues: tuple[int, ...] = (1, 10, 100, 1_000, 10_000, 100_000)
    roll_segment_bytes: int = 32 * MIB
    mission_rate: int = 60_000_000
    mission_seconds: float = 60.0
    mission_retained_seconds: float = 60.0
    peer_rows: tuple[str, ...] = ("1000-callers", "10000-callers")
    spark_records: int = 2_000_000
    spark_queues: int = 5_000
    spark_idle_seconds: float = 30.0
    spark_triggers: int = 9
    at_most: int = 10**9


FULL = Scale()

QUICK = Scale(
    seconds=0.1,
    rounds=1,
    records=100_000,
    recovery_bytes=64 * MIB,
    memory_records=200_000,
    long_queue=200_000,
    queues=(1, 100, 10_000),
    roll_segment_bytes=4 * MIB,
    mission_seconds=2.0,
    mission_retained_seconds=2.0,
    spark_records=200_000,
    spark_queues=1_000,
    spark_idle_seconds=5.0,
    spark_triggers=2,
    at_most=100_000,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload is given: its own empty directory, its sizes, and a function that reports progress."""

    directory: str
    scale: Scale
    say: Callable[[str], object]

    def path(self, name: str) -> str:
        """Return the path of *name* in the directory."""
        return os.path.join(self.directory, name)
