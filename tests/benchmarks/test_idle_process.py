"""The process that only watches the clock."""

from __future__ import annotations

import math

from tests.benchmarks.idle_process import IdleProcess


async def test_idle_process_measures_while_the_block_lasts() -> None:
    """It runs before the block is entered, and its figure is known after the block."""
    idle_process = IdleProcess()
    async with idle_process:
        assert math.isnan(idle_process.longest_seconds)
    assert 0.0 <= idle_process.longest_seconds < math.inf
