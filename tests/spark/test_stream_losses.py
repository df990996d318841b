"""What a stream notices: queues that were deleted or recreated, records that were lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.log_server import LogServer, Patience
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError
from tests.spark.canned import misbehaving
from tests.spark.query import Query, rows_of
from tests.spark.services import ThreadedService, numbered


def test_a_recreated_queue_is_noticed(service: ThreadedService) -> None:
    """A queue deleted with unread records and recreated fails the query, even if its positions would fit."""
    service.append("q", numbered("old", 0, 5))
    query = Query(service.url, truncate="true")
    query.drain()
    service.append("q", numbered("old", 5, 8))
    service.delete("q")
    service.append("q", numbered("new", 0, 50))
    query.restart()
    with pytest.raises(UnreadLossError, match="deleted and recreated; positions 5 to 7 were not stored"):
        query.step()
    assert service.positions("q") == (0, 50), "nothing of the new queue was truncated"

    query.options["failOnDataLoss"] = "false"
    query.drain()
    assert query.rows[5:] == [("default", "q", at, f"new:{at}".encode()) for at in range(50)]
    assert service.records() == {"q": []}


@pytest.mark.parametrize("seen_deleted", [False, True])
def test_a_queue_deleted_after_it_was_read_is_no_loss(service: ThreadedService, seen_deleted: bool) -> None:
    """A queue that was read completely may be deleted and recreated; no trigger in between is needed."""
    service.append("q", numbered("old", 0, 5))
    query = Query(service.url, truncate="true")
    query.drain()
    service.delete("q")
    if seen_deleted:
        query.drain()
    service.append("q", numbered("new", 0, 50))
    query.drain()
    assert query.rows[5:] == [("default", "q", at, f"new:{at}".encode()) for at in range(50)]


def test_a_queue_deleted_with_unread_records_is_a_loss(service: ThreadedService) -> None:
    """It is a loss even if the records were added and deleted while the query was not running."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url, truncate="true")
    query.drain()
    service.append("q", numbered("q", 5, 505))
    service.delete("q")
    query.restart()
    for _ in range(2):
        with pytest.raises(UnreadLossError, match="queue 'q': it was deleted; positions 5 to 504 were not stored"):
            query.step()
    query.options["failOnDataLoss"] = "false"
    query.drain()
    assert query.positions == {"default": {}}


