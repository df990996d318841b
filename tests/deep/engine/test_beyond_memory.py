"""Long histories of a log with `beyond_memory="disk"`, compared with logs that have everything in memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.deep.beyond_memory import History, cycles


@pytest.mark.parametrize("seed", [1, 2, 4, 6, 15])
async def test_a_small_memory_changes_no_result(tmp_path: Path, seed: int) -> None:
    """Calls of all kinds, damage, copies, followers and openings: as in a log that has everything in memory."""
    history = History(tmp_path, seed)
    await history.run(300)
    assert history.on_disk > 0


async def test_nothing_piles_up_over_many_cycles(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fill, read in any way, truncate, many times: descriptors, gathered files and the disk come back each time."""
    caplog.set_level(logging.WARNING)
    await cycles(directory, 45)
    assert "cannot be identified" not in caplog.text
