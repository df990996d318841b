"""Try one bug: a copy of the source with the bug in it, and pytest on stages of tests until one of them finds it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .table import ROOT, BrokenBug, Bug

LIMIT_SECONDS = 600
"""The clock limit of a bug."""

COPIED = ("mrecordlog_async", "tests", "docs", "examples", "pyproject.toml", "pyspark_mrecordlog.py", "README.md")
"""What tests near a room read. The files of the repository itself are never changed."""

NEAR = {
    "cli": ("cli",),
    "client": ("client",),
    "compiled": ("compiled", "memory", "engine/test_loose_records.py", "engine/test_beyond_memory.py"),
    "engine": ("engine", "log"),
    "format": ("format", "recovery", "maintenance/test_scan.py"),
    "maintenance": (
        "maintenance",
        "cli/test_repair.py",
        "cli/test_verify.py",
        "cli/test_snapshot.py",
        "cli/test_dump_load.py",
    ),
    "memory": ("memory", "recovery/test_replay.py", "engine", "log"),
    "protocol": ("protocol", "client", "service"),
    "recovery": ("recovery", "readonly"),
    "root": ("log", "readonly", "test_times.py", "engine"),
    "service": ("service", "client"),
    "servers": ("servers", "spark/test_history.py"),
    "spark": ("spark",),
    "storage": ("storage", "engine/test_hard_links.py", "engine/test_spare.py", "recovery"),
    "support": ("support", "storage"),
}
"""Where tests of a room are, below `tests/` and below `tests/deep/`."""

CORE = ("compiled", "engine", "format", "memory", "recovery", "root", "storage")
OF_THE_CORE = ("durability", "faults")
"""Rooms whose bugs are also looked for with crashes, faults and damage, and where these are."""

LEFT_OUT = ("test_growth.py", "test_docstrings.py", "test_gate.py")
"""Tests that fail because the source differs, whatever it does, and those that count instructions."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a bug.

    kind: `found`, `not found` or `broken`. test: what found it. reason: why it is broken, or what was asserted.
    """

    bug: Bug
    kind: str
    test: str = ""
    reason: str = ""
    seconds: float = 0.0

    @property
    def layer(self) -> str:
        """Return the layer of the test that found it."""
        return ("tests/deep" if self.test.startswith("tests/deep/") else "tests") if self.test else ""


def try_bug(bug: Bug, stages: Iterable[Sequence[str]], limit_seconds: float = LIMIT_SECONDS) -> Verdict:
    """Put *bug* into a copy of the source, and run one stage of tests after the other until one finds it."""
    begun = time.monotonic()

    def verdict(kind: str, test: str = "", reason: str = "") -> Verdict:
        return Verdict(bug, kind, test, reason, time.monotonic() - begun)

    unproven: list[str] = []
    with copy_of_the_source() as copy:
        try:
            bug.check(copy)
            bug.put_into(copy)
        except BrokenBug as error:
            return verdict("broken", reason=str(error))
        for stage in stages:
            left = limit_seconds - (time.monotonic() - begun)
            reports = run_tests(copy, stage, max(left, 0), is_pure=bug.file.startswith("compiled/"))
            for each in reports:
                if each["verdict"] == "found":
                    return verdict("found", each["test"], each["reason"])
                if each["verdict"] == "broken":
                    unproven.append(f"{each.get('test', '')}: {each['reason']}")
            if {"verdict": "late"} in reports:
                break
            if {"verdict": "smoke"} not in reports:
                unproven = unproven or ["no test began"]
                break
    return verdict("broken", reason=unproven[0]) if unproven else verdict("not found")


def run_control(tests: Sequence[str], limit_seconds: float = LIMIT_SECONDS) -> list[str]:
    """Run *tests* on a copy of the source as it is; return what failed."""
    if not tests:
        return []
    with copy_of_the_source() as copy:
        reports = run_tests(copy, tests, limit_seconds)
    failed = [f"{each.get('test', '')}: {each['reason']}" for each in reports if each["verdict"] in ("found", "broken")]
    return failed if failed or {"verdict": "end"} in reports else ["it did not end"]


def stages_for(bug: Bug, last_found_by: str | None) -> Iterator[list[str]]:
    """Yield the tests to run for *bug*: the one that found it the last time, then both layers."""
    if last_found_by is not None and (test := moved_to(last_found_by)) is not None:
        yield [test]
    for layer in ("tests", "tests/deep"):
        for places in (NEAR[bug.room], OF_THE_CORE if bug.room in CORE else ()):
            if paths := [f"{layer}/{place}" for place in places if (ROOT / layer / place).exists()]:
                yield paths


def moved_to(test: str) -> str | None:
    """Return the id of *test* if its file was moved within `tests/`, None if it is gone."""
    path, separator, rest = test.partition("::")
    if (ROOT / path).exists():
        return test
    found = [each for each in (ROOT / "tests").rglob(Path(path).name) if each.parent.name == Path(path).parent.name]
    return f"{found[0].relative_to(ROOT)}{separator}{rest}" if len(found) == 1 else None


@contextmanager
def copy_of_the_source() -> Iterator[Path]:
    """Copy what tests read into a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="gate-", ignore_cleanup_errors=True) as directory:
        for name in COPIED:
            source, target = ROOT / name, Path(directory, name)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target)
        yield Path(directory)


def run_tests(copy: Path, tests: Sequence[str], limit_seconds: float, *, is_pure: bool = False) -> list[dict[str, str]]:
    """Run pytest on *tests* of *copy*, for *limit_seconds* at most; return what the plugin reports."""
    report = copy / "report.jsonl"
    report.unlink(missing_ok=True)
    options = ["-o", "addopts=", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.deep.gate.plugin"]
    options += ["-p", "no:unraisableexception"]  # what a test leaves open fails another one, maybe of another file
    options += ["--timeout=120", "--timeout-method=signal"]
    options += [f"--ignore-glob=*/{name}" for name in LEFT_OUT]
    environment = {
        **os.environ,
        "GATE_REPORT": str(report),
        "MRECORDLOG_PURE": "1" if is_pure else os.environ.get("MRECORDLOG_PURE", "0"),
        "PYTHONPATH": str(copy),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    late = []
    try:
        process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        late = [{"verdict": "late"}]
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # and what its tests have started
    process.wait()
    lines = report.read_text().splitlines() if report.exists() else []
    return [*map(json.loads, lines), *late]
