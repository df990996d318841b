"""Latencies: exact quantiles, and a histogram on a logarithmic scale for the terminal."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mrecordlog_async.bench.drive import duration, quantile

STEPS_PER_DECADE = 6
BAR_CELLS = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Quantiles of durations in seconds. buckets: (upper bound, count), bounds evenly spaced in the logarithm."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    longest: float
    buckets: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latencies:
        """Return the quantiles of *seconds*, which must not be empty."""
        ordered = sorted(seconds)
        p50, p90, p99, p999 = (quantile(ordered, fraction) for fraction in (0.5, 0.9, 0.99, 0.999))
        return cls(len(ordered), p50, p90, p99, p999, ordered[-1], tuple(_buckets(ordered)))


def draw(latencies: Latencies) -> Iterator[str]:
    """Yield the histogram line by line: upper bound, bar, share; then the quantiles."""
    most = max(count for _, count in latencies.buckets)
    for bound, count in latencies.buckets:
        share = 100 * count / latencies.count
        yield f"{'≤ ' + duration(bound):>10}  {bar(count / most):<{BAR_CELLS}}  {share:6.2f} %"
    yield "  ·  ".join(
        f"{name} {duration(value)}"
        for name, value in (
            ("p50", latencies.p50),
            ("p90", latencies.p90),
            ("p99", latencies.p99),
            ("p99.9", latencies.p999),
            ("longest", latencies.longest),
        )
    )


def bar(fraction: float) -> str:
    """Return a bar of up to `BAR_CELLS` cells in eighths; any positive fraction shows."""
    eighths = round(fraction * BAR_CELLS * 8)
    if fraction > 0:
        eighths = max(eighths, 1)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).strip()


def _buckets(ordered: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Count values up to each bound; bounds between the first and the last without a value have 0."""
    below = 0
    for step in range(_step(ordered[0]), _step(ordered[-1]) + 1):
        bound = 10 ** (step / STEPS_PER_DECADE)
        upto = bisect_right(ordered, bound * (1 + 1e-9))
        yield bound, upto - below
        below = upto


def _step(seconds: float) -> int:
    return math.ceil(math.log10(max(seconds, 1e-9)) * STEPS_PER_DECADE - 1e-9)
