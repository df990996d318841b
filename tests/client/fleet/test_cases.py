"""The fleet decides what addresses lead to as the table of cases says, and so as Spark does."""

from __future__ import annotations

import pytest

from mrecordlog_async.client import RecordLogFleet
from tests.servers.cases import CASES, Case, Ticking, addresses


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
async def test_the_table_of_cases(case: Case) -> None:
    """Each log that is used is one server; the others are refused, or do not respond."""
    clock = Ticking()
    with addresses() as found:
        fleet = RecordLogFleet(found.urls, clock=clock)
        for seconds, found.shown in case.looks:
            clock.now = max(clock.now, seconds)
            await fleet._membership.look()
        used = [one.log_id for one in fleet.servers() if one.reads and one.refused is None]
        await fleet.close()
    assert "".join(sorted(used)) == case.used
