"""Marks every test here, keeps the count of what they tried, and prints it at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from .explore import Tally

_tally = Tally()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how much was tried, and that nothing was lost if all tests passed."""
    if _tally != Tally():
        failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
        terminalreporter.write_line(f"faults: {_tally.line()}; {failed or 'no'} test(s) failed")


@pytest.fixture
def tally() -> Tally:
    """Return the count that all tests share."""
    return _tally


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of torn tails are cut here; the warnings would drown everything else."""
    logger = logging.getLogger("mrecordlog_async")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
