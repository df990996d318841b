"""Spark decides what addresses lead to as the table of cases says."""

from __future__ import annotations

import pytest

from mrecordlog_async.servers import outages as absences
from mrecordlog_async.spark.services import listings, outages
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.options import Options
from tests.servers.cases import CASES, Case, Ticking, addresses
from tests.spark.test_outages import wait_for_probes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_the_table_of_cases(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of a look that are not held back are read. A server that was silent is listed after its probe."""
    clock = Ticking()
    for module in (listings, outages):
        monkeypatch.setattr(module, "_clock", clock)
    monkeypatch.setattr(absences, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(absences, "LOOK_SECONDS", 0.0)
    wait_for_probes(monkeypatch)
    with addresses() as found:
        fleet = Fleet(Options.parse({"servers": found.servers, "retries": "0", "failOnServerDown": "false"}))
        for seconds, found.shown in case.looks:
            clock.now = max(clock.now, seconds)
            for _ in range(3):
                _, standing = fleet.standing(Offset())
        fleet.close()
    assert "".join(sorted(standing.logs)) == case.used
