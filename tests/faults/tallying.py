"""A plugin of pytest: what all processes of a run tried, added up and printed in one line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from .explore import TALLY, Tally


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what this process tried to the process that prints the summary, if the suite is spread over several."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = asdict(TALLY)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what another process tried."""
    TALLY.add(Tally(**getattr(node, "workeroutput", {}).get("tally", {})))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print in one line how much the tests of faults tried and how many tests failed."""
    if Tally() != TALLY:
        failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
        terminalreporter.write_line(f"faults: {TALLY.line()}; {failed or 'no'} test(s) failed")
