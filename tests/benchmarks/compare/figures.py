"""What one round of one contestant yields, as it travels between two processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from mrecordlog_async.bench.latency import quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One round.

    Attributes:
        records: acknowledged, read or opened in *seconds*; queues where the row creates queues.
        cpu_seconds: CPU time of the whole process in that time.
        p50: seconds per call, as p99 and longest; 0 where calls were not timed.
        commits: batches that were written in about that time; 0 where the contestant does not count them.
        written_bytes: bytes in those batches.
        raw_seconds: how long plain reads of the same files took, in rows that open a log.
    """

    records: int
    seconds: float
    cpu_seconds: float
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    commits: int = 0
    written_bytes: int = 0
    raw_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """CPU time per record."""
        return self.cpu_seconds * 1e6 / max(self.records, 1)

    def to_json(self) -> str:
        """Return the figures as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Figures:
        """Read what `to_json` returned."""
        return cls(**json.loads(line))


def measured(
    records: int,
    seconds: float,
    cpu_seconds: float,
    latencies: Sequence[float],
    *,
    commits: int,
    written_bytes: int,
) -> Figures:
    """Return the figures of calls whose *latencies* were timed."""
    ordered = sorted(latencies) or [0.0]
    return Figures(
        records=records,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        p50=median(ordered),
        p99=quantile(ordered, 0.99),
        longest=ordered[-1],
        commits=commits,
        written_bytes=written_bytes,
    )
