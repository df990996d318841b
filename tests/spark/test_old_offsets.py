"""Checkpoints that an older version of this package wrote are read on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.spark.checkpoint import Checkpoint, CheckpointError, Mark
from mrecordlog_async.spark.client import PlanStart, ServiceClient
from mrecordlog_async.spark.offsets import DataLossError
from mrecordlog_async.spark.option_values import Server
from tests.spark.query import Query, rows_of
from tests.spark.services import ThreadedService, numbered

OLD = Path(__file__).with_name("data") / "offset-of-version-2"
"""Spark's file of an offset of version 2: two servers, an opening from before a restart, a queue without records."""


def test_an_offset_of_version_2_is_understood() -> None:
    """Positions are by log; the marks, which only this version has, are kept until they are compared."""
    known = Checkpoint.decode(json.loads(OLD.read_text().splitlines()[2]))
    a, b = "9f181ec44b23f90f3cb8c73a5fd97d3c", "08947b7e64242b6258087739eb8d6923"
    assert known.positions == {
        a: {"orders": [195315575665826, 7], "rests": [195315575665827, 3]},
        b: {"empty": [20922143499964, 0], "orders": [20922143499963, 5]},
    }
    assert (known.servers, known.at) == ({a: "a", b: "b"}, {})
    assert known.marks[a]["rests"] == Mark("a4d4aed16fab2268", 3553674032)
    assert known.marks[b]["empty"] == Mark("d11e9b31bbe678ce")
    assert Checkpoint.decode(known.encode()) == known


def test_an_offset_of_a_newer_version_is_refused() -> None:
    """It may say something that this package would drop."""
    with pytest.raises(CheckpointError, match=r"offsets of version 4, this package reads versions 2 and 3"):
        Checkpoint.decode({"version": 4, "logs": {}})


def version_2(service: ThreadedService, queues: dict[str, list[int]]) -> dict[str, Any]:
    """Return the offset of version 2 after everything in *queues*, [id, next position], was read."""
    client = ServiceClient(Server("s", service.url), token=None, timeout_seconds=10, retries=0)
    try:
        listing = client.listing()
        plans = client.plan([PlanStart(queue, at[0], None, at[1]) for queue, at in queues.items()], tails=True)
    finally:
        client.close()
    marked = {plan.queue: [*queues[plan.queue], plan.tail] for plan in plans}
    return {"version": 2, "servers": {"default": {"log": listing.log, "openings": {listing.opening: marked}}}}


@pytest.mark.parametrize("truncate", ["true", "false"])
@pytest.mark.parametrize("planned", [False, True])
def test_a_checkpoint_of_version_2_is_read_on(service: ThreadedService, truncate: str, planned: bool) -> None:
    """Nothing is read twice or skipped, also if its last batch did not run; then the offset is of this version."""
    for queue in ("busy", "left"):
        service.append(queue, numbered(queue, 0, 5))
    query = Query(service.url, truncate=truncate)
    query.drain()
    query.committed = version_2(service, query.positions["default"])
    service.append("busy", numbered("busy", 5, 7))
    if planned:
        positions = {queue: [at[0], 7 if queue == "busy" else 5] for queue, at in query.positions["default"].items()}
        query.planned = version_2(service, positions)
    service.stop()
    service.start()
    query.options["subscribe"] = "busy"
    query.drain()
    service.append("busy", numbered("busy", 7, 9))
    query.drain()
    assert query.committed["version"] == 3
    query.options["subscribe"] = "busy,left"
    query.drain()
    assert sorted(query.rows) == rows_of("default", "busy", 0, 9) + rows_of("default", "left", 0, 5)


def test_marks_of_version_2_still_show_that_a_log_went_back(service: ThreadedService, tmp_path: Path) -> None:
    """The digest of the last record that was read is compared once; what was not subscribed is compared later."""
    service.append("rests", numbered("rests", 0, 50))
    service.keep_copy(tmp_path / "copy")
    service.append("rests", numbered("rests", 50, 100))
    service.append("moves", numbered("moves", 0, 5))
    query = Query(service.url)
    query.drain()
    query.committed = version_2(service, query.positions["default"])
    service.go_back(tmp_path / "copy")
    service.append("rests", numbered("new", 50, 130))
    service.stop()
    service.start()
    query.options["subscribe"] = "other"
    service.append("other", numbered("other", 0, 3))
    query.drain()
    assert query.committed["version"] == 3
    query.options["subscribe"] = "rests"
    with pytest.raises(DataLossError, match="queue 'rests': the record before position 100 is not the one"):
        query.drain()
