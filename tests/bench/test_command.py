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
    """These are the names that --only accepts."""
    done = run("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [workload.name for workload in WORKLOADS]


def test_quick_run_of_one_workload_reports_json_and_progress(tmp_path: Path) -> None:
    """The report is alone on standard output, progress goes to standard error, and no file is left."""
    done = run("--quick", str(tmp_path), "--only", "sizes", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["command"] == "mrecordlog bench --quick --only sizes"
    assert {row["workload"] for row in report["rows"]} == {"sizes"} and len(report["rows"]) == 4
    assert "16 callers" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unknown_workload_is_wrong_usage(tmp_path: Path) -> None:
    """Nothing runs."""
    done = run(str(tmp_path), "--only", "everything")
    assert done.returncode == 2 and "unknown workload everything" in done.stderr


def test_svg_without_the_callers_is_wrong_usage(tmp_path: Path) -> None:
    """The error comes before anything is measured."""
    done = run(str(tmp_path), "--only", "sizes", "--svg", str(tmp_path / "chart.svg"))
    assert done.returncode == 2 and "callers" in done.stderr
    assert "16 callers" not in done.stderr


def test_quick_run_of_the_callers_draws_them(tmp_path: Path) -> None:
    """The chart has one line per policy, and the report is Markdown."""
    chart = tmp_path / "chart.svg"
    done = run("--quick", str(tmp_path), "--only", "callers", "--svg", str(chart), "--markdown")
    assert done.returncode == 0, done.stderr
    lines = ElementTree.parse(chart).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3
    assert "| callers | 1,000 callers, 100 B, always |" in done.stdout
