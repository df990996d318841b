"""Services that are found by a DNS name."""

from __future__ import annotations

import pytest

from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.servers import outages as absences
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark.services import lookups, outages
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import LogMissingError
from mrecordlog_async.spark.services.lookups import Discovery
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of
from tests.spark.services import numbered


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand for the resolver: every look finds the addresses of this list, which a test may change."""
    found: list[str] = []
    monkeypatch.setattr(lookups, "look_up", lambda lookup: lookup.at(found))
    monkeypatch.setattr(lookups, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(absences, "RETRY_SECONDS", 0.0)
    return found


def look(query: Query) -> None:
    """Let the query look its names up, and take over what was found at its next trigger."""
    discovery = query.reader._fleet.servers._discovery
    for _ in range(2):
        discovery.found()
        assert discovery._thread is not None
        discovery._thread.join()


def test_services_come_go_and_move(new_service: NewService, addresses: list[str]) -> None:
    """A new address is read, one that vanishes is down, and its log is read on wherever it comes back."""
    first = new_service(host="127.0.0.1", name="wal-0")
    second = new_service(host="127.0.0.2", port=first.port, name="wal-1")
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1"]
    name = f"wal=dns+http://localhost:{first.port}"
    query = Query(name, failOnServerDown="atEnd", serverWait="60")
    while query.step():
        pass
    assert query.rows == rows_of("wal-0", "q", 0, 3)

    addresses.append("127.0.0.2")
    look(query)
    while query.step():
        pass
    assert query.rows[3:] == rows_of("wal-1", "q", 0, 3)

    second.stop()
    addresses.remove("127.0.0.2")
    look(query)
    first.append("q", numbered("q", 3, 4))
    while query.step():
        pass
    assert query.rows[6:] == rows_of("wal-0", "q", 3, 4)
    assert list((query.reader.reportLatestOffset() or {})["down"]) == ["wal-1"]
    with pytest.raises(ServerDownError, match=r"server 'wal-1' at dns.*no address has its log"):
        query.drain()

    second.host = "127.0.0.3"
    second.start()
    second.append("q", numbered("q", 3, 5))
    addresses.append("127.0.0.3")
    query.drain()
    assert query.rows[7:] == rows_of("wal-1", "q", 3, 5)


def test_only_services_that_were_found_by_a_name_can_vanish_from_it(
    new_service: NewService, addresses: list[str]
) -> None:
    """A server, or a DNS name, that the options leave out is not missed, even if they have other DNS names."""
    services = [new_service(host=f"127.0.0.{at}", name=f"wal-{at}") for at in range(1, 4)]
    for service in services:
        service.append("q", numbered("q", 0, 3))
    names = [f"{name}=dns+http://localhost:{each.port}" for name, each in zip("xy", services[:2], strict=True)]
    addresses[:] = ["127.0.0.1", "127.0.0.2"]
    query = Query(",".join([*names, f"z={services[2].url}"]), failOnServerDown="false")
    query.drain()
    assert len(query.rows) == 9
    query.options |= {"servers": names[0], "failOnServerDown": "true"}
    addresses[:] = ["127.0.0.1"]
    services[0].append("q", numbered("q", 3, 4))
    query.drain()
    assert query.rows[9:] == rows_of("wal-1", "q", 3, 4)
    addresses.clear()
    query.options["servers"] = f"{names[0]},z={services[2].url}"
    with pytest.raises(ServerDownError, match=r"server 'wal-1' at dns.*no address has its log"):
        query.drain()


@pytest.mark.parametrize("returns", [True, False])
def test_a_batch_that_was_begun_waits_for_a_service_that_its_name_lacks(
    new_service: NewService, addresses: list[str], monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """A pod that restarts has no address for a while: its log is not lost, and must not be forgotten."""
    first = new_service(host="127.0.0.1", name="wal-0")
    second = new_service(host="127.0.0.2", port=first.port, name="wal-1")
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1", "127.0.0.2"]
    query = Query(f"wal=dns+http://localhost:{first.port}", failOnServerDown="atEnd", serverWait="60")
    query.step()
    query.step(die_before_commit=True)
    addresses.remove("127.0.0.2")
    times = [0.0]

    def pause(seconds: float) -> None:
        times.append(times[-1] + 10.0)
        if returns and len(times) == 3:
            addresses.append("127.0.0.2")
        look(query)

    monkeypatch.setattr(outages, "_clock", lambda: times[-1])
    monkeypatch.setattr(outages, "_sleep", pause)
    if returns:
        query.step()
        assert sorted(query.rows) == rows_of("wal-0", "q", 0, 3) + rows_of("wal-1", "q", 0, 3)
    else:
        with pytest.raises(ServerDownError, match=r"server 'wal-1' at dns.*no address has its log"):
            query.step()
        assert times[-1] == 60.0


def test_a_batch_that_was_begun_does_not_wait_for_a_server_that_is_not_named_any_more(
    new_service: NewService, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not found by the DNS name that is left, so it cannot come back there: the sentence says how to go on."""
    first, second = new_service(host="127.0.0.1", name="wal-0"), new_service()
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1"]
    wal = f"wal=dns+http://localhost:{first.port}"
    query = Query(f"{wal},z={second.url}", failOnServerDown="atEnd", serverWait="60")
    query.step()
    query.step(die_before_commit=True)
    monkeypatch.setattr(outages, "_sleep", lambda seconds: pytest.fail("it waits"))
    query.options["servers"] = wal
    query.restart()
    with pytest.raises(LogMissingError, match=r"server 'z': .*--forget, option forget: "):
        query.step()


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_waits_for_a_service_finds_it_at_another_address(
    new_service: NewService, addresses: list[str], monkeypatch: pytest.MonkeyPatch, begun: bool, returns: bool
) -> None:
    """A pod that is replaced has another address: it is waited for there, even if its batch was planned before."""
    first = new_service(host="127.0.0.1", name="wal-0")
    second = new_service(host="127.0.0.2", port=first.port, name="wal-1")
    addresses[:] = ["127.0.0.1", "127.0.0.2"]
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    query = Query(f"wal=dns+http://localhost:{first.port}", serverWait="60")
    while query.step():
        pass
    second.append("q", numbered("q", 3, 5))
    if begun:
        query.planned = query.reader.latestOffset(query.committed, query.reader.getDefaultReadLimit())
        query.reader._plans = {}  # otherwise only the task needs the service
    second.stop()
    addresses.remove("127.0.0.2")
    times = [0.0]

    def pause(seconds: float) -> None:
        times.append(times[-1] + 10.0)
        if returns and len(times) == 3:
            second.host = "127.0.0.3"
            second.start()
            addresses.append("127.0.0.3")
        look(query)

    monkeypatch.setattr(outages, "_clock", lambda: times[-1])
    monkeypatch.setattr(outages, "_sleep", pause)
    if returns:
        assert query.step()
        assert query.rows[6:] == rows_of("wal-1", "q", 3, 5)
    else:
        with pytest.raises(ServerDownError, match=r"server 'wal-1' at http"):
            query.step()
        assert times[-1] == 60.0


