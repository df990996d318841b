"""Figures for people: exact quantiles, and times with three digits."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the smallest of the ascending values that *fraction* of all values do not exceed."""
    return ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)]


def duration(seconds: float) -> str:
    """Return a time for people, three digits: 87.1 µs, 1.24 ms, 3.02 s."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
