"""`pytest --cpu`: the processor time that each test file and each test takes, with that of the processes it starts.

On a machine that others use too, processor time says more than the time on the clock, which `--durations` prints. On
one that nobody else uses, what its processors did meanwhile says whether less work would end a run earlier.
"""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FILES, TESTS = 50, 30
"""How many are printed of each."""
SECONDS_PER_TICK = 1 / os.sysconf("SC_CLK_TCK")
NAME = "processor seconds"
START = "(start and collection)"


class CpuTimes:
    """Counts processor seconds by test, and adds them up where they are printed."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._before = 0.0
        self._unsent: list[tuple[str, float]] = []
        self._machine = machine_seconds()

    def pytest_collection_finish(self) -> None:
        """Count what was taken so far, mostly by imports."""
        self._count(START)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Send what a test took with the last of its reports: even a run that is ended then has the figures.

        What a fixture takes that tests share counts for the first of them.
        """
        report = yield
        if call.when == "teardown":
            self._count(item.nodeid)
            report.user_properties = [*report.user_properties, (NAME, self._unsent)]
            self._unsent = []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what this process, or another one, has counted."""
        sent: Any
        for name, sent in report.user_properties:
            for test, seconds in sent if name == NAME else ():
                self._seconds[test] += seconds

    def _count(self, test: str) -> None:
        now = used()
        self._unsent.append((test, now - self._before))
        self._before = now

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the files and the tests that take most."""
        files: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._seconds.items():
            files[test.partition("::")[0]] += seconds
        for title, costs, count in (("files", files, FILES), ("tests", self._seconds, TESTS)):
            terminalreporter.section(f"processor seconds of {title}, {sum(files.values()):.0f} in all")
            for name, seconds in sorted(costs.items(), key=lambda each: -each[1])[:count]:
                if seconds >= 0.1:
                    terminalreporter.write_line(f"{seconds:8.1f}  {name}")
        busy, disks, idle = (now - begun for now, begun in zip(machine_seconds(), self._machine, strict=True))
        terminalreporter.write_line(
            f"the processors of the machine: busy {busy:.0f} s, waiting for disks {disks:.0f} s, idle {idle:.0f} s"
        )


def machine_seconds() -> tuple[float, float, float]:
    """Return how long all processors together were busy, had only calls that wait for disks, and had nothing to do."""
    user, nice, system, idle, disks, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    busy = user + nice + system + sum(interrupts)
    return busy * SECONDS_PER_TICK, disks * SECONDS_PER_TICK, idle * SECONDS_PER_TICK


def used() -> float:
    """Return the processor seconds of this process and of all that it started, those that still run included."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + _running()


def _running() -> float:
    """Return the seconds of the processes below this one, with those of their own children that have ended."""
    children: dict[int, list[tuple[int, int]]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children.setdefault(int(fields[1]), []).append((int(place.name), sum(map(int, fields[11:15]))))
    total, unseen = 0, [os.getpid()]
    while unseen:
        for process, ticks in children.get(unseen.pop(), ()):
            total += ticks
            unseen.append(process)
    return total * SECONDS_PER_TICK
