"""The report and the chart, from hand-made rows."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from tests.benchmarks.chart import svg
from tests.benchmarks.latency import Latencies
from tests.benchmarks.report import Report, amount, markdown, text, to_json
from tests.benchmarks.results import Point, Row, median_ratio

LATENCIES = Latencies.of([0.001, 0.002, 0.003])
ROWS = (
    Row(
        "callers",
        "10 callers | always",
        412_345.0,
        "records/s",
        raw=900_000.0,
        ratio=0.458,
        latency=LATENCIES,
        raw_latency=LATENCIES,
        cpu_microseconds=1.834,
        note="a note",
        histogram=True,
        point=Point("always", 10, 412_345.0),
    ),
    Row("memory", "1,000 × 100 B", 5.25, "B over payload"),
    Row("peers", "Redis", skipped="no redis-server on PATH"),
)
REPORT = Report("a machine", "a command", "uvloop", ROWS)
POINTS = [
    Point("always", 1, 5_000),
    Point("always", 1_000, 400_000),
    Point("never", 1, 21_000),
    Point("never & <none>", 1_000, 600_000),
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5.25, "5.2 x"), (99.94, "99.9 x"), (100, "100 x"), (9_999.4, "9,999 x"), (412_345, "412,000 x")],
)
def test_amounts_show_what_can_be_known(value: float, expected: str) -> None:
    """A large rate is rounded to three digits; the rest is noise."""
    assert amount(value, "x") == expected


def test_text_has_every_row_and_names_what_was_skipped() -> None:
    """The terminal shows everything that was measured or skipped."""
    lines = list(text(REPORT))
    assert any("412,000 records/s" in line and "46%" in line and "1.83" in line for line in lines)
    assert any(line.startswith("memory") and "5.2 B over payload" in line for line in lines)
    assert "skipped: peers, Redis: no redis-server on PATH" in lines
    assert "callers, 10 callers | always: a note" in lines
    assert sum("█" in line for line in lines) == 3


def test_columns_of_the_table_are_aligned() -> None:
    """The rate ends in the same column in every row."""
    table = [line for line in text(REPORT) if line.startswith(("workload ", "callers  ", "memory "))]
    ends = {line.index(word) + len(word) for line, word in zip(table, ("rate", "records/s", "payload"), strict=True)}
    assert len(ends) == 1


def test_markdown_tables_have_as_many_cells_in_every_row() -> None:
    """A `|` in a text does not break the table."""
    lines = list(markdown(REPORT))
    tables = [line for line in lines if line.startswith("|")]
    cells = [line.replace("\\|", "").count("|") for line in tables]
    assert cells == [12] * 4
    assert lines[0] == "`a command` on a machine; uvloop."


def test_json_holds_all_there_is() -> None:
    """A script gets every figure unrounded."""
    found = json.loads(to_json(REPORT))
    assert [row["workload"] for row in found["rows"]] == ["callers", "memory", "peers"]
    assert found["rows"][0]["value"] == 412_345.0
    assert found["rows"][0]["latency"]["p50"] == 0.002


def test_chart_is_well_formed_and_draws_a_line_for_each_policy() -> None:
    """An XML parser accepts it, names are escaped, and every point has a mark inside the picture."""
    document = ElementTree.fromstring(svg(POINTS, "a <machine> & its disk"))
    kind = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, document.attrib["viewBox"].split())
    lines = document.findall(f"{kind}polyline")
    places = [tuple(map(float, place.split(","))) for line in lines for place in line.attrib["points"].split()]
    assert len(lines) == 3 and len(places) == len(POINTS)
    assert all(0 < x < width and 0 < y < height for x, y in places)
    assert "a <machine> & its disk" in [found.text for found in document.iter(f"{kind}text")]
    assert "never & <none>" in [found.text for found in document.iter(f"{kind}text")]


def test_chart_rises_with_the_rate() -> None:
    """More appends per second are higher up, more callers further to the right."""
    document = ElementTree.fromstring(svg(POINTS, ""))
    line = document.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    (x1, y1), (x2, y2) = (map(float, place.split(",")) for place in line.attrib["points"].split())
    assert x2 > x1 and y2 < y1


def test_chart_of_a_single_point_is_a_chart() -> None:
    """One policy with one number of callers does not divide by zero."""
    assert ElementTree.fromstring(svg([Point("always", 1, 1_000)], "")).tag.endswith("svg")


def test_ratio_is_the_median_of_the_rounds() -> None:
    """One disturbed round does not move it."""
    assert median_ratio([10, 1, 12], [20, 1_000, 24]) == 0.5
