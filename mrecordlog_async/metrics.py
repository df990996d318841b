"""Plain numbers that the log keeps while it works; exporters read them, nothing here knows of any.

They are counted once a batch, never once an append, so they cost nothing where it matters.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple


def _doubling(first: float, steps: int) -> tuple[float, ...]:
    return tuple(first * 2**step for step in range(steps))


SECONDS_BOUNDS = _doubling(50e-6, 16)
"""Upper bounds for durations: 50 µs, doubling to 1.6 s."""
COUNT_BOUNDS = _doubling(1, 18)
BYTES_BOUNDS = _doubling(256, 20)


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound, one more bucket above the last, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count *value*, *times* times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def quantile(self, fraction: float) -> float:
        """Return the upper bound of the bucket that holds this quantile, 0 when nothing was observed."""
        wanted = fraction * self.count
        if not wanted:
            return 0.0
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return self.bounds[-1] * 2


def _seconds() -> Histogram:
    return Histogram(SECONDS_BOUNDS)


class SegmentPin(NamedTuple):
    """The queue whose oldest record lies furthest back, and what it keeps on the disk.

    segments: how many, from the one with that record up to the current one, which stays anyway. alone: how many of
    these no other queue needs, so that truncating or deleting this one would free them.
    """

    queue: str
    segments: int
    alone: int


@dataclass(slots=True)
class Counters:
    """Everything counted since the log was opened. Times are seconds, sizes bytes."""

    appended_records: int = 0
    appended_bytes: int = 0
    truncated_records: int = 0
    duplicates: int = 0
    refused_past: int = 0
    refused_full: int = 0
    written_bytes: int = 0
    commits: int = 0
    syncs: int = 0
    rolls: int = 0
    segments_removed: int = 0
    io_errors: int = 0
    commit_seconds: Histogram = field(default_factory=_seconds)
    sync_seconds: Histogram = field(default_factory=_seconds)
    roll_seconds: Histogram = field(default_factory=_seconds)
    append_seconds: Histogram = field(default_factory=_seconds)
    commit_records: Histogram = field(default_factory=lambda: Histogram(COUNT_BOUNDS))
    commit_bytes: Histogram = field(default_factory=lambda: Histogram(BYTES_BOUNDS))

    def snapshot(self) -> Counters:
        """Return a copy that does not move any more."""
        return deepcopy(self)
