"""Requests with retries: what is repeated, for how long, and what is refused at once."""

from __future__ import annotations

import pickle
import socket

import pytest

from mrecordlog_async.protocol import calls
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart, TruncateOne
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.connection import ServerDownError, ServiceConnection, ServiceRefusedError
from mrecordlog_async.spark.log_server import LogListing, LogServer, Patience, RangeDiffersError
from tests.spark.canned import LISTING, client_of, http, serving


def test_errors_survive_pickling() -> None:
    """A task's errors reach the driver by pickle, with all their facts."""
    for error in (
        ServiceRefusedError("s", 410, {"code": "truncated", "detail": "gone"}),
        ServerDownError("s", "http://h", "refused"),
        RangeDiffersError("3 missing"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_busy_and_not_ready_are_retried() -> None:
    """429, 503 and broken connections are retried, not treated as refusals."""
    busy = http(b"{}", "503 Service Unavailable", "Retry-After: 0\r\n")
    with serving(busy, b"", http(LISTING)) as (url, requests), client_of(url, retries=2) as client:
        assert not client.listing().queues
        assert len(requests) == 3


def test_a_connection_that_the_service_closed_while_idle_costs_no_attempt() -> None:
    """The service may close an idle connection between two triggers; that does not count as a failure."""
    with (
        serving(http(LISTING), http(LISTING)) as (url, requests),
        client_of(url, retries=0) as client,
    ):
        assert client.listing() == client.listing() == LogListing()
        assert len(requests) == 2


BROKEN = {
    "half a body": http(LISTING, headers="ETag: x\r\n")[:-5],
    "no response": b"",
    "half a head": b"HTTP/1.1 200 O",
    "a proxy's page": http(b"<html>welcome</html>", headers="Content-Type: text/html\r\n"),
    "other JSON": http(b'{"hello": 1}'),
    "a list": http(b"[]"),
    "500": http(b"oops", "500 Internal Server Error"),
    "502": http(b"<html/>", "502 Bad Gateway"),
    "503": http(b"", "503 Service Unavailable"),
    "504": http(b"", "504 Gateway Timeout"),
    "half a refusal": http(b"x" * 50, "502 Bad Gateway")[:-20],
}


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr("mrecordlog_async.spark.connection._clock", lambda: self.now)
        monkeypatch.setattr("mrecordlog_async.spark.connection._sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("broken", BROKEN)
def test_whatever_breaks_is_retried_and_then_down(broken: str, clock: Clock) -> None:
    """Partial responses, errors of proxies and HTML pages are retried, then mean that the server is down."""
    with (
        serving(BROKEN[broken], http(LISTING)) as (url, requests),
        client_of(url, retries=1) as client,
    ):
        assert not client.listing().queues
        assert len(requests) == 2
    with serving(BROKEN[broken], BROKEN[broken]) as (url, _), client_of(url, retries=1) as client:  # noqa: SIM117
        with pytest.raises(ServerDownError):
            client.listing()


@pytest.mark.parametrize("broken", BROKEN)
def test_plans_and_truncates_are_exchanges_too(broken: str, clock: Clock) -> None:
    """Their bodies are read within the attempt, so a broken body is retried too."""
    good = http(b'{"queues": []}')
    with serving(BROKEN[broken], good, BROKEN[broken], good) as (url, _), client_of(url, retries=1) as client:
        assert client.plan([PlanStart("q", 0, 1, 4)], PlanRequest(), LogListing()) == []
        client.close()
        assert client.truncate([TruncateOne("q", 4, 1)], LogListing()) == []


def test_a_response_that_stalls_is_retried(clock: Clock) -> None:
    """A listing that stalls half way fails after its timeout, and is retried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = LogServer("s", Endpoint(url), patience=Patience(0.05, 2))
        with pytest.raises(ServerDownError, match=r"time|long"):
            client.listing()
        assert len(clock.pauses) == 2
        client.close()


def test_retry_after_is_the_shortest_pause(clock: Clock) -> None:
    """With Retry-After the pause is at least that long; without it, pauses grow."""
    busy = http(b"{}", "503 Service Unavailable", "Retry-After: 7\r\n")
    with serving(busy, http(LISTING)) as (url, _), client_of(url, retries=1) as client:
        client.listing()
    assert clock.pauses == [7]


def test_a_service_that_has_responded_is_waited_for(clock: Clock) -> None:
    """A service that has responded before is waited for as long as a restart may take; an unknown one is not."""
    with serving(http(LISTING)) as (url, _):
        server = Endpoint(url, name="s")
        client = ServiceConnection(server, token=None, timeout_seconds=60, retries=2, patience_seconds=60)
        client.send(calls.summary())
        client.close()
    with pytest.raises(ServerDownError):
        client.send(calls.summary())
    assert 60 <= clock.now < 60 + 5
    clock.now, clock.pauses = 0.0, []
    client = ServiceConnection(server, token=None, timeout_seconds=60, retries=2, patience_seconds=60)
    with pytest.raises(ServerDownError):
        client.send(calls.summary())
    assert len(clock.pauses) == 2


def test_what_is_secret_in_an_address_is_sent_and_never_shown() -> None:
    """User and password are sent as a header; messages show only host and port."""
    with (
        serving(http(LISTING)) as (url, requests),
        client_of(url.replace("//", "//me:s%40crit@")) as client,
    ):
        client.listing()
        assert b"Authorization: Basic bWU6c0Bjcml0\r\n" in requests[0]
    secret = url.replace("//", "//me:s%40crit@") + "/base"
    with pytest.raises(ServerDownError) as failed, client_of(secret) as client:
        client.listing()
    assert "crit" not in str(failed.value)
    assert f"{url}/base" in str(failed.value)


@pytest.mark.parametrize(
    "host, sent",
    [
        ("bücher.test", "xn--bcher-kva.test"),
        ("例え.test", "xn--r8jz45g.test"),
        ("вал.рф", "xn--80ad2a.xn--p1ai"),
        ("h.test", "h.test"),
    ],
)
def test_a_name_of_another_script_is_sent_as_dns_has_it(host: str, sent: str) -> None:
    """A proxy in front of several services chooses one by this header."""
    with serving(http(LISTING)) as (url, requests):
        port = url.rpartition(":")[2]
        client = LogServer("s", Endpoint(f"http://{host}:{port}", "127.0.0.1", "s"), patience=Patience(60.0, 0))
        assert not client.listing().queues
        client.close()
    assert f"\r\nHost: {sent}:{port}\r\n".encode() in requests[0]


def test_other_refusals_are_final() -> None:
    """A refusal that a retry cannot change, such as a wrong token, is raised at once."""
    with (
        serving(http(b'{"detail": "no"}', "401 Unauthorized")) as (url, requests),
        client_of(url, retries=3) as client,
    ):
        with pytest.raises(ServiceRefusedError, match="401: no"):
            client.listing()
        assert len(requests) == 1


def test_the_token_is_sent() -> None:
    """The token is sent as a bearer token."""
    with serving(http(LISTING)) as (url, requests), client_of(url, token="secret") as client:
        client.listing()
        assert b"Authorization: Bearer secret\r\n" in requests[0]


def test_a_server_that_cannot_be_reached_is_named() -> None:
    """The message has the server's name, its address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with client_of(url, retries=1) as client, pytest.raises(ServerDownError, match=r"'s' at http.*refused"):
        client.listing()
