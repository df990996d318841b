"""Which cases a run tries: the same half of them each time, or all with `--nightly`."""

from __future__ import annotations

import pytest


def step(config: pytest.Config, every: int = 1) -> int:
    """Return the distance from one case to the next, where all cases are those with the distance *every*."""
    return every if config.getoption("--nightly") else 2 * every
