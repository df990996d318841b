"""What one round of one contestant yields, as it travels between two processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import mean, median

from mrecordlog_async.bench.drive import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One round.

    Attributes:
        records: acknowledged, read or opened in *seconds*; queues where the row creates queues.
        cpu_seconds: CPU time of the whole process in that time.
        latencies: seconds per call; empty where calls were not timed.
        commits: batches that were written in about that time; 0 where the contestant does not count them.
        written_bytes: bytes in those batches.
        raw_latencies: seconds per write and sync of the mean batch on the raw disk.
        raw_seconds: how long plain reads of the same files took, in rows that open a log.
    """

    records: int
    seconds: float
    cpu_seconds: float
    latencies: list[float] = field(default_factory=list)
    commits: int = 0
    written_bytes: int = 0
    raw_latencies: list[float] = field(default_factory=list)
    raw_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """CPU time per record."""
        return self.cpu_seconds * 1e6 / max(self.records, 1)

    @property
    def p50(self) -> float:
        """Half of the calls took at most this long; 0 where they were not timed."""
        return self._quantile(0.5)

    @property
    def p99(self) -> float:
        """99 % of the calls took at most this long."""
        return self._quantile(0.99)

    @property
    def of_raw(self) -> float | None:
        """The rate as a share of the raw disk's; None where there was no raw disk."""
        if self.raw_latencies:
            return self.commits * mean(self.raw_latencies) / self.seconds
        return self.raw_seconds / self.seconds if self.raw_seconds else None

    @property
    def p50_over_raw(self) -> float | None:
        """The median call over the median write and sync of the raw disk; None where either was not timed."""
        return self.p50 / median(self.raw_latencies) if self.latencies and self.raw_latencies else None

    def to_json(self) -> str:
        """Return the figures as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Figures:
        """Read what `to_json` returned."""
        return cls(**json.loads(line))

    def _quantile(self, fraction: float) -> float:
        return quantile(sorted(self.latencies), fraction) if self.latencies else 0.0
