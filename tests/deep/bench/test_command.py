"""`mrecordlog bench` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mrecordlog_async", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_quick_run_prints_one_table_and_leaves_no_file(tmp_path: Path) -> None:
    """The table is alone on standard output, with a line for each number of callers; progress is on standard error."""
    done = run("--quick", str(tmp_path))
    assert done.returncode == 0, done.stderr
    machine, disk, blank, head, *lines = done.stdout.splitlines()
    assert "file system" in machine and disk.startswith("the disk alone, 4 KiB and a sync: p50 ") and not blank
    assert head.split()[:2] == ["callers", "appends/s"]
    assert [line.split()[0] for line in lines] == ["1", "10", "100", "1,000"]
    assert done.stderr.splitlines() == ["1 caller", "10 callers", "100 callers", "1,000 callers"]
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_figure_of_the_table(tmp_path: Path) -> None:
    """A script reads rates and seconds unrounded."""
    done = run("--quick", str(tmp_path), "--json", "--gc-threshold", "20000")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["sync_p50_seconds"] <= found["sync_p99_seconds"]
    for speed in found["speeds"]:
        assert speed["appends_per_second"] > 0 and speed["syncs"] > 0
        assert 0 < speed["p50_seconds"] <= speed["p99_seconds"]


def test_a_missing_directory_is_named_itself(tmp_path: Path) -> None:
    """The error does not name the temporary directory that was to be created in it."""
    done = run(str(tmp_path / "absent"))
    assert done.returncode == 1
    assert str(tmp_path / "absent") in done.stderr and "mrecordlog-bench-" not in done.stderr


def test_threshold_of_zero_is_wrong_usage(tmp_path: Path) -> None:
    """The error comes before anything is measured."""
    done = run(str(tmp_path), "--gc-threshold", "0")
    assert done.returncode == 2 and "--gc-threshold" in done.stderr and "caller" not in done.stderr
