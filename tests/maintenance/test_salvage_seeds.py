"""Salvage against random histories with random damage; see `salvage_histories` and `salvage_judge`."""

from __future__ import annotations

import pytest

from tests.maintenance.salvage_judge import complaints

LOGS = 10
DAMAGES = 30


@pytest.mark.parametrize("seed", range(LOGS))
def test_whatever_is_lost_nothing_wrong_is_shown(seed: int) -> None:
    """Each returned record was acknowledged for its queue; everything readable is returned, every loss is named.

    Queues are created, deleted, recreated, truncated and appended to over several segments; then bytes, blocks, ends
    and whole segments are lost. What certainly was deleted or truncated stays so; what may have been is reported.
    """
    assert list(complaints(seed, DAMAGES)) == []
