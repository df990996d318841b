"""The site builds, and what it says about the code is true."""

from __future__ import annotations

import csv
import html
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mrecordlog_async
from tests.compatibility import surface
from tests.docs.blocks import ROOT

PACKAGE = ROOT / "mrecordlog_async"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once."""
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None or find_spec("material") is None:
        pytest.skip("the generator of the site is not installed: pip install -e '.[docs]'")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_000, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_the_site_builds_without_a_warning(site: Path) -> None:
    """Every link leads somewhere, and every page is in the navigation."""
    assert (site / "index.html").exists()
    assert "generated:" not in "".join(page.read_text() for page in site.rglob("*.html"))
    assert [path.name for path in site.rglob("*.py*")] == []  # nor what Python compiled of the hooks


def test_the_reference_has_every_setting_and_metric(site: Path) -> None:
    """What `serve --help` and `/metrics` show is in the tables."""
    from mrecordlog_async.cli.settings import SETTINGS
    from mrecordlog_async.metrics import COUNTERS, OF_A_CONSUMER, OF_A_QUEUE, STATE, USAGE
    from mrecordlog_async.protocol.metric_text import PREFIX
    from mrecordlog_async.service.watching import prometheus

    settings = (site / "reference/settings/index.html").read_text()
    assert all(f"MRECORDLOG_{one.name.upper()}" in settings for one in SETTINGS)
    metrics = (site / "reference/metrics/index.html").read_text()
    tables = (COUNTERS, USAGE, STATE, OF_A_QUEUE, OF_A_CONSUMER, prometheus.SERVICE, prometheus.REQUESTS)
    assert all(f"{PREFIX}{series.name}" in metrics for table in tables for series in table)
    labels = dict(re.findall(r"<code>(\w+)</code></td>\s*<td>\w+</td>\s*<td>([\w, ]*)</td>", metrics))
    assert labels["mrecordlog_consumer_waiting_records"] == "consumer, queue"
    assert labels["mrecordlog_http_problems_total"] == "status"  # which a service shows after its first problem


def test_the_reference_has_every_route_and_error(site: Path) -> None:
    """Each route of the service and each class of error has a section."""
    from mrecordlog_async import errors
    from mrecordlog_async.service.routes.openapi import TABLE

    routes = (site / "reference/http/index.html").read_text()
    assert all(f"{route.method} {route.path}" in routes for route in TABLE)
    classes = [name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")]
    shown = (site / "reference/errors/index.html").read_text()
    assert len(classes) > 8
    assert all(f"mrecordlog_async.errors.{name}" in shown for name in classes)


def test_the_reference_has_every_problem_code() -> None:
    """A client finds each code that it may get, with its status, on the page of the errors."""
    hooks = surface.hooks()
    page = (ROOT / "docs/reference/errors.md").read_text() + hooks.error_statuses()
    rows = [row for row in page.splitlines() if row.startswith("|")]
    codes = [line for line in surface.surface()["problem codes"] if " " in line]
    assert len(codes) > 30
    assert [code for code in codes if not any(_shows(row, *code.split()) for row in rows)] == []


def _shows(row: str, status: str, code: str) -> bool:
    return status in row and f"`{code}`" in row


def test_the_reference_has_methods_that_are_overloaded(site: Path) -> None:
    """`append` has one signature with and one without a position; each class that has it shows both."""
    page = (site / "reference/api/index.html").read_text()
    owners = ("MultiRecordLog", "RecordLog", "client.RecordLogClient")
    shown = [f"mrecordlog_async.{owner}.{name}" for owner in owners for name in ("append", "append_record")]
    assert [name for name in shown if f'id="{name}"' not in page] == []


def test_the_comparison_has_the_measured_rows(site: Path) -> None:
    """Every row of other stores in the full run is on the page."""
    with (ROOT / "tests/benchmarks/full_run.csv").open() as file:
        peers = [row for row in csv.DictReader(file) if row["workload"] == "peers"]
    rows = [(row["what"].partition(",")[0], row["rate"].removesuffix(" records/s")) for row in peers]
    page = (site / "comparison/index.html").read_text()
    assert rows and all(f"<td>{store}</td>\n<td>{rate}</td>" in page for store, rate in rows)


def test_the_reference_has_everything_that_the_clients_export() -> None:
    """Every public name of the clients is on the page of the API or on that of the errors."""
    from mrecordlog_async import client

    pages = "".join((ROOT / "docs/reference" / page).read_text() for page in ("api.md", "errors.md"))
    named = set(re.findall(r"^::: mrecordlog_async\.client\.(\w+)$", pages, re.MULTILINE))
    assert set(client.__all__) == named


def test_the_reference_has_everything_that_the_package_exports() -> None:
    """Every public name of the package is on the API page or is an error."""
    page = (ROOT / "docs/reference/api.md").read_text()
    named = set(re.findall(r"^::: mrecordlog_async\.(\w+)$", page, re.MULTILINE))
    assert {name for name in mrecordlog_async.__all__ if not name.endswith("Error")} - {"__version__"} <= named


def test_the_reference_orders_all_methods_of_a_log() -> None:
    """The API page names each public member of a log once, by what a reader wants to do."""
    page = (ROOT / "docs/reference/api.md").read_text()
    listed = re.findall(r"^::: mrecordlog_async\.MultiRecordLog\.(\w+)$", page, re.MULTILINE)
    assert listed[0] == "open"
    assert sorted(listed) == [name for name in dir(mrecordlog_async.MultiRecordLog) if not name.startswith("_")]


def test_the_table_of_methods_is_true() -> None:
    """The page of the client names each method for exactly those of log and clients that have it."""
    from mrecordlog_async import client

    classes = (mrecordlog_async.MultiRecordLog, client.RecordLogClient, client.BlockingRecordLogClient)
    table = (ROOT / "docs/client.md").read_text().partition("| method |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) > 6
    for row in rows:
        wanted = tuple(cell != "no" for cell in row[1:])
        for method in re.findall(r"`(\w+)`", row[0]):
            assert tuple(hasattr(each, method) for each in classes) == wanted, method


def rooms_and_tests() -> str:
    """Return the table of the rooms, with the line about tests of no room below it."""
    return (ROOT / "CONTRIBUTING.md").read_text().partition("## The rooms")[2].partition("\n## ")[0]


def test_contributing_names_every_room() -> None:
    """Its table lists exactly the rooms that exist."""
    named = set(re.findall(r"`(\w+)(?:/|\.py)`", rooms_and_tests()))
    rooms = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    private = {"__init__", "__main__", "__pycache__"}
    assert rooms - private <= named
    inside = {path.stem for path in PACKAGE.rglob("*") if path.is_dir()}
    assert named <= rooms | inside | {"os_filesystem"}


def test_contributing_names_tests_that_exist() -> None:
    """Each folder and file of tests that the table of the rooms names exists, and each folder with tests is named."""
    named = set(re.findall(r"`(tests/[\w/.]+)`", rooms_and_tests()))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    with_tests = {path.parent for layer in ("tests", "tests/deep") for path in (ROOT / layer).glob("*/test_*.py")}
    assert {str(path.relative_to(ROOT)) for path in with_tests} - {"tests/deep"} <= named


def test_the_pages_state_how_many_bugs_are_seeded() -> None:
    """Each says a round number that is still true, and not much below the real one."""
    from tests.deep.gate.table import read_bugs

    for page in ("docs/durability.md", "CONTRIBUTING.md"):
        stated = re.findall(r"more than (\d+) bugs", (ROOT / page).read_text())
        assert stated and all(int(number) < len(read_bugs()) <= int(number) + 100 for number in stated), page


def test_links_of_the_readme_lead_somewhere() -> None:
    """Every target of a link in the README exists; mkdocs checks the links of the other pages."""
    for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link


def test_sections_that_the_readme_links_to_exist(site: Path) -> None:
    """mkdocs checks the anchors of its own pages; those of the README are on the site, too."""
    linked = re.findall(r"\]\(docs/([\w/]+)\.md#([\w-]+)\)", (ROOT / "README.md").read_text())
    assert linked
    assert [one for one in linked if f'id="{one[1]}"' not in (site / one[0] / "index.html").read_text()] == []


FRONT_PAGE = "index.html"
TASKS = {
    "store a click in FastAPI before the response is sent": 'await log.append("clicks"',
    "let four uvicorn workers share a log": "--uds ./wal.sock",
    "find out why appends get 429": "code: log_full",
    "know how much memory to give the service": "300 MiB",
    "know what survives a power cut": "what the operating system had not written yet",
    "store each record once in SQL": "INSERT OR IGNORE",
    "restore a backup": "To restore, serve the snapshot in place of the log",
    "drain several logs into a Delta table": "Give --server once for each log",
    "test an application for crash safety": "log = await crash(memory_log, seed)",
}
"""Task of a reader → text of the place that solves it."""


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_found_in_two_clicks_from_the_front_page(site: Path, task: str) -> None:
    """A reader who follows links in the text, not the navigation or the search, gets there with two of them."""
    first = _linked(site, FRONT_PAGE)
    reached = first | {page for one in first for page in _linked(site, one)}
    found = [page for page in reached if TASKS[task] in _text(site / page)]
    assert found, f"no page within two clicks has {TASKS[task]!r}"


def _article(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]


def _linked(site: Path, page: str) -> set[str]:
    """Return the pages that the text of *page* links to."""
    targets = re.findall(r'<a href="([^":#?]+)(?:#[^"]*)?"', _article(site / page))
    paths = [os.path.normpath(os.path.join(os.path.dirname(page), target)) for target in targets]
    return {f"{path}/index.html" for path in paths if (site / path / "index.html").exists()}


def _text(path: Path) -> str:
    """Return what a reader sees of a page, without the colors of its code."""
    return html.unescape(re.sub(r"<[^>]+>", "", _article(path)))


def test_the_site_has_the_files_that_the_deploy_page_names(site: Path) -> None:
    """Each file of examples/deploy can be opened from the site."""
    names = {path.name for path in (ROOT / "examples/deploy").iterdir()}
    assert {path.name.removesuffix(".txt") for path in (site / "deploy").glob("*.txt")} == names
    assert "StateDirectory=mrecordlog" in (site / "deploy/mrecordlog.service.txt").read_text()


def test_the_table_of_errors_names_errors_that_exist() -> None:
    """Each code with its status, and each class of error, in its first column is one that a user can meet."""
    from mrecordlog_async import client, errors

    section = (ROOT / "docs/operations.md").read_text().partition("## Errors that programs get")[2]
    headings = re.findall(r"^\| (.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    classes = {name for heading in headings for name in re.findall(r"`(\w+Error)`", heading)}
    assert len(classes) >= 5 and all(hasattr(errors, name) or hasattr(client, name) for name in classes - {"TypeError"})
    known = set(surface.surface()["problem codes"])
    named = {f"{status} {code}" for heading in headings for status, code in re.findall(r"^(\d{3}) `(\w+)`", heading)}
    assert len(named) >= 7 and named <= known
