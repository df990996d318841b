"""Writing a run into the documentation, from hand-made rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.latency import Latencies
from tests.benchmarks.publish import BEGIN, END, FULL_RUN, MISSED, PERFORMANCE, publish, with_measured
from tests.benchmarks.report import Report
from tests.benchmarks.results import Point, Row
from tests.benchmarks.targets import Check, judged

MET, NOT_MET = Check("≥ 400,000 records/s", "412,345", True), Check("≤ 1.0 µs", "1.83 µs", False)
OPEN = Check("≥ 1.1 × LMDB", "1.08 × (0.90 to 1.30)", None)
ROWS = (
    judged(
        Row(
            "callers",
            "10 callers",
            412_345.0,
            "records/s",
            latency=Latencies.of([0.001, 0.002, 0.003]),
            point=Point("always", 10, 412_345.0),
        ),
        *(MET, NOT_MET, OPEN),
    ),
    Row("memory", "1,000 × 100 B, appended in batches", 5.25, "B over payload"),
    Row("recovery", "1,000 × 1 KiB, 7 segments", 500.0, "MB/s"),
)
REPORT = Report("a machine", "a command", "uvloop", ROWS)
PAGE = f"by hand, before\n{BEGIN}of another run\n{END}by hand, after\n"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Return a directory with the pages that have a place for figures."""
    (tmp_path / "benchmarks").mkdir()
    for name in (PERFORMANCE, MISSED):
        (tmp_path / name).write_text(PAGE)
    return tmp_path


def test_each_page_has_what_it_is_for(docs: Path) -> None:
    """Users get their tables first; all rows and targets are on the page for developers; old figures are gone."""
    publish(REPORT, str(docs))
    full_run, performance, missed = ((docs / name).read_text() for name in (FULL_RUN, PERFORMANCE, MISSED))
    assert "10 callers" in full_run and "a machine" in full_run
    assert all(check.target in full_run and check.target not in performance for check in (MET, NOT_MET, OPEN))
    assert "met 1, [missed 1]" in performance and "did not decide 1." in performance
    assert MET.target not in missed
    assert missed.index(NOT_MET.target) < missed.index("Not decided") < missed.index(OPEN.target)
    assert "of another run" not in performance + missed


def test_the_page_begins_with_the_tables_for_users(docs: Path) -> None:
    """Callers, appends per second and latencies; memory per record; seconds per GB opened."""
    publish(REPORT, str(docs))
    lines = (docs / PERFORMANCE).read_text().split(BEGIN)[1].splitlines()
    assert lines[1].startswith("| callers, each with one record of 100 B | appends per second | p50 | p99 |")
    assert lines[3] == "| 10 | 412,000 | 2.00 ms | 3.00 ms |"
    assert "| memory per record of 1,000 × 100 B, appended in batches, over its bytes | 5.2 B |" in lines
    assert "| opening 1 GB of records, 1,000 × 1 KiB, 7 segments | 2.00 s |" in lines


def test_what_was_not_measured_is_named(docs: Path) -> None:
    """A short run, or a workload that failed, leaves no empty table."""
    publish(replace(REPORT, rows=()), str(docs))
    assert (docs / PERFORMANCE).read_text().count("not measured") == 2


def test_text_around_the_figures_stays(docs: Path) -> None:
    """What was written by hand outlives every run."""
    publish(REPORT, str(docs))
    publish(replace(REPORT, rows=()), str(docs))
    page = (docs / MISSED).read_text()
    assert page.startswith("by hand, before\n") and page.endswith("by hand, after\n")
    assert page.count(BEGIN) == 1 and "missed no target" in page and "decided every target" in page


def test_page_without_a_place_is_refused() -> None:
    """A page that lost its marks is not overwritten."""
    with pytest.raises(ValueError, match="one place"):
        with_measured("by hand\n", ())


@pytest.mark.parametrize("name", [PERFORMANCE, MISSED])
def test_documentation_has_a_place(name: str) -> None:
    """A full run of many minutes does not end with a page that cannot be written."""
    with_measured((DOCS / name).read_text(encoding="utf-8"), ())
