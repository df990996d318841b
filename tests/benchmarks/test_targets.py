"""Targets, and the report that lists them, from hand-made rows."""

from __future__ import annotations

import json

from tests.benchmarks.report import Report, markdown, text, to_json
from tests.benchmarks.results import Row
from tests.benchmarks.targets import Check, at_least, at_most, judged

CHECKS = (Check("≥ 400,000 records/s", "412,345", True), Check("≤ 1.0 µs", "1.83 µs", False))
ROWS = (judged(Row("callers", "10 callers | always", 412_345.0, "records/s"), *CHECKS), Row("memory", "", 5.0, "B"))
REPORT = Report("a machine", "a command", "uvloop", ROWS)


def test_text_separates_targets_that_were_met_from_those_that_were_missed() -> None:
    """A missed target stands out."""
    verdicts = [line.rsplit("  ", 1)[-1].strip() for line in text(REPORT) if line.startswith(("≥", "≤"))]
    assert verdicts == ["yes", "NO"]


def test_markdown_has_a_table_of_the_targets() -> None:
    """Every target is a row of three cells."""
    tables = [line for line in markdown(REPORT) if line.startswith("|")]
    assert [line.replace("\\|", "").count("|") for line in tables] == [12] * 4 + [4] * 4


def test_json_holds_the_checks_of_a_row() -> None:
    """A script can read which target was missed."""
    found = json.loads(to_json(REPORT))
    assert found["rows"][0]["checks"][1] == {"target": "≤ 1.0 µs", "measured": "1.83 µs", "met": False}
    assert "checks" not in found["rows"][1]


def test_judged_row_keeps_its_figures() -> None:
    """Only checks are added."""
    assert (ROWS[0].workload, ROWS[0].value, ROWS[0].unit) == ("callers", 412_345.0, "records/s")


def test_checks_include_their_bounds() -> None:
    """A target that is just reached is met."""
    assert at_least("", 2.0, 2.0, "").met and at_most("", 2.0, 2.0, "").met
    assert not at_least("", 1.9, 2.0, "").met and not at_most("", 2.1, 2.0, "").met
