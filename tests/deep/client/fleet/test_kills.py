"""Services of a fleet are killed while producers append: ingest goes on, and nothing that was acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.fleet.kills import check, kill_services


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_every_acknowledged_record_is_consumed(tmp_path: Path) -> None:
    """Ingest goes on without the killed ones; what one server has of a key is in the order of the calls."""
    check(await kill_services(tmp_path, kills=4, seed=7))
