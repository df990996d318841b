"""What a stream does without a server that is down, and what the others notice of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
from threading import Event
from typing import Any

import pytest

from mrecordlog_async.protocol.bulk_schemas import PlanStart, QueuePlan
from mrecordlog_async.servers import outages as absences
from mrecordlog_async.spark import log_stream, surveying
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.log_server import LogListing, LogServer, Patience
from mrecordlog_async.spark.log_table import LogTable
from mrecordlog_async.spark.losses import ForgetError, ServersHeldError
from mrecordlog_async.spark.options import OptionError, Options
from mrecordlog_async.spark.server_set import ServerSet
from tests.spark.canned import misbehaving
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of
from tests.spark.services import ThreadedService, numbered


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have servers that were down asked again without a pause."""
    monkeypatch.setattr(absences, "RETRY_SECONDS", 0.0)


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

    return pause


@pytest.mark.parametrize("broken", ["hangs", "trickles", "502", "half", "page", "404"])
def test_a_server_that_responds_badly_delays_no_other(new_service: NewService, broken: str) -> None:
    """It is waited for once, for a limited time, and left out while it does not respond."""
    healthy = new_service()
    healthy.append("q", numbered("q", 0, 3))
    with misbehaving(broken) as (url, _):
        query = Query(f"a={healthy.url},b={url}", failOnServerDown="false", truncate="true", timeout="0.2")
        for turn in range(5):
            while not query.step():
                pass
            healthy.append("q", numbered("q", 3 + turn, 4 + turn))
        assert query.rows == rows_of("a", "q", 0, 7)
        query.reader.stop()


def test_the_others_are_read_before_a_run_fails(new_service: NewService) -> None:
    """With atEnd an endless stream goes on without a server; a run that ends reads the others, then fails."""
    first, second, query = two_drained(new_service, serverWait="0")
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


