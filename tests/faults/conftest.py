"""Marks every test in this folder, counts what they tried, and prints the counts at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from .explore import Tally

_tally = Tally()

HANGS_AFTER_SECONDS = 1_800
"""A test here tries thousands of states: on a machine that is busy with other things it may take many minutes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and raise their timeout: they run long without hanging."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)
            if config.pluginmanager.hasplugin("timeout"):
                item.add_marker(pytest.mark.timeout(HANGS_AFTER_SECONDS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print in one line how much was tried and how many tests failed."""
    if _tally != Tally():
        failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
        terminalreporter.write_line(f"faults: {_tally.line()}; {failed or 'no'} test(s) failed")


@pytest.fixture
def tally() -> Tally:
    """Return the count that all tests share."""
    return _tally


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings: thousands of torn tails are cut here, and other output would be hard to find."""
    logger = logging.getLogger("mrecordlog_async")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
