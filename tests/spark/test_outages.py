"""What a stream does without a server that is down, and what the others notice of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mrecordlog_async.protocol.bulk_schemas import PlanStart
from mrecordlog_async.servers import outages as absences
from mrecordlog_async.spark.services import outages, servers
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.responses import PlannedQueue
from mrecordlog_async.spark.services.servers import Probe, QueryServers
from mrecordlog_async.spark.settings.option_values import OptionError
from tests.spark.canned import misbehaving
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of
from tests.spark.services import ThreadedService, numbered


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have servers that were down probed without a pause."""
    monkeypatch.setattr(absences, "RETRY_SECONDS", 0.0)
    return monkeypatch


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


@pytest.mark.parametrize("broken", ["hangs", "trickles", "502", "half", "page", "404"])
def test_a_server_that_responds_badly_is_skipped_for_a_while(
    new_service: NewService, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs or sends garbage is skipped for a while, so that it does not delay every batch."""
    monkeypatch.setattr(absences, "RETRY_SECONDS", 600.0)
    make = QueryServers.new_client

    def impatient(self: QueryServers, name: str) -> ServiceClient:
        """Wait shortly for the broken server only: the healthy one may be slow on a busy machine."""
        with monkeypatch.context() as patch:
            patch.setattr(servers, "SKIPPED_TIMEOUT_SECONDS", 0.2 if name == "b" else 60.0)
            return make(self, name)

    monkeypatch.setattr(QueryServers, "new_client", impatient)
    healthy = new_service()
    healthy.append("q", numbered("q", 0, 3))
    with misbehaving(broken) as (url, connections):
        query = Query(f"a={healthy.url},b={url}", failOnServerDown="false", truncate="true")
        for turn in range(5):
            query.step()
            healthy.append("q", numbered("q", 3 + turn, 4 + turn))
        assert query.rows == rows_of("a", "q", 0, 7)
        assert len(connections) == 1


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
    monkeypatch.setattr(outages, "_clock", lambda: time.monotonic() + absences.LOOK_SECONDS)
    query.step()  # the probe hangs from here on
    other.start()
    query.step()
    assert [row for row in query.rows if row[0] == "a"] == rows_of("a", "q", 0, 3)
    released.set()
    probing = query.reader._fleet.servers["b"].probe
    assert probing is not None
    until(lambda: probing.responds is not None)
    while query.step():
        pass
    assert [row for row in query.rows if row[0] == "b"] == rows_of("b", "q", 0, 3)


def two_drained(new_service: NewService, **options: str) -> tuple[ThreadedService, ThreadedService, Query]:
    """Return two services, and a query that has read 3 records from each."""
    first, second = new_service(), new_service()
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    given = {"failOnServerDown": "atEnd", "serverWait": "60", **options}
    query = Query(f"a={first.url},b={second.url}", **given)
    query.drain()
    query.restart()
    return first, second, query


def starting(service: ThreadedService) -> Callable[[float], None]:
    """Return a function to be called instead of a pause: it starts *service* at its second call."""
    calls = []

    def pause(seconds: float) -> None:
        calls.append(seconds)
        if len(calls) == 2:
            service.start()
        time.sleep(0.01)

    return pause


def test_the_others_are_read_before_a_run_fails(new_service: NewService) -> None:
    """With atEnd an endless stream goes on without a server; a run that ends reads the others, then fails."""
    first, second, query = two_drained(new_service)
    query.step()
    second.stop()
    first.append("q", numbered("q", 3, 5))
    while query.step():
        pass
    assert query.reader.reportLatestOffset()["down"].keys() == {"b"}  # type: ignore[index]
    first.append("q", numbered("q", 5, 6))
    with pytest.raises(ServerDownError, match="server 'b'"):
        query.drain()
    assert query.rows[6:] == rows_of("a", "q", 3, 6)
    second.start()


def test_a_run_waits_for_a_server_that_restarts(new_service: NewService, at_once: pytest.MonkeyPatch) -> None:
    """A run that ends waits once the others are read, and reads what the server had when the run began."""
    first, second, query = two_drained(new_service, maxRecordsPerTrigger="2")
    for service in (first, second):
        service.append("q", numbered("q", 3, 8))
    at_once.setattr(outages, "_sleep", starting(second))
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    second.stop()
    while query.step():
        pass
    assert sorted(query.rows[6:]) == rows_of("a", "q", 3, 8) + rows_of("b", "q", 3, 8)


@pytest.mark.parametrize("fails", ["atEnd", "false"])
def test_a_server_that_returns_during_a_run_is_read(
    new_service: NewService, at_once: pytest.MonkeyPatch, fails: str
) -> None:
    """A server that was down when a run began belongs to it as soon as it responds."""
    first, second, query = two_drained(new_service, maxRecordsPerTrigger="2", failOnServerDown=fails)
    for service in (first, second):
        service.append("q", numbered("q", 3, 8))
    second.stop()
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    second.start()
    wait_for_probes(at_once)
    while query.step():
        pass
    assert sorted(query.rows[6:]) == rows_of("a", "q", 3, 8) + rows_of("b", "q", 3, 8)


def test_a_misspelt_queue_is_reported_once_all_servers_respond(
    new_service: NewService, at_once: pytest.MonkeyPatch
) -> None:
    """While a server is down, it may be the one that has the queue."""
    first, second, query = two_drained(new_service, failOnServerDown="false")
    query.options["subscribe"] = "q,misspelt"
    first.append("q", numbered("q", 3, 5))
    second.stop()
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    second.start()
    wait_for_probes(at_once)
    assert query.step() and query.rows[6:] == rows_of("a", "q", 3, 5)
    with pytest.raises(OptionError, match="no server has a queue 'misspelt'"):
        query.step()


def test_a_server_that_refuses_is_down(
    new_service: NewService, at_once: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program at its address keeps no other server from being read, and is warned of once."""
    first, second, query = two_drained(new_service)
    query.step()
    second.stop()
    with misbehaving("404", second.port):
        wait_for_probes(at_once)
        for turn in range(4):
            first.append("q", numbered("q", 3 + turn, 4 + turn))
            assert query.step()
        assert query.rows[6:] == rows_of("a", "q", 3, 7)
        said = query.reader.reportLatestOffset() or {}
        assert said["down"] == {"b": "returned status 404: Not Found"}
        assert len([each for each in caplog.messages if "'b' returned status 404" in each]) == 1
        with pytest.raises(ServiceRefusedError, match="server 'b' returned status 404"):
            query.drain()
    second.start()
    second.append("q", numbered("q", 3, 4))
    query.drain()
    assert query.rows[10:] == rows_of("b", "q", 3, 4)


@pytest.mark.parametrize(("fails", "rows"), [("true", 0), ("atEnd", 3), ("false", 3)])
def test_a_wrong_token_is_treated_as_the_options_say(new_service: NewService, fails: str, rows: int) -> None:
    """It fails the query at once, or at the end of a run, or leaves out its server; then the token is corrected."""
    first, second = new_service(), new_service("0123456789abcdef")
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    query = Query(f"a={first.url},b={second.url}", **{"failOnServerDown": fails, "token.b": "wrong"})
    if fails == "false":
        query.drain()
    else:
        with pytest.raises(ServiceRefusedError, match=r"server 'b' returned status 401: .*--token-file b=FILE"):
            query.drain()
    assert query.rows == rows_of("a", "q", 0, rows)
    query.options["token.b"] = "0123456789abcdef"
    query.drain()
    assert sorted(query.rows) == rows_of("a", "q", 0, 3) + rows_of("b", "q", 0, 3)


@pytest.mark.parametrize("fails", ["true", "atEnd", "false"])
def test_a_wrong_token_of_the_only_server_is_refused(new_service: NewService, fails: str) -> None:
    """There is nothing else to read, so a stream that went on would only hide the mistake."""
    query = Query(new_service("0123456789abcdef").url, failOnServerDown=fails, token="wrong")
    with pytest.raises(ServiceRefusedError, match=r"returned status 401: .*set --token-file"):
        query.step()


def test_a_batch_that_was_begun_waits_for_its_server(new_service: NewService, at_once: pytest.MonkeyPatch) -> None:
    """After a crash Spark runs the batch again, which must have the same records: nothing can be left out of it."""
    _, second, query = two_drained(new_service)
    second.append("q", numbered("q", 3, 5))
    query.step(die_before_commit=True)
    second.stop()
    at_once.setattr(outages, "_sleep", starting(second))
    query.step()
    assert query.rows[6:] == rows_of("b", "q", 3, 5)


@pytest.mark.parametrize(("fails", "rows"), [("true", 6), ("atEnd", 8), ("false", 8)])
def test_a_token_that_changes_between_listing_and_plan_is_treated_as_the_options_say(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch, fails: str, rows: int
) -> None:
    """The plan is refused, then the next listing, too: the server is down, as it is for a run that begins now."""
    first, second, query = two_drained(new_service, failOnServerDown=fails, serverWait="0")
    for service in (first, second):
        service.append("q", numbered("q", 3, 5))
    plan = ServiceClient.plan

    def plan_late(client: ServiceClient, starts: list[PlanStart], *asked: Any, **options: Any) -> list[PlannedQueue]:
        if starts and client.url == second.url and not second.tokens:
            second.stop()
            second.tokens = frozenset({b"0123456789abcdef"})
            second.start()
        return plan(client, starts, *asked, **options)

    monkeypatch.setattr(ServiceClient, "plan", plan_late)
    if fails == "false":
        query.drain()
    else:
        with pytest.raises(ServiceRefusedError, match="server 'b' returned status 401"):
            query.drain()
    assert query.rows[6:] == rows_of("a", "q", 3, rows - 3)
    query.options["token.b"] = "0123456789abcdef"
    query.drain()
    assert sorted(query.rows[6:]) == rows_of("a", "q", 3, 5) + rows_of("b", "q", 3, 5)


def test_a_server_that_refuses_only_its_plans_fails_the_query(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says that it is another server's fault or will end; the query must not go on without it for ever."""
    first, second, query = two_drained(new_service, failOnServerDown="false")
    for service in (first, second):
        service.append("q", numbered("q", 3, 5))
    failing_plans(monkeypatch, second, ServiceRefusedError("b", 413, {"detail": "too many pieces"}))
    with pytest.raises(ServiceRefusedError, match="server 'b' returned status 413"):
        query.drain()


def failing_plans(patch: pytest.MonkeyPatch, service: ThreadedService, error: Exception) -> None:
    """Have *service* list its queues, and fail or refuse every plan."""
    plan = ServiceClient.plan

    def fail(client: ServiceClient, starts: list[PlanStart], *asked: Any, **options: Any) -> list[PlannedQueue]:
        if starts and client.url == service.url:
            raise error
        return plan(client, starts, *asked, **options)

    patch.setattr(ServiceClient, "plan", fail)


def test_a_run_waits_no_longer_for_a_server_that_lists_its_queues_and_plans_nothing(
    new_service: NewService, at_once: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is down all the time: a run that ends fails once serverWait is over, after one warning."""
    first, second, query = two_drained(new_service)
    for service in (first, second):
        service.append("q", numbered("q", 3, 5))
    times = [0.0]
    at_once.setattr(outages, "_clock", lambda: times[-1])
    at_once.setattr(outages, "_sleep", lambda seconds: times.append(times[-1] + 20.0) if len(times) < 50 else 1 / 0)
    failing_plans(at_once, second, ServerDownError("b", second.url, "TimeoutError: timed out"))
    query.restart()
    wait_for_probes(at_once)
    query.reader.prepareForTriggerAvailableNow()
    assert query.step() and query.rows[6:] == rows_of("a", "q", 3, 5)
    with pytest.raises(ServerDownError, match="server 'b'"):
        query.step()
    assert times[-1] == 60.0
    assert len([each for each in caplog.messages if "skipping it" in each]) == 1


def test_a_batch_has_nothing_of_a_server_that_goes_down_while_it_is_planned(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also nothing of the queues that need no request: its tasks would wait for that server, and fail the query."""
    first, second, query = two_drained(new_service)
    second.append("gaps", [b"x"])
    second.append("q", numbered("q", 3, 4))
    while query.step():
        pass
    first.append("q", numbered("q", 3, 5))
    second.append("q", numbered("q", 4, 5))
    second.append("gaps", [b"y"], position=9)
    kept = query.positions["b"]
    with monkeypatch.context() as patch:
        failing_plans(patch, second, ServerDownError("b", second.url, "ConnectionRefusedError"))
        assert query.step()
    assert query.rows[8:] == rows_of("a", "q", 3, 5)
    assert query.positions["b"] == kept


@pytest.mark.parametrize("failures", [1, 3, 99])
def test_a_batch_that_was_begun_is_planned_again_if_a_plan_fails(
    new_service: NewService, at_once: pytest.MonkeyPatch, failures: int
) -> None:
    """After a crash its plan is waited for as its tasks are: for serverWait, whatever the options skip."""
    _, second, query = two_drained(new_service)
    second.append("q", numbered("q", 3, 5))
    query.step(die_before_commit=True)
    times = [0.0]
    at_once.setattr(outages, "_clock", lambda: times[-1])
    at_once.setattr(outages, "_sleep", lambda seconds: times.append(times[-1] + 1.0))
    plan = ServiceClient.plan
    failed: list[float] = []

    def fail(client: ServiceClient, starts: list[PlanStart], *asked: Any, **options: Any) -> list[PlannedQueue]:
        if starts and client.url == second.url and len(failed) < failures:
            failed.append(times[-1])
            raise ServerDownError("b", second.url, "returned status 503")
        return plan(client, starts, *asked, **options)

    at_once.setattr(ServiceClient, "plan", fail)
    wait_for_probes(at_once)
    if failures == 99:
        with pytest.raises(ServerDownError, match="server 'b'"):
            query.step()
        assert times[-1] == 60.0
    else:
        query.step()
        assert query.rows[6:] == rows_of("b", "q", 3, 5)


def test_a_run_does_not_end_with_a_log_that_no_plan_was_made_for(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may keep an old listing: a run that ends fails then, an endless stream tries again."""
    _, second, query = two_drained(new_service)
    second.append("q", numbered("q", 3, 5))
    with monkeypatch.context() as patch:
        failing_plans(patch, second, ServiceRefusedError("b", 409, {"code": "reopened"}))
        assert not query.step()
        with pytest.raises(ServerDownError, match=r"server 'b'.*its log was opened again 5 times"):
            query.drain()
    query.drain()
    assert query.rows[6:] == rows_of("b", "q", 3, 5)


def wait_for_probes(patch: pytest.MonkeyPatch) -> None:
    """Have each probe end before its query goes on."""
    patch.setattr(outages, "Probe", lambda client: finished(Probe(client)))


def finished(probe: Probe) -> Probe:
    """Return *probe* after it has ended."""
    while probe.responds is None:
        time.sleep(0.01)
    return probe
