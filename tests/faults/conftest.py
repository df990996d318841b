"""What all tests of crashes and faults tried, counted; and logs that are quiet."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from . import tallying
from .explore import TALLY, Tally


def pytest_configure(config: pytest.Config) -> None:
    """Print the count at the end."""
    if not config.pluginmanager.has_plugin("tallying"):
        config.pluginmanager.register(tallying, "tallying")


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