def test_requests_name_the_log_that_was_listed(new_service: NewService, addresses: list[str]) -> None:
    """Even if its server has another address since: another log that has it now refuses them."""
    first = new_service(host="127.0.0.1", name="wal")
    new_service(host="127.0.0.2", port=first.port, name="wal").append("q", numbered("q", 0, 3))
    first.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1"]
    query = Query(f"wal=dns+http://localhost:{first.port}")
    query.step()
    fleet = query.reader._fleet
    listed = fleet.log_of("wal")
    addresses[:] = ["127.0.0.2"]
    look(query)
    assert fleet.names == ["wal"]
    assert listed and fleet.log_of("wal") == listed
    with pytest.raises(ServiceRefusedError) as refused:
        fleet.client("wal").truncate({"q": (0, 0)}, log=fleet.log_of("wal"))
    assert refused.value.code == "other_log"


def test_each_service_of_a_name_has_the_token_of_that_name(new_service: NewService, addresses: list[str]) -> None:
    """`token.NAME` is for all services that the name stands for; a wrong one is refused at the first look."""
    service = new_service("0123456789abcdef")
    service.append("q", numbered("q", 0, 3))
    addresses.append("127.0.0.1")
    query = Query(f"wal=dns+http://localhost:{service.port}", **{"token": "wrong", "token.wal": "0123456789abcdef"})
    query.drain()
    assert len(query.rows) == 3
    query.options["token.wal"] = "wrong"
    with pytest.raises(Exception, match=r"returned status 401: .*--token-file wal=FILE.* token\.wal "):
        query.drain()


def test_an_address_that_refuses_is_down(new_service: NewService, addresses: list[str]) -> None:
    """The other services of the name are read meanwhile."""
    first = new_service(host="127.0.0.1", name="wal-0")
    second = new_service("0123456789abcdef", host="127.0.0.2", port=first.port, name="wal-1")
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1", "127.0.0.2"]
    query = Query(f"wal=dns+http://localhost:{first.port}", failOnServerDown="false")
    query.drain()
    assert query.rows == rows_of("wal-0", "q", 0, 3)
    ((place, why),) = (query.reader.reportLatestOffset() or {})["down"].items()
    assert "127.0.0.2" in place and why.startswith("returned status 401: ")


def test_a_name_that_is_not_found_is_a_server_that_is_down() -> None:
    """Without any address nothing can be read, and the error has the name; if such servers are skipped, it waits."""
    with pytest.raises(ServerDownError, match=r"server 'wal' at dns\+http://wal.invalid:1 .*the name was not found"):
        Query("wal=dns+http://wal.invalid:1").step()
    query = Query("wal=dns+http://wal.invalid:1", failOnServerDown="atEnd")
    assert not query.step()
    assert list((query.reader.reportLatestOffset() or {})["down"]) == ["wal"]


def test_logs_with_one_name_stay_apart(addresses: list[str]) -> None:
    """Services that call themselves the same, or like a server that was named, get digits of their logs."""
    addresses[:] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    logs = {"127.0.0.1": ("a1a1a1a1a1", "host"), "127.0.0.2": ("b2b2b2b2b2", "host"), "127.0.0.3": ("c3c3c3c3c3", "x")}

    def identify(server: Endpoint) -> LogResponse:
        log, name = logs[server.address or ""]
        return LogResponse(log, name, "", [], 0)

    found = Discovery([Lookup("http", "wal", 1, "wal")], {"x"}, identify).found()
    assert sorted(found.servers) == ["host-a1a1a1a1", "host-b2b2b2b2", "x-c3c3c3c3"]
    assert {server.origin for server in found.servers.values()} == {"wal"}
