"""What a checkpoint says of queues is compared with the log; what is there is not refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.spark.positions.offsets import DataLossError
from mrecordlog_async.spark.positions.proof import Listed, gone, went_back
from mrecordlog_async.spark.settings.offset import At, CheckpointError, Offset
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of
from tests.spark.services import ThreadedService, numbered
from tests.spark.test_offsets import summary

# Offsets.


def test_an_offset_is_the_same_after_a_round_trip() -> None:
    """Its keys are sorted, because Spark compares offsets as text."""
    known = Offset(
        {"x": {"q": [1, 5], "fresh": [3, 0]}, "server:b": {}}, {"x": "a", "server:b": "b"}, {"x": At("9f", 17)}
    )
    offset = known.encode()
    assert offset["logs"]["x"] == {"server": "a", "at": ["9f", 17], "queues": {"fresh": [3, 0], "q": [1, 5]}}
    assert Offset.decode(offset) == known
    assert Offset.decode({}) == Offset()


OLD = {"server": "a", "at": None, "queues": {}, "openings": {"7c": {"q": [1, 5, 78]}}}


@pytest.mark.parametrize(
    "offset",
    [
        {"a": {"q": [1, 5]}},
        {"version": 2, "servers": {}},
        {"version": 5, "logs": {}},
        {"version": 3, "logs": 7},
    ],
)
def test_an_offset_that_is_not_known_is_refused(offset: Any) -> None:
    """It has an unknown version, or is damaged."""
    with pytest.raises(CheckpointError, match="with a new checkpoint and a new output"):
        Offset.decode(offset)


def test_positions_from_before_0_2_0_are_refused_with_what_to_use() -> None:
    """0.2.0 kept them in its offsets until it had compared them: it does so for the queues that it reads."""
    with pytest.raises(CheckpointError, match=r"queue 'q'.*once with 0\.2\.0, subscribed to this queue") as caught:
        Offset.decode({"version": 3, "logs": {"x": OLD}})
    assert "damaged" not in str(caught.value)


# Proofs.


def test_only_what_is_no_longer_listed_is_requested() -> None:
    """While no queue is deleted, a trigger sends only the listing."""
    known = Offset({"a": {"q": [1, 5], "r": [2, 7], "s": [3, 9]}})
    listed = Listed({"q": summary("q", 0, 9), "r": summary("r", 0, 9, queue_id=4)})
    assert gone(known, "a", listed, lambda queue: True) == {"r": 2, "s": 3}
    assert gone(known, "a", listed, lambda queue: False) == {"r": 2}


@pytest.mark.parametrize(("following", "found"), [(4, "ends at 4"), (5, ""), (9, "")])
def test_a_log_that_ends_before_the_checkpoint_went_back(following: int, found: str) -> None:
    """Whether one that grew since went back is decided by its history."""
    assert found in (went_back(summary("q", 0, following), 5) or "")


# Real logs.


def test_a_log_that_went_back_is_read_again_when_that_is_allowed(
    service: ThreadedService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No record is skipped or truncated unread, and the warning says that some are read twice."""
    service.append("q", numbered("q", 0, 50))
    service.keep_copy(tmp_path / "copy")
    service.append("q", numbered("q", 50, 100))
    query = Query(service.url, truncate="true")
    query.drain()
    service.go_back(tmp_path / "copy")
    service.append("q", numbered("new", 50, 130))
    with pytest.raises(DataLossError, match=r"nothing is skipped, and records .* are read twice"):
        query.drain()
    query.options["failOnDataLoss"] = "false"
    with caplog.at_level(logging.WARNING):
        query.drain()
    assert "went back" in caplog.text and "are read twice" in caplog.text
    assert query.rows[100:] == rows_of("default", "q", 0, 50) + [
        ("default", "q", at, f"new:{at}".encode()) for at in range(50, 130)
    ]
    query.options["failOnDataLoss"] = "true"
    service.append("q", numbered("q", 130, 140))
    query.drain()
    assert query.rows[230:] == rows_of("default", "q", 130, 140)


@pytest.mark.parametrize("truncate", ["true", "false"])
def test_a_log_that_was_opened_again_did_not_go_back(service: ThreadedService, truncate: str) -> None:
    """A restart of the service at any moment is not reported as a loss."""
    service.append("q", numbered("q", 0, 10))
    service.append("given", numbered("given", 1_000, 1_010), 1_000)
    query = Query(service.url, truncate=truncate, maxRecordsPerTrigger="7")
    for turn in range(8):
        service.append("q", numbered("q", 10 + turn, 11 + turn))
        if turn % 2:
            service.stop()
            service.start()
        if turn % 3 == 2:
            query.restart()
        query.step(die_before_commit=turn == 4)
    query.drain()
    assert sorted(query.rows) == rows_of("default", "given", 1_000, 1_010) + rows_of("default", "q", 0, 18)


def test_a_first_record_at_a_given_position_is_no_loss(service: ThreadedService) -> None:
    """A queue that was enrolled while it was empty may get its first record at any position."""
    service.append("q", [])
    query = Query(service.url, truncate="true")
    query.drain()
    assert query.positions["default"]["q"][1] == 0
    service.append("q", numbered("q", 1_000, 1_003), 1_000)
    query.drain()
    assert query.rows == rows_of("default", "q", 1_000, 1_003)
    assert service.records() == {"q": []}


# Wanted less, wanted more.


@pytest.mark.parametrize("truncate", ["true", "false"])
def test_a_queue_that_was_not_subscribed_for_a_while_continues(service: ThreadedService, truncate: str) -> None:
    """Its position stays in the checkpoint, even if the service is restarted."""
    for queue in ("x", "y"):
        service.append(queue, numbered(queue, 0, 10))
    query = Query(service.url, truncate=truncate)
    query.drain()
    query.options["subscribe"] = "x"
    for queue in ("x", "y"):
        service.append(queue, numbered(queue, 10, 12))
    service.stop()
    service.start()
    query.drain()
    query.options["subscribe"] = "x,y"
    query.drain()
    assert sorted(query.rows) == rows_of("default", "x", 0, 12) + rows_of("default", "y", 0, 12)


def test_a_server_that_was_left_out_for_a_while_continues(new_service: NewService) -> None:
    """What was committed and not yet truncated is not read twice."""
    first, second = new_service(), new_service()
    for service in (first, second):
        service.append("q", numbered("q", 0, 5))
    both = f"a={first.url},b={second.url}"
    query = Query(both, truncate="true")
    query.step()
    query.step()  # committed, not truncated
    query.options["servers"] = f"a={first.url}"
    query.restart()
    first.append("q", numbered("q", 5, 6))
    query.drain()
    query.options["servers"] = both
    query.drain()
    assert sorted(query.rows) == rows_of("a", "q", 0, 6) + rows_of("b", "q", 0, 5)
