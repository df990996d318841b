"""Marks every test in this folder, and gives each the count of what all of them tried."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from .explore import TALLY, Tally

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


@pytest.fixture
def tally() -> Tally:
    """Return the count that all tests share."""
    return TALLY


@pytest.fixture(autouse=True)
def never_idle() -> None:
    """Leave the mark of an idle log as it is: histories have a clock that only they move."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings: thousands of torn tails are cut here, and other output would be hard to find."""
    logger = logging.getLogger("mrecordlog_async")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
