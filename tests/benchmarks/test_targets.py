"""Targets, and the report that lists them, from hand-made rows."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from tests.benchmarks import neighbors
from tests.benchmarks.neighbors import Neighbors
from tests.benchmarks.report import Report, markdown, text, to_json
from tests.benchmarks.results import Row
from tests.benchmarks.targets import (
    Check,
    at_least,
    at_most,
    checks_of,
    judged,
    rounds_at_least,
    rounds_at_most,
    under_noise,
)

CHECKS = (
    Check("≥ 400,000 records/s", "412,345", True),
    Check("≤ 1.0 µs", "1.83 µs", False, of_times=True),
    Check("≥ 1.1 × LMDB", "1.08 × (0.90 to 1.30)", None),
)
ROWS = (judged(Row("callers", "10 callers | always", 412_345.0, "records/s"), *CHECKS), Row("memory", "", 5.0, "B"))
REPORT = Report("a machine", "a command", "uvloop", ROWS)


def test_text_separates_targets_that_were_met_from_those_that_were_missed() -> None:
    """A missed target stands out."""
    verdicts = [line.rsplit("  ", 1)[-1].strip() for line in text(REPORT) if line.startswith(("≥", "≤"))]
    assert verdicts == ["yes", "NO", "not decided"]


def test_markdown_has_a_table_of_the_targets() -> None:
    """Every target is a row of three cells."""
    tables = [line for line in markdown(REPORT) if line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in tables] == [12] * 4 + [4] * 5


def test_json_holds_the_checks_of_a_row() -> None:
    """A script can read which target was missed."""
    found = json.loads(to_json(REPORT))
    expected = {"target": "≤ 1.0 µs", "measured": "1.83 µs", "met": False, "of_times": True}
    assert found["rows"][0]["checks"][1] == expected
    assert "checks" not in found["rows"][1]


def test_judged_row_keeps_its_figures() -> None:
    """Only checks are added."""
    assert (ROWS[0].workload, ROWS[0].value, ROWS[0].unit) == ("callers", 412_345.0, "records/s")


def test_checks_include_their_bounds() -> None:
    """A target that is just reached is met."""
    assert at_least("", 2.0, 2.0, "").met and at_most("", 2.0, 2.0, "").met
    assert not at_least("", 1.9, 2.0, "").met and not at_most("", 2.1, 2.0, "").met


@pytest.mark.parametrize(
    ("ratios", "met"), [([1.2, 1.1, 1.3], True), ([0.9, 1.0, 1.05], False), ([0.9, 1.2, 1.3], None), ([1.1] * 3, True)]
)
def test_the_range_of_the_rounds_decides(ratios: list[float], met: bool | None) -> None:
    """All of it reaches the target, or none of it does; otherwise the run has not decided."""
    assert rounds_at_least("", ratios, 1.1).met is met
    assert rounds_at_most("", [1 / ratio for ratio in ratios], 1 / 1.1).met is met


def test_a_ratio_is_shown_with_its_range() -> None:
    """One sees what a target rests on."""
    assert rounds_at_least("", [1.2, 1.0, 1.1], 1.0, " LMDB").measured == "1.10 × (1.00 to 1.20) LMDB"


def test_a_busy_machine_does_not_decide_a_target_in_seconds() -> None:
    """It may be missed because of others. A target that is met stays so, and so does a ratio."""
    row = judged(Row("", ""), *CHECKS, Check("", "", False))
    assert [check.met for check in checks_of((under_noise(row, 0.05),))] == [True, False, None, False]
    noisy = checks_of((under_noise(row, 0.5),))
    assert [check.met for check in noisy] == [True, None, None, False]
    assert noisy[1].measured == "1.83 µs, while other programs took 50% of the CPUs"


def test_other_programs_are_seen_and_own_ones_are_not() -> None:
    """The time of this process and of its children does not count."""
    times = [(100.0, 10.0, 5.0), (110.0, 18.0, 9.0)]
    with patch.object(neighbors, "_now", lambda: times.pop(0)), Neighbors() as found:
        pass
    assert found.share == pytest.approx(0.4)
    with Neighbors() as now:
        sum(range(100_000))
    assert 0.0 <= now.share <= 1.0
