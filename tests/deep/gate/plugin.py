"""The part of the gate that runs in pytest: it reports what failures say about a bug, and ends at the first find.

A report is a line of JSON in the file that `GATE_REPORT` names.
"""

from __future__ import annotations

import asyncio
import json
import logging
import mmap
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from .table import PACKAGE, RAN, ROOT

FAILURES_MAX = 20
"""A bug with more failures that prove nothing is not looked at further."""


async def smoke(directory: Path) -> None:
    """Use a log as everybody does. A bug with which this fails is no bug that a test must look for."""
    from mrecordlog_async import MultiRecordLog

    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append_records("q", None, [b"one", b"two", b"three"])
        await log.truncate("q", 0)
    async with MultiRecordLog.open(directory) as log:
        assert [bytes(record.payload) for record in log.range("q")] == [b"two", b"three"]


def is_a_find(error: BaseException) -> bool:
    """Return whether *error* is an assertion of a promise."""
    if isinstance(error, BaseExceptionGroup):  # hypothesis has found several
        return any(map(is_a_find, error.exceptions))
    if isinstance(error, pytest.fail.Exception):  # also of `raises` that sees no error, and of pytest-timeout
        return not str(error.msg).startswith("Timeout")
    return isinstance(error, AssertionError)


class Gate:
    """Watches the tests while a bug is in place."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._file: Path | None = None  # of the test before
        self._failures = 0
        byte = ROOT / PACKAGE / f"{RAN}.byte"
        self._mark: mmap.mmap | None = None  # the control has none, and a bug in C
        if byte.exists():
            with byte.open("r+b") as handle:
                self._mark = mmap.mmap(handle.fileno(), 1)

    def pytest_sessionstart(self) -> None:
        """Run the smoke test."""
        logging.disable(logging.CRITICAL)
        try:
            with tempfile.TemporaryDirectory() as directory:
                asyncio.run(asyncio.wait_for(smoke(Path(directory, "log")), 60))
        except BaseException as error:
            self._say(verdict="broken", reason=f"the smoke test fails: {type(error).__name__}: {error}")
            pytest.exit("the smoke test fails", returncode=2)
        finally:
            logging.disable(logging.NOTSET)
        self._say(verdict="smoke")

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Forget at the first test of a file what ran before: its fixtures may serve all of its tests."""
        if item.path != self._file:
            self._file = item.path
            if self._mark is not None:
                self._mark[0] = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge a failure."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if report.failed and error is not None:
            what = f"{type(error).__name__}: {str(error)[:300]}"
            if not is_a_find(error):
                self._failures += 1
                self._say(verdict="broken", test=item.nodeid, reason=what)
                if self._failures >= FAILURES_MAX:
                    item.session.shouldstop = "too many failures that prove nothing"
            elif self._mark is not None and not self._mark[0]:
                self._say(verdict="broken", test=item.nodeid, reason=f"the changed line did not run, but: {what}")
            else:
                self._say(verdict="found", test=item.nodeid, reason=what)
                item.session.shouldstop = "found"
        return report

    def pytest_sessionfinish(self) -> None:
        """Say that nothing is left to run."""
        self._say(verdict="end")

    def _say(self, **facts: object) -> None:
        with self._report.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Watch this run."""
    config.pluginmanager.register(Gate(Path(os.environ["GATE_REPORT"])), "gate")