def test_a_run_waits_for_a_server_that_restarts(new_service: NewService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends waits once the others are read, and reads what the server had when the run began."""
    first, second, query = two_drained(new_service, maxRecordsPerTrigger="2")
    for service in (first, second):
        service.append("q", numbered("q", 3, 8))
    monkeypatch.setattr(log_stream, "_sleep", starting(second))
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    second.stop()
    while query.step():
        pass
    assert sorted(query.rows[6:]) == rows_of("a", "q", 3, 8) + rows_of("b", "q", 3, 8)


def test_a_batch_that_was_begun_waits_for_its_server(new_service: NewService, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash Spark runs the batch again, which must have the same records: nothing can be left out of it."""
    _, second, query = two_drained(new_service)
    second.append("q", numbered("q", 3, 5))
    query.step(die_before_commit=True)
    second.stop()
    monkeypatch.setattr(log_stream, "_sleep", starting(second))
    query.step()
    assert query.rows[6:] == rows_of("b", "q", 3, 5)


def test_a_server_that_restarts_is_waited_for_if_the_options_say_so(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default nothing goes on without a server; one that has never responded is not waited for."""
    first, second, query = two_drained(new_service, failOnServerDown="true")
    query.step()
    first.append("q", numbered("q", 3, 4))
    second.append("q", numbered("q", 3, 4))
    monkeypatch.setattr(log_stream, "_sleep", starting(second))
    second.stop()
    assert query.step()
    assert sorted(query.rows[6:]) == rows_of("a", "q", 3, 4) + rows_of("b", "q", 3, 4)
    second.stop()
    query.restart()
    with pytest.raises(ServerDownError, match="server 'b'"):
        query.step()
    second.start()


class Gate:
    """Holds up the listings of one server while it is shut, and counts those that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
        self.opened, self.arrived = Event(), Event()
        self.opened.set()
        plain = LogServer.listing

        def listing(self_: LogServer) -> LogListing:
            if self_.name == server and not self.opened.is_set():
                self.arrived.set()
                self.opened.wait(60)
            return plain(self_)

        monkeypatch.setattr(LogServer, "listing", listing)


def test_a_server_that_always_responds_late_is_read(new_service: NewService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had is read with a later batch, although others moved on meanwhile."""
    first, second, query = two_drained(new_service, failOnServerDown="false")
    gate = Gate(monkeypatch, "b")
    query.step()
    second.append("q", numbered("q", 3, 8))
    monkeypatch.setattr(surveying, "WAIT_SECONDS", 0.01)
    for turn in range(3):
        gate.opened.clear()
        first.append("q", numbered("q", 3 + turn, 4 + turn))
        query.step()
        gate.opened.set()
        pending = query.reader._logs.threads["b"]._pending
        assert pending is None or pending.result(60)
    query.step()
    assert [row for row in query.rows[6:] if row[0] == "b"] == rows_of("b", "q", 3, 8)


@pytest.mark.parametrize("fails", ["false", "atEnd"])
def test_a_run_that_ends_waits_for_a_server_that_responds_late(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """It is not down: it may have records."""
    first, second, query = two_drained(new_service, failOnServerDown=fails, maxRecordsPerTrigger="4")
    for service in (first, second):
        service.append("q", numbered("q", 3, 9))
    gate = Gate(monkeypatch, "b")
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.step()
    gate.opened.clear()
    monkeypatch.setattr(surveying, "WAIT_SECONDS", 0.01)

    def pause(seconds: float) -> None:
        gate.opened.set()
        pending = query.reader._logs.threads["b"]._pending
        assert pending is None or pending.result(60)

    monkeypatch.setattr(log_stream, "_sleep", pause)
    while query.step():
        pass
    assert sorted(query.rows[6:]) == rows_of("a", "q", 3, 9) + rows_of("b", "q", 3, 9)


@pytest.mark.parametrize("fails", ["true", "atEnd", "false"])
def test_a_wrong_token_of_all_servers_fails_the_query(new_service: NewService, fails: str) -> None:
    """Even one that continues without servers: otherwise it would read nothing, and say nothing."""
    service = new_service("0123456789abcdef")
    service.append("q", numbered("q", 0, 3))
    options = {"failOnServerDown": fails, "token": "wrong"}
    with pytest.raises(ServiceRefusedError, match="status 401"):
        Query(service.url, **options).step()
    with pytest.raises(ServiceRefusedError, match="status 401"):
        LogTable(Options.parse({"servers": service.url, "retries": "0", **options})).partitions()


def test_a_subscribed_queue_that_was_read_may_be_deleted(service: ThreadedService) -> None:
    """A run that ends refuses names that no server ever had."""
    for name in ("q", "x"):
        service.append(name, numbered(name, 0, 3))
    query = Query(service.url, subscribe="q,x")
    query.drain()
    service.delete("x")
    service.append("q", numbered("q", 3, 5))
    query.drain()
    assert query.rows[6:] == rows_of("default", "q", 3, 5)


@pytest.mark.parametrize("fails", ["true", "atEnd", "false"])
def test_a_plan_that_is_refused_fails_the_query(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A server that lists its queues is not down: a run without it would never read it, and say nothing."""
    _, second, query = two_drained(new_service, failOnServerDown=fails, serverWait="0")
    second.append("q", numbered("q", 3, 5))
    plain = LogServer.plan

    def plan(self: LogServer, starts: Sequence[PlanStart], *arguments: Any) -> list[QueuePlan]:
        if self.name == "b":
            raise ServiceRefusedError("b", 500, {"detail": "a segment is damaged", "code": "damaged"})
        return plain(self, starts, *arguments)

    monkeypatch.setattr(LogServer, "plan", plan)
    with pytest.raises(ServiceRefusedError, match="a segment is damaged"):
        query.drain()
    monkeypatch.setattr(LogServer, "plan", plain)
    query.drain()
    assert query.rows[6:] == rows_of("b", "q", 3, 5)


def test_a_stream_waits_as_long_as_its_option_says(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """For listings and plans, and so for the first look: no server is late before its request may fail."""
    waits, looks = list[Patience](), list[float]()
    made = ServerSet.__init__

    def make(*arguments: Any, **named: Any) -> None:
        waits.append(named["patience"])
        made(*arguments, **named)

    def wait(jobs: Any, seconds: float) -> Any:
        looks.append(seconds)
        return futures.wait(jobs, seconds)

    monkeypatch.setattr(ServerSet, "__init__", make)
    monkeypatch.setattr(surveying, "wait", wait)
    service.append("q", numbered("q", 0, 3))
    assert Query(service.url, timeout="45").step()
    assert {each.seconds for each in waits} == {45.0} and looks[0] > 45


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


def test_a_misspelt_queue_is_reported_once_all_servers_respond(new_service: NewService) -> None:
    """While a server is down, it may be the one that has the queue; an endless stream waits until it exists."""
    first, second, query = two_drained(new_service, failOnServerDown="false")
    query.options["subscribe"] = "q,misspelt"
    first.append("q", numbered("q", 3, 5))
    second.stop()
    query.drain()
    assert query.rows[6:] == rows_of("a", "q", 3, 5)
    second.start()
    with pytest.raises(OptionError, match="no server has a queue 'misspelt'"):
        query.drain()
    query.restart()
    assert not query.step()
    second.append("misspelt", numbered("misspelt", 0, 2))
    assert query.step() and query.rows[8:] == rows_of("b", "misspelt", 0, 2)


def test_a_log_that_is_lost_is_forgotten(new_service: NewService) -> None:
    """Until then it is held back with the one in its place, which is then read from its first record.

    A log that a server has is not forgotten.
    """
    first, second, query = two_drained(new_service)
    log = next(each for each, at in query.committed["logs"].items() if at["server"] == "b")
    query.options["forget"] = log
    with pytest.raises(ForgetError, match="a server has this log"):
        query.drain()
    del query.options["forget"]
    second.replace_by_nothing()
    second.append("q", numbered("new", 0, 4))
    first.append("q", numbered("q", 3, 4))
    with pytest.raises(ServersHeldError, match="continues the log"):
        query.drain()
    assert query.rows[6:] == rows_of("a", "q", 3, 4)
    query.options |= {"forget": log[:8], "startingOffsets": "latest"}
    query.drain()
    assert query.rows[7:] == [("b", "q", at, f"new:{at}".encode()) for at in range(4)]
    assert log not in query.committed["logs"]
