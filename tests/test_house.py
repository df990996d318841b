"""What one must know to change the package does not grow: a bound is lowered when its figure falls."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

BOUNDS = {
    "modules on an append's path": 30,
    "classes defined in them": 74,
    "class names twice": 0,
    "modules with one importer, in their own room": 20,
    "functions with more than 7 parameters": 2,
    "subclasses across rooms": 0,
    "private names of ours read from outside a class": 0,
    "classes with exactly one subclass and nothing abstract": 0,
    "public names of the log": 47,
    "rooms above 16 files": 0,
}
"""The functions with more parameters are `MultiRecordLog.open` and `RecordLogFleet`."""
BODY_LINES = 40


@pytest.fixture(scope="module")
def house() -> dict[str, Any]:
    """Count in a separate process: it traces what runs."""
    done = subprocess.run([sys.executable, "-m", "tests.house"], capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("figure", BOUNDS)
def test_a_figure_of_the_house_does_not_grow(house: dict[str, Any], figure: str) -> None:
    """`python -m tests.house --names` says what is counted."""
    found = house[figure]
    assert (found if isinstance(found, int) else len(found)) <= BOUNDS[figure]


def test_no_function_is_longer_than_the_longest_one(house: dict[str, Any]) -> None:
    """Lines without the docstring."""
    assert house["longest body"][0] <= BODY_LINES
