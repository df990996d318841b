"""What a stream does without a server that is down, and what the others notice of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mrecordlog_async.servers import outages as absences
from mrecordlog_async.spark import log_stream, surveying
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.losses import ForgetError, ServersHeldError
from mrecordlog_async.spark.options import OptionError
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
def test_a_server_that_responds_badly_delays_no_other(
    new_service: NewService, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for once, for a limited time, and left out while it does not respond."""
    monkeypatch.setattr(surveying, "FIRST_WAIT_SECONDS", 1.0)
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
