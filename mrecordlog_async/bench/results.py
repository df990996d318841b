"""What a workload hands back: rows, each with its figures and the targets it was held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mrecordlog_async.bench.latency import Latencies

US = 1e6
"""Microseconds in a second."""


@dataclass(frozen=True, slots=True)
class Check:
    """A target in words, what was measured against it, and whether that is enough."""

    target: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the chart: appends a second by *callers* under *policy*."""

    policy: str
    callers: int
    rate: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    value and raw are in *unit*; raw is the raw disk (or what `raw_is` names) in the same rounds, and ratio the median
    of the rounds' value over raw. cpu_microseconds: process CPU for one record. skipped: why nothing was measured;
    failed: because something broke.
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
    cpu_microseconds: float | None = None
    checks: tuple[Check, ...] = ()
    note: str = ""
    skipped: str = ""
    failed: bool = False
    histogram: bool = False
    point: Point | None = None


class NotReadBackError(AssertionError):
    """What was acknowledged is not what the files hold: the store under test is wrong, or the bench is."""


def at_least(target: str, value: float, wanted: float, measured: str) -> Check:
    """Hold *value* against a floor."""
    return Check(target, measured, value >= wanted)


def at_most(target: str, value: float, wanted: float, measured: str) -> Check:
    """Hold *value* against a ceiling."""
    return Check(target, measured, value <= wanted)


def median_ratio(values: Sequence[float], bases: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(value / base for value, base in zip(values, bases, strict=True))
