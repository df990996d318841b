"""What one must know to change the package does not grow: a bound is lowered when its figure falls."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

BOUNDS = {
    "modules on an append's path": 58,
    "classes defined in them": 102,
    "class names twice": 38,
    "modules with one importer, in their own room": 64,
    "functions with more than 7 parameters": 9,
    "subclasses across rooms": 8,
    "private names of ours read from outside a class": 30,
    "classes with exactly one subclass and nothing abstract": 22,
    "public names of the log": 75,
}
ROOMS = {"cli": 22, "engine": 47, "memory": 19, "service": 30, "spark": 55, "spark/delta": 17}
"""The rooms with more than 16 files, and how many they may have."""
BODY_LINES = 63


@pytest.fixture(scope="module")
def house() -> dict[str, Any]:
    """Count in a separate process: it traces what runs."""
    done = subprocess.run([sys.executable, "-m", "tests.house"], capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("figure", BOUNDS)
def test_a_figure_of_the_house_does_not_grow(house: dict[str, Any], figure: str) -> None:
    """`python -m tests.house --names` says what is counted."""
    assert house[figure] <= BOUNDS[figure]


def test_no_room_grows_above_sixteen_files(house: dict[str, Any]) -> None:
    """A room is small enough to be read; those that are not get no new file."""
    rooms = {name.removeprefix("mrecordlog_async/"): count for name, count in house["rooms above 16 files"].items()}
    assert {name: count for name, count in rooms.items() if count > ROOMS.get(name, 0)} == {}


def test_no_function_is_longer_than_the_longest_one(house: dict[str, Any]) -> None:
    """Lines without the docstring."""
    assert house["longest body"][0] <= BODY_LINES
