"""Services that are found by a DNS name."""

from __future__ import annotations

import pytest

from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.servers import outages as absences
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark import discovery, log_stream
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.discovery import Discovery
from mrecordlog_async.spark.log_table import LogTable
from mrecordlog_async.spark.options import Options
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of
from tests.spark.services import numbered


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand for the resolver: every look finds the addresses of this list, which a test may change."""
    found: list[str] = []
    monkeypatch.setattr(discovery, "look_up", lambda lookup: lookup.at(found))
    monkeypatch.setattr(discovery, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(absences, "RETRY_SECONDS", 0.0)
    return found


def look(query: Query) -> None:
    """Let the query look its names up, and take over what was found at its next trigger."""
    discovery = query.reader._logs._servers._discovery
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
    query = Query(name, failOnServerDown="atEnd")
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
    query.options["serverWait"] = "0"
    with pytest.raises(ServerDownError, match=r"server 'wal-1' at dns.*no address has its log"):
        query.drain()

    second.host = "127.0.0.3"
    second.start()
    second.append("q", numbered("q", 3, 5))
    addresses.append("127.0.0.3")
    query.drain()
    assert query.rows[7:] == rows_of("wal-1", "q", 3, 5)


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


def test_a_table_is_not_silently_short_where_dns_finds_nothing(
    new_service: NewService, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, or leaves the name out if the options say so; so it does with an address that refuses."""
    one, other = new_service(), new_service("0123456789abcdef", host="127.0.0.2")
    one.append("q", numbered("q", 0, 3))
    addresses.append("127.0.0.2")
    for name, says in [(f"localhost:{other.port}", "status 401"), ("wal.invalid:1", "the name was not found")]:
        if "invalid" in name:
            monkeypatch.undo()
        given = {"servers": f"a={one.url},wal=dns+http://{name}", "retries": "0"}
        with pytest.raises(Exception, match=says):
            LogTable(Options.parse(given)).partitions()
        table = LogTable(Options.parse({**given, "failOnServerDown": "false"}))
        assert sum(batch.num_rows for part in table.partitions() for batch in table.read(part)) == 3


def test_a_first_batch_that_was_begun_waits_for_a_name_without_its_address(
    new_service: NewService, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may have it again soon: nothing says that its log is lost."""
    first = new_service(host="127.0.0.1", name="wal-0")
    second = new_service(host="127.0.0.2", port=first.port, name="wal-1")
    for service in (first, second):
        service.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1", "127.0.0.2"]
    query = Query(f"wal=dns+http://localhost:{first.port}", failOnServerDown="atEnd", serverWait="60")
    query.step(die_before_commit=True)
    addresses.remove("127.0.0.2")

    def pause(seconds: float) -> None:
        addresses[:] = ["127.0.0.1", "127.0.0.2"]
        look(query)

    monkeypatch.setattr(log_stream, "_sleep", pause)
    query.step()
    assert sorted(query.rows) == rows_of("wal-0", "q", 0, 3) + rows_of("wal-1", "q", 0, 3)


@pytest.mark.parametrize("fails", ["false", "true"])
def test_a_wrong_token_of_all_services_behind_a_name_is_no_empty_table(
    new_service: NewService, addresses: list[str], fails: str
) -> None:
    """It fails the query, as that of a server with a name does; a stream as well."""
    service = new_service("0123456789abcdef", name="wal-0")
    service.append("q", numbered("q", 0, 3))
    addresses[:] = ["127.0.0.1"]
    options = {"servers": f"wal=dns+http://localhost:{service.port}", "failOnServerDown": fails, "token": "wrong"}
    with pytest.raises(ServiceRefusedError, match="401"):
        LogTable(Options.parse({"retries": "0", **options})).partitions()
    with pytest.raises(ServiceRefusedError, match="401"):
        Query(options.pop("servers"), **options).step()