def test_a_log_replaced_by_an_empty_one_is_refused(service: ThreadedService) -> None:
    """If an empty log replaces the log, its unread records may be lost; nothing but forgetting it goes on."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url)
    query.drain()
    service.replace_by_nothing()
    query.restart()
    with pytest.raises(ServersHeldError, match=r"no server has it; .* is new and empty"):
        query.step()


def test_records_truncated_by_another_client_are_a_loss(service: ThreadedService) -> None:
    """Records truncated unread are a loss; with failOnDataLoss=false reading continues at the first record left."""
    service.append("q", numbered("q", 0, 20))
    query = Query(service.url, maxRecordsPerTrigger="5")
    query.step()
    service.truncate("q", 9)
    with pytest.raises(
        UnreadLossError, match="positions 5 to 9 were truncated before they were stored, by another program"
    ):
        query.step()
    query.options["failOnDataLoss"] = "false"
    query.drain()
    assert [row[2] for row in query.rows] == [*range(5), *range(10, 20)]


@pytest.mark.parametrize("recreated", [False, True])
def test_records_of_a_new_queue_that_were_truncated_unread_are_a_loss(
    service: ThreadedService, recreated: bool
) -> None:
    """Whether its name is new, or it takes the place of a queue that was read to its end."""
    service.append("old", numbered("old", 0, 5))
    query = Query(service.url, truncate="true")
    query.drain()
    if recreated:
        service.delete("old")
    name = "old" if recreated else "new"
    service.append(name, numbered("new", 0, 8))
    service.truncate(name, 2)
    query.restart()
    for _ in range(2):
        with pytest.raises(UnreadLossError, match=f"queue '{name}': .*positions 0 to 2 were truncated before"):
            query.step()
    assert service.positions(name) == (3, 8), "nothing of the new queue was truncated"
    query.options["failOnDataLoss"] = "false"
    query.drain()
    assert [row[2] for row in query.rows[5:]] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("options", [{"subscribe": "old,new"}, {"subscribePattern": "old|new"}, {}])
def test_a_queue_that_may_have_been_there_before_is_read_from_where_it_begins(
    service: ThreadedService, options: dict[str, str]
) -> None:
    """What was truncated before the subscription, or before the first start, is not a loss."""
    service.append("old", numbered("old", 0, 5))
    service.append("new", numbered("new", 0, 8))
    service.truncate("new", 2)
    query = Query(service.url, **({"subscribe": "old"} if options else {}))
    query.drain()
    if "subscribe" not in options:
        query.options.pop("subscribe", None)
    query.options |= options
    query.restart()
    query.drain()
    assert sorted(row[2] for row in query.rows if row[1] == "new") == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_planned_batch_of_a_deleted_queue_is_a_loss(service: ThreadedService, recreated: bool) -> None:
    """If the queue is deleted before planned records are read, every start fails until the loss is accepted."""
    service.append("q", numbered("q", 0, 20))
    service.append("r", numbered("r", 0, 5))
    query = Query(service.url)
    query.step(die_before_commit=True)
    service.delete("q")
    if recreated:
        service.append("q", numbered("new", 0, 20))
    for _ in range(2):
        with pytest.raises(UnreadLossError, match="'q'"):
            query.step()
        query.restart()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.drain()
    found = [row[1:] for row in query.rows]
    assert [row for row in found if row[0] == "r"] == [("r", at, each) for at, each in enumerate(numbered("r", 0, 5))]
    new = [("q", at, each) for at, each in enumerate(numbered("new", 0, 20))] if recreated else []
    assert [row for row in found if row[0] == "q"] == new


def test_a_planned_batch_that_is_gone_is_a_loss(service: ThreadedService) -> None:
    """If planned records are truncated before they are read, the batch fails instead of having fewer rows."""
    service.append("q", numbered("q", 0, 20))
    query = Query(service.url)
    query.step(die_before_commit=True)
    service.truncate("q", 9)
    with pytest.raises(UnreadLossError, match="0 to 19 are no longer as planned: records before 10 were truncated"):
        query.step()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.step()
    assert [row[2] for row in query.rows] == list(range(10, 20))


def test_a_planned_batch_of_a_log_that_went_back_says_so(service: ThreadedService, tmp_path: Path) -> None:
    """The error says what to serve; with failOnDataLoss=false all that the log has is read, once."""
    service.append("q", numbered("q", 0, 12))
    service.keep_copy(tmp_path / "copy")
    service.append("q", numbered("q", 12, 20))
    query = Query(service.url)
    query.step(die_before_commit=True)
    service.go_back(tmp_path / "copy")
    with pytest.raises(ServersHeldError, match=r"it went back .* Serve its newest state again"):
        query.step()
    query.options["failOnDataLoss"] = "false"
    query.drain()
    assert [row[2] for row in query.rows] == list(range(12))


def test_records_that_their_queue_dropped_are_a_loss(service: ThreadedService) -> None:
    """The error says that the queue's own options may have removed them."""
    options = QueueOptions(max_records=10, when_full="drop_oldest")
    service.call(service.log.create_queue("q", options=options))
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url)
    query.step()
    for start in (5, 11):
        service.append("q", numbered("q", start, start + 6))
    with pytest.raises(UnreadLossError, match=r"truncated before they were stored, .* or by max_age or drop_oldest"):
        query.step()


def test_a_deleted_queue_drops_out(service: ThreadedService) -> None:
    """A deleted queue is removed from the offset; recreated under the same name, it is a new queue."""
    service.append("q", numbered("q", 0, 3))
    service.append("other", numbered("other", 0, 3))
    query = Query(service.url)
    query.drain()
    service.delete("q")
    assert query.step()
    assert list(query.positions["default"]) == ["other"]
    service.append("q", numbered("q", 0, 2))
    query.drain()
    assert query.rows[6:] == rows_of("default", "q", 0, 2)


@pytest.mark.parametrize("broken", ["502", "half", "page"])
def test_a_truncate_without_a_response_does_not_fail_the_query(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A truncate without a response is retried at the next trigger."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url, truncate="true")
    query.step()
    send = LogServer.send
    with misbehaving(broken) as (url, _):
        other = LogServer("default", Endpoint(url), patience=Patience(1.0, 0))

        def broken_truncate(server: LogServer, call: ServiceCall[Any], log: str = "") -> Any:
            return send(other if call.path == "/v1/truncate" else server, call, log)

        monkeypatch.setattr(LogServer, "send", broken_truncate)
        assert not query.step()
        other.close()
    assert service.positions("q") == (0, 5)
    monkeypatch.undo()
    assert not query.step()
    assert service.positions("q") == (5, 5)
