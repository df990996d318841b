"""What a workload returns: rows, each with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.latency import Latencies


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the chart: appends per second by *callers* under *policy*."""

    policy: str
    callers: int
    rate: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        value: the figure, in *unit*.
        raw: the raw disk's figure in the same rounds, in *unit*; the note says where it is something else.
        ratio: median of the rounds' value over raw.
        rates: value of each round.
        ratios: value over raw of each round.
        latency_ratio: median of the rounds' p50 over the raw disk's p50.
        latency_ratios: the p50 over the raw disk's of each round.
        fresh_ratios: value over that of a raw disk whose blocks were never written, of each round.
        cpu_microseconds: CPU time of the process per record.
        skipped: why nothing was measured; *failed* if that is an error.
        histogram: whether the report draws the latencies.
    """

    workload: str
    what: str
    value: float = 0.0
    unit: str = ""
    raw: float | None = None
    ratio: float | None = None
    latency: Latencies | None = None
    raw_latency: Latencies | None = None
    latency_ratio: float | None = None
    rates: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    latency_ratios: tuple[float, ...] = ()
    fresh_ratios: tuple[float, ...] = ()
    cpu_microseconds: float | None = None
    note: str = ""
    skipped: str = ""
    failed: bool = False
    histogram: bool = False
    point: Point | None = None


class NotReadBackError(AssertionError):
    """The files do not hold what was acknowledged: the store under test is wrong, or the bench is."""


def median_ratio(values: Sequence[float], bases: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(value / base for value, base in zip(values, bases, strict=True))
