"""`mrecordlog bench` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from mrecordlog_async.bench.suite import WORKLOADS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mrecordlog_async", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_list_names_every_workload() -> None:
    """What --only takes."""
    done = run("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [workload.name for workload in WORKLOADS]


def test_quick_run_of_one_workload_reports_json_and_progress(tmp_path: Path) -> None:
    """The report is on standard output alone; how far it is stands on standard error; nothing is left behind."""
    done = run("--quick", "--dir", str(tmp_path), "--only", "truncate", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["command"] == "mrecordlog bench --quick --only truncate"
    assert {row["workload"] for row in report["rows"]} == {"truncate"} and len(report["rows"]) == 4
    assert "truncating" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_workload_is_wrong_usage(tmp_path: Path) -> None:
    """Nothing is run."""
    done = run("--dir", str(tmp_path), "--only", "everything")
    assert done.returncode == 2 and "no workload is called everything" in done.stderr


def test_svg_without_the_callers_is_wrong_usage(tmp_path: Path) -> None:
    """It is said before anything is measured."""
    done = run("--dir", str(tmp_path), "--only", "truncate", "--svg", str(tmp_path / "chart.svg"))
    assert done.returncode == 2 and "callers" in done.stderr
    assert "truncating" not in done.stderr


def test_quick_run_of_the_callers_draws_them(tmp_path: Path) -> None:
    """A line for each policy, and the report as Markdown beside it."""
    chart = tmp_path / "chart.svg"
    done = run("--quick", "--dir", str(tmp_path), "--only", "callers", "--svg", str(chart), "--markdown")
    assert done.returncode == 0, done.stderr
    lines = ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3
    assert "| callers | 1,000 callers, 100 B, always |" in done.stdout
