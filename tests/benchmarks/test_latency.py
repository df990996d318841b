"""Quantiles and histograms, against sums done by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mrecordlog_async.bench.drive import duration, quantile
from tests.benchmarks.latency import BAR_CELLS, Latencies, bar, draw


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.001, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.9, 90), (0.99, 99), (1.0, 100)]
)
def test_quantile_is_the_smallest_value_that_the_fraction_does_not_exceed(fraction: float, expected: int) -> None:
    """No interpolation: a quantile is a value that was measured."""
    assert quantile(range(1, 101), fraction) == expected


def test_quantile_of_one_value_is_that_value() -> None:
    """A single measurement is its own median and its own p99.9."""
    assert {quantile([7.0], fraction) for fraction in (0.0, 0.5, 0.999, 1.0)} == {7.0}


def test_latencies_do_not_depend_on_the_order() -> None:
    """Measurements come as they come."""
    values = [0.001 * number for number in range(1, 1001)]
    assert Latencies.of(values) == Latencies.of(values[::-1])


def test_buckets_hold_every_value_once_below_their_bound() -> None:
    """The histogram counts what was measured: all of it, each value in the first bucket that reaches it."""
    values = [10 ** (exponent / 7) for exponent in range(-40, 3)] * 3 + [0.001, 0.01, 1.0]
    buckets = Latencies.of(values).buckets
    below = 0.0
    for bound, count in buckets:
        assert count == sum(below < value * (1 - 1e-12) <= bound for value in values), bound
        below = bound
    assert sum(count for _, count in buckets) == len(values)


def test_bounds_are_evenly_spaced_in_the_logarithm() -> None:
    """A decade always has as many rows, so the shape of two histograms can be compared."""
    bounds = [bound for bound, _ in Latencies.of([1e-5, 1e-2]).buckets]
    ratios = [after / before for before, after in pairwise(bounds)]
    assert len(bounds) == 3 * 6 + 1
    assert ratios == pytest.approx([10 ** (1 / 6)] * len(ratios))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (87.12e-6, "87.1 µs"),
        (0.0, "0.00 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1.00 ms"),
        (1.239e-3, "1.24 ms"),
        (0.0213, "21.3 ms"),
        (0.99951, "1.00 s"),
        (3.021, "3.02 s"),
        (110, "110 s"),
    ],
)
def test_durations_have_three_digits(seconds: float, expected: str) -> None:
    """Units change where three digits would not do."""
    assert duration(seconds) == expected


def test_histogram_shows_the_fullest_bucket_whole_and_every_value() -> None:
    """One slow call among thousands still has a mark."""
    lines = list(draw(Latencies.of([0.001] * 9_999 + [1.0])))
    assert lines[0].count("█") == BAR_CELLS
    assert "99.99 %" in lines[0] and "▏" in lines[-2]
    assert lines[-1] == "p50 1.00 ms  ·  p90 1.00 ms  ·  p99 1.00 ms  ·  p99.9 1.00 ms  ·  longest 1.00 s"


def test_bar_grows_with_its_fraction() -> None:
    """Nothing is empty, anything shows, all is full."""
    lengths = [len(bar(step / 100)) for step in range(101)]
    assert bar(0) == "" and bar(1e-9) == "▏" and bar(1) == "█" * BAR_CELLS
    assert lengths == sorted(lengths)
