"""Plain counters that the log keeps. Exporters read them; this module does not depend on any exporter.

They are updated once per batch, never once per append, so the hot path pays nothing.
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
    """Counts of values up to each bound, plus one bucket above the last bound, and the sum of all values."""

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
        """Number of observed values."""
        return sum(self.counts)

    def quantile(self, fraction: float) -> float:
        """Return the upper bound of the bucket that holds this quantile, or 0 if nothing was observed."""
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
    """The queue with the oldest record on the disk, and the segments it keeps there.

    segments: how many, from the one with that record up to but excluding the current one, which stays anyway. alone:
    how many of these no other queue needs; truncating or deleting this queue would free them.
    """

    queue: str
    segments: int
    alone: int


@dataclass(slots=True)
class Counters:
    """All counters since the log was opened. Times are in seconds, sizes in bytes."""

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
        """Return a copy that no longer changes."""
        return deepcopy(self)
