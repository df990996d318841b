"""Reads that begin or end at a time: tables and streams of services, and directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import msgspec
import pytest
from pyspark import cloudpickle

from mrecordlog_async.model import TICK_NS, time_of_tick
from mrecordlog_async.protocol.bulk_schemas import QueuePosition
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.directory import DirectoryReader
from mrecordlog_async.spark.source.reader import LogReader
from mrecordlog_async.support.clock import Clock
from tests.spark.conftest import NewService
from tests.spark.query import Query
from tests.spark.services import ThreadedService, numbered

START = 16_000_000_000
"""Of the clock, in ticks of 0.1 s. Each append of `filled` is 10 s after the one before."""

Found = set[tuple[str, int, datetime]]
Read = Callable[..., Found]


def time_of(number: int) -> datetime:
    return time_of_tick(START + 100 * number)


@pytest.fixture
def filled(service: ThreadedService) -> Iterator[ThreadedService]:
    """Store records at times 0 to 4: of queue a at 0, 2 and 4, of queue b at 1 and 3; a's first one is truncated."""
    now = START
    with patch.object(service.log._engine.opened.journal, "clock", Clock(lambda: now * TICK_NS)):
        for number in range(5):
            service.append("ab"[number % 2], [b"x"] * 2)
            now += 100
    service.truncate("a", 0)
    yield service


@pytest.fixture(params=["service", "directory"])
def read(filled: ThreadedService, request: pytest.FixtureRequest) -> Read:
    """Return a function that reads the log as a table: queue, position and time of each row."""

    def rows(**options: str) -> Found:
        reader = (
            LogReader(Options.parse({"servers": filled.url, "retries": "0", **options}))
            if request.param == "service"
            else DirectoryReader(Options.parse({"path": str(filled.directory), **options}))
        )
        sent = cloudpickle.dumps((reader, list(reader.partitions())))  # type: ignore[no-untyped-call]  # Spark's copy
        copy, partitions = cloudpickle.loads(sent)
        every = [row for part in partitions for batch in copy.read(part) for row in batch.to_pylist()]
        return {(row["queue"], row["position"], row["timestamp"]) for row in every}

    return rows


EVERYTHING = {("a", 1, 0), ("b", 0, 1), ("b", 1, 1), ("a", 2, 2), ("a", 3, 2)} | {
    ("b", 2, 3),
    ("b", 3, 3),
    ("a", 4, 4),
    ("a", 5, 4),
}
"""Queue, position and number of the time of every retained record of `filled`."""


def test_a_table_holds_what_was_stored_between_two_times(read: Read) -> None:
    """The start is included and the end is not, for services and for directories, whose rows have their times too."""
    for start, stop in ((0, 5), (1, 3), (2, 2), (5, 9)):
        rows = read(startingTimestamp=time_of(start).isoformat(), endingTimestamp=time_of(stop).isoformat())
        assert rows == {(queue, at, time_of(number)) for queue, at, number in EVERYTHING if start <= number < stop}
    assert len(read(startingTimestamp="0", endingTimestamp="9999-01-01")) == len(EVERYTHING)
    between = str(int(time_of(2).timestamp() * 1_000) + 100)
    assert {row[2] for row in read(startingTimestamp=between)} == {time_of(3), time_of(4)}


def test_a_start_in_the_future_is_refused(read: Read) -> None:
    """A start in the future is a mistake; an end in the future is the end."""
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with pytest.raises(OptionError, match="is in the future"):
        read(startingTimestamp=later)
    assert len(read(endingTimestamp=later)) == len(EVERYTHING)


def test_a_stream_starts_at_a_time_once(filled: ThreadedService, new_service: NewService) -> None:
    """The time counts for servers that are new in the checkpoint; later queues and restarts do not ask again."""
    other = new_service()
    servers = f"a={filled.url},b={other.url}"
    query = Query(servers, startingTimestamp=time_of(3).isoformat())
    query.step()
    assert {queue: at for queue, (_, at) in query.positions["a"].items()} == {"a": 4, "b": 2}
    query.restart()
    filled.append("late", numbered("late", 0, 2))
    with patch.object(ServiceClient, "positions_at", side_effect=AssertionError("it was asked again")):
        while query.step():
            pass
    assert sorted((row[1], row[2]) for row in query.rows) == [
        *(("a", at) for at in (4, 5)),
        *(("b", at) for at in (2, 3)),
        *(("late", at) for at in (0, 1)),
    ]


def test_a_record_that_comes_meanwhile_is_not_skipped(filled: ThreadedService) -> None:
    """Between listing and search the queue grows: reading begins no later than at the end that was listed."""
    asked = ServiceClient.positions_at

    def grown(client: ServiceClient, time: datetime, queues: dict[str, int], *, opening: str) -> list[QueuePosition]:
        filled.append("a", numbered("a", 6, 9))
        return [msgspec.structs.replace(each, position=9) for each in asked(client, time, queues, opening=opening)]

    query = Query(filled.url, startingTimestamp=time_of(5).isoformat(), subscribe="a")
    with patch.object(ServiceClient, "positions_at", grown):
        query.step()
    assert [at for _, at in query.positions["default"].values()] == [6]
    while query.step():
        pass
    assert [row[2] for row in query.rows] == [6, 7, 8]


def test_a_server_that_goes_down_before_its_times_are_found_is_skipped(
    filled: ThreadedService, new_service: NewService
) -> None:
    """With failOnServerDown=false the other servers are read, and the time still counts when the server is back."""
    other = new_service()
    other.append("q", numbered("q", 0, 3))
    asked = ServiceClient.positions_at

    def stopping(client: ServiceClient, *args: object, **more: object) -> list[QueuePosition]:
        if client.url == filled.url:
            filled.stop()
        return asked(client, *args, **more)  # type: ignore[arg-type]  # passed on

    options = {"failOnServerDown": "false", "startingTimestamp": time_of(4).isoformat()}
    query = Query(f"a={filled.url},b={other.url}", **options)
    with patch.object(ServiceClient, "positions_at", stopping):
        query.step()
    assert list(query.positions) == ["b"]
    filled.start()
    query.restart()
    while query.step():
        pass
    assert sorted((row[0], row[1], row[2]) for row in query.rows) == [
        *(("a", "a", at) for at in (4, 5)),
        *(("b", "q", at) for at in range(3)),
    ]
