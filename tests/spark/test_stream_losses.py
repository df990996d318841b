"""What a stream notices: queues that were deleted or recreated, records that were lost, servers that are down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from mrecordlog_async.spark import fleet
from mrecordlog_async.spark.client import ServiceClient
from mrecordlog_async.spark.connection import ServerDownError
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.offsets import DataLossError
from mrecordlog_async.spark.option_values import Server
from tests.spark.canned import misbehaving
from tests.spark.conftest import NewService
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
    with pytest.raises(DataLossError, match="deleted and recreated; positions 5 to 7 were not read"):
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
        with pytest.raises(DataLossError, match="queue 'q': it was deleted; positions 5 to 504 were not read"):
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
    with pytest.raises(DataLossError, match=r"no server has it; .* is new and empty"):
        query.step()


def test_records_truncated_by_another_client_are_a_loss(service: ThreadedService) -> None:
    """Records truncated unread are a loss; with failOnDataLoss=false reading continues at the first record left."""
    service.append("q", numbered("q", 0, 20))
    query = Query(service.url, maxRecordsPerTrigger="5")
    query.step()
    query.step()
    service.truncate("q", 9)
    with pytest.raises(DataLossError, match="positions 5 to 9 were truncated"):
        query.step()
    query.options["failOnDataLoss"] = "false"
    query.drain()
    assert [row[2] for row in query.rows] == [*range(5), *range(10, 20)]


def test_a_planned_batch_that_is_gone_is_a_loss(service: ThreadedService) -> None:
    """If planned records are truncated before they are read, the batch fails instead of having fewer rows."""
    service.append("q", numbered("q", 0, 20))
    query = Query(service.url)
    query.step()
    query.step(die_before_commit=True)
    service.truncate("q", 9)
    with pytest.raises(DataLossError, match="no longer as planned"):
        query.step()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.step()
    assert [row[2] for row in query.rows] == list(range(10, 20))


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


def test_a_server_that_is_down_fails_the_query_or_waits(new_service: NewService) -> None:
    """A server that is down fails the query; with failOnServerDown=false it keeps its positions and is skipped."""
    first, second = new_service(), new_service()
    first.append("q", numbered("q", 0, 3))
    second.append("q", numbered("q", 0, 3))
    query = Query(f"a={first.url},b={second.url}")
    query.drain()
    kept = query.positions["b"]
    second.stop()
    first.append("q", numbered("q", 3, 5))
    with pytest.raises(ServerDownError):
        query.step()
    query.options["failOnServerDown"] = "false"
    query.drain()
    assert query.rows[6:] == rows_of("a", "q", 3, 5)
    assert query.positions["b"] == kept
    second.start()
    second.append("q", numbered("q", 3, 4))
    query.drain()
    assert query.rows[8:] == rows_of("b", "q", 3, 4)


@pytest.mark.parametrize("broken", ["hangs", "502", "half", "page"])
def test_a_server_that_responds_badly_is_skipped_for_a_while(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A server that hangs or sends garbage is skipped for a while, so that it does not delay every batch."""
    make = Fleet._new_client

    def impatient(self: Fleet, name: str) -> ServiceClient:
        """Wait shortly for the broken server only: the healthy one may be slow on a busy machine."""
        with monkeypatch.context() as patch:
            patch.setattr(fleet, "SKIPPED_TIMEOUT_SECONDS", 0.2 if name == "b" else 60.0)
            return make(self, name)

    monkeypatch.setattr(Fleet, "_new_client", impatient)
    healthy = new_service()
    healthy.append("q", numbered("q", 0, 3))
    with misbehaving(broken) as (url, connections):
        query = Query(f"a={healthy.url},b={url}", failOnServerDown="false", truncate="true")
        for turn in range(5):
            query.step()
            healthy.append("q", numbered("q", 3 + turn, 4 + turn))
        assert query.rows == rows_of("a", "q", 0, 7)
        assert 1 <= len(connections) <= 2


def test_a_server_that_hangs_delays_no_other(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch, until: Callable[[Callable[[], bool]], None]
) -> None:
    """Once it was skipped, it is probed in the background, and read again when it responds."""
    healthy, other, released = new_service(), new_service(), threading.Event()
    for service in (healthy, other):
        service.append("q", numbered("q", 0, 3))
    query = Query(f"a={healthy.url},b={other.url}", failOnServerDown="false", maxRecordsPerTrigger="1")
    query.step()
    other.stop()
    query.step()
    probe = ServiceClient.probe
    monkeypatch.setattr(ServiceClient, "probe", lambda client: (released.wait(), probe(client)))
    monkeypatch.setattr(fleet, "_clock", lambda: time.monotonic() + fleet.DOWN_SECONDS)
    query.step()  # the probe hangs from here on
    other.start()
    query.step()
    assert [row for row in query.rows if row[0] == "a"] == rows_of("a", "q", 0, 3)
    released.set()
    probing = query.reader._fleet._probes["b"]
    until(lambda: probing.responds is not None)
    while query.step():
        pass
    assert [row for row in query.rows if row[0] == "b"] == rows_of("b", "q", 0, 3)


@pytest.mark.parametrize("broken", ["502", "half", "page"])
def test_a_truncate_without_a_response_does_not_fail_the_query(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A truncate without a response is retried at the next trigger."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url, truncate="true")
    query.step()
    query.step()
    truncate = ServiceClient.truncate
    with misbehaving(broken) as (url, _):
        other = ServiceClient(Server("default", url), token=None, timeout_seconds=1, retries=0)
        monkeypatch.setattr(ServiceClient, "truncate", lambda self, *args, **more: truncate(other, *args, **more))
        assert not query.step()
        other.close()
    assert service.positions("q") == (0, 5)
    monkeypatch.undo()
    assert not query.step()
    assert service.positions("q") == (5, 5)
