"""Writing a run into the documentation, from hand-made rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.publish import BEGIN, END, FULL_RUN, MISSED, PERFORMANCE, publish, with_measured
from tests.benchmarks.report import Report
from tests.benchmarks.results import Row
from tests.benchmarks.targets import Check, judged

MET, NOT_MET = Check("≥ 400,000 records/s", "412,345", True), Check("≤ 1.0 µs", "1.83 µs", False)
ROWS = (judged(Row("callers", "10 callers", 412_345.0, "records/s"), MET, NOT_MET),)
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


def test_pages_get_all_rows_all_targets_and_the_missed_ones(docs: Path) -> None:
    """Each page has what it is for; figures of the run before are gone."""
    publish(REPORT, str(docs))
    full_run, performance, missed = ((docs / name).read_text() for name in (FULL_RUN, PERFORMANCE, MISSED))
    assert "10 callers" in full_run and "a machine" in full_run
    assert all(check.target in page for check in (MET, NOT_MET) for page in (full_run, performance))
    assert NOT_MET.target in missed and MET.target not in missed
    assert "of another run" not in performance + missed


def test_text_around_the_figures_stays(docs: Path) -> None:
    """What was written by hand outlives every run."""
    publish(REPORT, str(docs))
    publish(replace(REPORT, rows=()), str(docs))
    page = (docs / MISSED).read_text()
    assert page.startswith("by hand, before\n") and page.endswith("by hand, after\n")
    assert page.count(BEGIN) == 1 and "every target" in page


def test_page_without_a_place_is_refused() -> None:
    """A page that lost its marks is not overwritten."""
    with pytest.raises(ValueError, match="one place"):
        with_measured("by hand\n", ())


@pytest.mark.parametrize("name", [PERFORMANCE, MISSED])
def test_documentation_has_a_place(name: str) -> None:
    """A full run of many minutes does not end with a page that cannot be written."""
    with_measured((DOCS / name).read_text(encoding="utf-8"), ())
