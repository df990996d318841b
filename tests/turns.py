"""Which half of the cases a run tries: the other half is for the next commit, and `--nightly` tries all.

What a run tries depends on the number of commits alone, so it can be repeated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

Case = TypeVar("Case")


class Part(NamedTuple):
    """Every *every*-th case, beginning with the case *first*."""

    first: int
    every: int

    def of(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Return the cases of this part."""
        return cases[self.first :: self.every]


def part(config: pytest.Config, every: int = 1) -> Part:
    """Return what this run tries of every *every*-th case."""
    return Part(0, every) if config.getoption("--nightly") else half(commits(), every)


def half(turn: int, every: int = 1) -> Part:
    """Return every other one of every *every*-th case; those of two turns in a row are all of them."""
    return Part(turn % 2 * every, 2 * every)


@cache
def commits() -> int:
    """Return how many commits the history of this source has, 0 for a copy without its history."""
    found = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=Path(__file__).parent, capture_output=True)
    return int(found.stdout) if found.returncode == 0 else 0
