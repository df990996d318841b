"""Histograms: what a quantile says, and that it never says more than is known."""

from __future__ import annotations

from dataclasses import fields
from math import inf

import pytest

from mrecordlog_async.metrics import (
    COUNTERS,
    OF_A_CONSUMER,
    OF_A_QUEUE,
    SECONDS_BOUNDS,
    STATE,
    USAGE,
    Counters,
    Histogram,
)
from mrecordlog_async.model import ConsumerSummary, QueueSummary, ResourceUsage


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


def test_every_number_of_the_log_is_in_the_table() -> None:
    """A counter that is added to `Counters` and to no row would be kept for nobody; names are not used twice."""
    assert {one.key for one in COUNTERS} == {one.name for one in fields(Counters)} - {"last_minute"}  # no sum of all
    assert {one.key for one in USAGE} <= {one.name for one in fields(ResourceUsage)}
    assert {one.key for one in OF_A_QUEUE} <= set(dir(QueueSummary))
    assert {one.key for one in OF_A_CONSUMER} <= {one.name for one in fields(ConsumerSummary)}
    names = [one.name for table in (COUNTERS, USAGE, STATE, OF_A_QUEUE, OF_A_CONSUMER) for one in table if one.name]
    assert len(names) == len(set(names))
