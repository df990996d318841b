"""Histograms: what a quantile says, and that it never says more than is known."""

from __future__ import annotations

from math import inf

import pytest

from mrecordlog_async.metrics import SECONDS_BOUNDS, Histogram


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.00005, 0.00005), (0.0001, 0.0001), (2.0, 3.2768), (52.0, 52.4288), (53.0, inf)]
)
def test_quantile_is_an_upper_bound(seconds: float, expected: float) -> None:
    """Of the bucket that the value is in; above the last one there is none."""
    histogram = Histogram(SECONDS_BOUNDS)
    histogram.observe(seconds, 100)
    assert histogram.quantile(0.5) == histogram.quantile(1.0) == pytest.approx(expected)


def test_quantile_of_nothing_is_zero() -> None:
    """A log that has just been opened has no times."""
    assert Histogram(SECONDS_BOUNDS).quantile(0.99) == 0
