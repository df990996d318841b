"""Services as a table: what is retained, between bounds, fixed when the query is planned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from mrecordlog_async.protocol.bulk_schemas import QueuePlan
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.log_server import LogServer, Patience
from mrecordlog_async.spark.log_table import LogTable
from mrecordlog_async.spark.losses import UnreadLossError
from mrecordlog_async.spark.options import OptionError, Options
from mrecordlog_async.spark.server_set import ServerSet
from tests.spark.conftest import NewService
from tests.spark.query import Query
from tests.spark.services import ThreadedService, numbered


def table(servers: str, **options: str) -> LogTable:
    return LogTable(Options.parse({"servers": servers, "retries": "0", **options}))


def read(reader: LogTable) -> list[dict[str, Any]]:
    """Plan with the reader, and read with a pickled copy."""
    sent = cloudpickle.dumps((reader, list(reader.partitions())))  # type: ignore[no-untyped-call]  # Spark's copy
    copy, partitions = cloudpickle.loads(sent)
    return [row for part in partitions for batch in copy.read(part) for row in batch.to_pylist()]


def positions(reader: LogTable, queue: str = "q") -> list[int]:
    return sorted(row["position"] for row in read(reader) if row["queue"] == queue)


def test_everything_retained_is_read(new_service: NewService) -> None:
    """Of all servers, across gaps; an empty log is an empty table."""
    one, two, empty = new_service(), new_service(), new_service()
    one.append("q", numbered("q", 0, 5))
    one.append("q", [b"far"], 10**12)
    one.truncate("q", 1)
    two.append("r", numbered("r", 0, 3))
    rows = read(table(f"a={one.url},b={two.url}"))
    assert sorted((row["server"], row["position"]) for row in rows) == sorted(
        [("a", at) for at in (2, 3, 4, 10**12)] + [("b", at) for at in range(3)]
    )
    assert read(table(empty.url)) == []
    assert {row["server"] for row in read(table(f"a={two.url},z={two.url}"))} == {"a"}


def test_a_table_is_fixed_when_it_is_planned(service: ThreadedService) -> None:
    """Later records are not in the table; if planned ones are deleted, the read fails and says what to do."""
    service.append("q", numbered("q", 0, 5))
    reader = table(service.url)
    partitions = reader.partitions()
    service.append("q", numbered("q", 5, 9))
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["position"] for row in rows] == [0, 1, 2, 3, 4]
    service.truncate("q", 0)
    with pytest.raises(
        ServiceRefusedError, match=r"410: .*records before 1 are truncated.*; make the DataFrame or the"
    ):
        list(reader.read(partitions[0]))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"startingOffsets": '{"a": {"q": 3}}'}, range(3, 10)),
        ({"startingOffsets": '{"a": {"q": -1}}'}, range(0)),
        ({"endingOffsets": '{"a": {"q": 3}}'}, range(3)),
        ({"startingOffsets": '{"a": {"q": 2}}', "endingOffsets": '{"a": {"q": 4}}'}, range(2, 4)),
        ({"subscribe": "other"}, range(0)),
        ({"subscribePattern": "q|x"}, range(10)),
        ({"startingTimestamp": "2001-01-01"}, range(10)),
        ({"endingTimestamp": "2001-01-01"}, range(0)),
        ({"endingTimestamp": "2999-01-01"}, range(10)),
    ],
)
def test_options_bound_a_table(service: ThreadedService, options: dict[str, str], found: range) -> None:
    """Positions, times and subscriptions."""
    service.append("q", numbered("q", 0, 10))
    service.append("other", numbered("other", 0, 2))
    assert positions(table(f"a={service.url}", **options)) == list(found)


def test_bounds_that_are_not_there_are_refused(service: ThreadedService) -> None:
    """Unless it is accepted that records are gone."""
    service.append("q", numbered("q", 0, 10))
    service.truncate("q", 4)
    given = {"startingOffsets": '{"a": {"q": 2}}'}
    with pytest.raises(UnreadLossError, match="position 2 is not in 5 to 10"):
        table(f"a={service.url}", **given).partitions()
    assert positions(table(f"a={service.url}", failOnDataLoss="false", **given)) == list(range(5, 10))
    future = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    for options, says in [
        ({"startingOffsets": '{"a": {"p": 2}}'}, "has no queue 'p'"),
        ({"subscribe": "p"}, "no server has a queue 'p'"),
        ({"startingTimestamp": future}, "is in the future"),
    ]:
        with pytest.raises(OptionError, match=says):
            table(f"a={service.url}", **options).partitions()


def test_a_server_that_is_down_fails_the_read_unless_it_is_skipped(new_service: NewService) -> None:
    """A table has all servers, or leaves some out."""
    one, two = new_service(), new_service()
    one.append("q", numbered("q", 0, 3))
    two.stop()
    servers = f"a={one.url},b={two.url}"
    with pytest.raises(ServerDownError, match="server 'b'"):
        table(servers).partitions()
    assert positions(table(servers, failOnServerDown="false")) == [0, 1, 2]
    two.start()


def test_copies_of_a_log_are_refused(new_service: NewService, tmp_path: Path) -> None:
    """Their records would be in the table twice."""
    one = new_service()
    one.append("q", numbered("q", 0, 3))
    one.keep_copy(tmp_path / "copy")
    two = new_service()
    two.go_back(tmp_path / "copy")
    with pytest.raises(OptionError, match="live copies"):
        table(f"a={one.url},b={two.url}").partitions()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"startingOffsets": "latest"}, range(10, 15)),
        ({"startingOffsets": '{"default": {"q": 7}}'}, range(7, 15)),
        ({"startingTimestamp": "2001-01-01"}, range(15)),
    ],
)
def test_a_stream_begins_where_the_options_say(service: ThreadedService, given: dict[str, str], found: range) -> None:
    """At its first start; from then on its checkpoint says where it continues, and a new queue is read whole."""
    service.append("q", numbered("q", 0, 10))

    query = Query(service.url, **given)
    query.step()
    service.append("q", numbered("q", 10, 15))
    service.append("new", numbered("new", 0, 2))
    query.drain()
    assert [row[2] for row in query.rows if row[1] == "q"] == list(found)
    assert [row[2] for row in query.rows if row[1] == "new"] == [0, 1]


def test_a_server_that_goes_down_while_a_table_is_planned_is_skipped(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is down before is; by default the query fails."""
    one, two = new_service(), new_service()
    one.append("q", numbered("q", 0, 5))
    two.append("q", numbered("q", 0, 5))
    plain = LogServer.plan

    def plan(self: LogServer, *arguments: Any) -> list[QueuePlan]:
        if self.name == "b":
            two.stop()
        try:
            return plain(self, *arguments)
        finally:
            if self.name == "b":
                two.start()

    monkeypatch.setattr(LogServer, "plan", plan)
    servers = f"a={one.url},b={two.url}"
    with pytest.raises(ServerDownError, match="server 'b'"):
        read(table(servers))
    rows = read(table(servers, failOnServerDown="false"))
    assert [(row["server"], row["position"]) for row in rows] == [("a", at) for at in range(5)]


def test_a_table_waits_as_long_as_its_option_says(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for listings and plans."""
    waits = list[Patience]()
    plain = ServerSet.__init__

    def made(*arguments: Any, **named: Any) -> None:
        waits.append(named["patience"])
        plain(*arguments, **named)

    monkeypatch.setattr(ServerSet, "__init__", made)
    table(service.url, timeout="45").partitions()
    assert [each.seconds for each in waits] == [45.0]
