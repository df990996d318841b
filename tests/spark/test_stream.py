"""The streaming reader, driven as Spark drives it, without a JVM: pickled between processes, replayed after a crash."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mrecordlog_async.protocol.calls import ServiceCall
from mrecordlog_async.spark import log_stream, surveying
from mrecordlog_async.spark.log_server import LogServer, RangeDiffersError
from mrecordlog_async.spark.losses import UnreadLossError
from mrecordlog_async.spark.offsets import logs_of
from mrecordlog_async.spark.options import OptionError
from tests.spark.conftest import NewService
from tests.spark.query import Query, rows_of, through_json
from tests.spark.services import ThreadedService, numbered


def test_nothing_is_left_in_the_log_after_a_drain(service: ThreadedService) -> None:
    """The last batch is truncated too, though Spark never calls commit for it."""
    for queue in ("a", "b"):
        service.append(queue, numbered(queue, 0, 100))
    query = Query(service.url, truncate="true", maxRecordsPerTrigger="80")
    query.drain()
    assert sorted(query.rows) == rows_of("default", "a", 0, 100) + rows_of("default", "b", 0, 100)
    assert service.records() == {"a": [], "b": []}
    assert query.batches == 3


def test_a_consumer_that_is_always_a_little_behind_keeps_only_what_it_needs(
    service: ThreadedService, caplog: pytest.LogCaptureFixture
) -> None:
    """Each trigger truncates what all consumers have acknowledged; it is logged once which one is behind."""
    service.append("q", numbered("q", 0, 10))
    service.acknowledge("q", "fast", 9)
    query = Query(service.url, truncate="true")
    assert query.step()
    for end in range(10, 60, 10):
        service.acknowledge("q", "billing", end - 2)
        service.append("q", numbered("q", end, end + 10))
        service.acknowledge("q", "fast", end + 9)
        assert query.step()
        assert service.positions("q") == (end - 1, end + 10)
    service.acknowledge("q", "billing", 59)
    query.step()
    assert service.positions("q") == (60, 60)
    assert query.rows == rows_of("default", "q", 0, 60)
    (line,) = [one.getMessage() for one in caplog.records if one.name == "mrecordlog_async.spark"]
    assert line.startswith("server 'default', queue 'q' is not truncated: ") and "consumer 'billing' is at 9 " in line


def test_nothing_is_truncated_without_the_option(service: ThreadedService) -> None:
    """Without the option truncate, reading deletes nothing."""
    service.append("q", numbered("q", 0, 10))
    query = Query(service.url)
    query.drain()
    assert len(query.rows) == 10
    assert service.positions("q") == (0, 10)


def test_a_batch_that_did_not_commit_is_kept_and_read_again(service: ThreadedService) -> None:
    """A batch without a commit stays in the log, and its replay returns the same rows."""
    service.append("q", numbered("q", 0, 10))
    query = Query(service.url, truncate="true", maxRecordsPerTrigger="4")
    query.step(die_before_commit=True)
    query.step()
    query.step(die_before_commit=True)
    assert service.positions("q") == (4, 10)
    service.append("q", numbered("q", 10, 12))
    query.drain()
    assert query.rows == rows_of("default", "q", 0, 12)
    assert service.records() == {"q": []}


def test_an_available_now_run_stops_at_what_was_there_when_it_began(service: ThreadedService) -> None:
    """Records and queues that are added while the run goes on are left for the next one."""
    service.append("q", numbered("q", 0, 10))
    query = Query(service.url, maxRecordsPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    steps = 0
    while query.step():
        steps += 1
        service.append("q", numbered("q", 10 + steps, 11 + steps))
        service.append(f"new-{steps}", numbered("new", 0, 3))
        assert steps < 50
    assert [row[2] for row in query.rows] == list(range(10))


def test_two_servers_with_the_same_queue_name_are_kept_apart(new_service: NewService) -> None:
    """Rows have their server's name, and each log is truncated up to its own positions."""
    first, second = new_service(), new_service()
    first.append("q", numbered("first", 0, 7))
    second.append("q", numbered("second", 0, 3))
    query = Query(f"a={first.url},b={second.url}", truncate="true")
    query.drain()
    assert sorted(query.rows) == [("a", "q", at, f"first:{at}".encode()) for at in range(7)] + [
        ("b", "q", at, f"second:{at}".encode()) for at in range(3)
    ]
    assert (first.positions("q"), second.positions("q")) == ((7, 7), (3, 3))


def test_a_restart_of_the_service_ends_no_stream(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver, and a task in the middle of its partition, wait for a service that restarts."""
    service.append("q", [bytes(1_000)] * 20_000)
    query = Query(service.url, serverWait="60", parallelism="1", retries="5")
    service.stop()
    monkeypatch.setattr("mrecordlog_async.spark.connection._sleep", lambda seconds: service.start())
    end = through_json(query.reader.latestOffset(query.committed, ReadAllAvailable()))
    (partition,) = query.reader.partitions(query.committed, end)
    batches = query.reader.read(partition)
    rows = next(batches).num_rows
    service.stop()
    rows += sum(batch.num_rows for batch in batches)
    assert rows == 20_000


def test_servers_may_be_added_removed_and_moved(new_service: NewService) -> None:
    """Servers are known by name: a new one is enrolled, a removed one keeps its positions, a moved one continues."""
    first, second = new_service(), new_service()
    first.append("q", numbered("q", 0, 3))
    second.append("q", numbered("q", 0, 3))
    query = Query(f"a={first.url}")
    query.drain()
    query.options["servers"] = f"a={first.url},b={second.url}"
    query.drain()
    assert query.rows == rows_of("a", "q", 0, 3) + rows_of("b", "q", 0, 3)
    first.stop()
    first.port = 0
    first.start()
    query.options["servers"] = f"a={first.url}"
    first.append("q", numbered("q", 3, 4))
    query.drain()
    assert query.rows[6:] == rows_of("a", "q", 3, 4)
    assert list(query.positions) == ["a", "b"], "b goes on where it was, should it come back"


def test_gaps_are_neither_records_nor_batches(service: ThreadedService) -> None:
    """A record at 0 and one at 10**12 are two records of one batch."""
    service.append("q", [b"near"], 0)
    service.append("q", [b"far"], 10**12)
    query = Query(service.url, maxRecordsPerTrigger="10")
    query.drain()
    assert query.rows == [("default", "q", 0, b"near"), ("default", "q", 10**12, b"far")]
    assert query.batches == 1


def test_the_limit_that_is_given_is_obeyed(service: ThreadedService) -> None:
    """Queues share the limit of a trigger; ReadAllAvailable means no limit."""
    for queue, count in (("a", 900), ("b", 90), ("c", 10)):
        service.append(queue, numbered(queue, 0, count))
    query = Query(service.url)
    query.step(ReadMaxRows(100))
    counts = [sum(row[1] == queue for row in query.rows) for queue in ("a", "b", "c")]
    assert counts == [90, 9, 1]
    query.step(ReadAllAvailable())
    assert len(query.rows) == 1_000


def test_bytes_are_limited_too(service: ThreadedService) -> None:
    """The tighter of both limits applies, and a record larger than the limit is still read."""
    service.append("q", [bytes(1_000)] * 10)
    query = Query(service.url, maxBytesPerTrigger="2500")
    query.step()
    assert len(query.rows) == 2
    service.append("big", [bytes(10_000)])
    query.drain()
    assert len(query.rows) == 11


def test_latest_begins_after_existing_records(service: ThreadedService) -> None:
    """With latest, only records after the first start are read; a queue created later is read from its beginning."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url, startingOffsets="latest")
    query.drain()
    service.append("q", numbered("q", 5, 7))
    service.append("later", numbered("later", 0, 2))
    query.drain()
    assert sorted(query.rows) == rows_of("default", "later", 0, 2) + rows_of("default", "q", 5, 7)


def test_starting_offsets_name_positions(service: ThreadedService) -> None:
    """startingOffsets may name positions: -1 is the end, and queues not named begin at their first record."""
    for queue in ("a", "b", "c"):
        service.append(queue, numbered(queue, 0, 5))
    query = Query(service.url, startingOffsets='{"default": {"a": 3, "b": -1}}')
    query.drain()
    assert sorted(query.rows) == rows_of("default", "a", 3, 5) + rows_of("default", "c", 0, 5)


def test_a_starting_offset_that_is_not_there_is_a_loss(service: ThreadedService) -> None:
    """A starting position that was never assigned is reported as a loss."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url, startingOffsets='{"default": {"q": 9}}')
    with pytest.raises(UnreadLossError, match="position 9 is not in 0 to 5"):
        query.step()


def test_only_subscribed_queues_are_read_and_truncated(service: ThreadedService) -> None:
    """A pattern must match the whole name."""
    for queue in ("orders-1", "orders-2", "old-orders-1"):
        service.append(queue, numbered(queue, 0, 2))
    query = Query(service.url, subscribePattern=r"orders-\d", truncate="true")
    query.drain()
    assert {row[1] for row in query.rows} == {"orders-1", "orders-2"}
    assert service.positions("old-orders-1") == (0, 2)


def test_a_failed_sync_fails_the_query(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The kernel reports a lost page only once: a retried sync would succeed, and the log would be truncated."""
    service.append("q", numbered("q", 0, 5))

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(log_stream, "syncfs", fail)
    query = Query(service.url, truncate="true", syncDirs=str(tmp_path))
    with pytest.raises(OSError, match="I/O error"):
        query.drain()
    assert service.positions("q") == (0, 5)


def test_a_short_response_fails_the_task(service: ThreadedService) -> None:
    """If planned records are missing from a response, the task fails and runs again."""
    service.append("q", numbered("q", 0, 10))
    query = Query(service.url)
    end = query.reader.latestOffset(through_json(query.committed), ReadAllAvailable())
    (partition,) = query.reader.partitions(query.committed, end)
    (whole,) = partition.task.ranges  # type: ignore[attr-defined]  # of the reader's own kind
    object.__setattr__(partition.task, "ranges", (whole._replace(records=11),))  # type: ignore[attr-defined]
    with pytest.raises(RangeDiffersError, match="1 records early"):
        list(query.reader.read(partition))


def test_progress_reports_where_the_logs_end(service: ThreadedService) -> None:
    """Spark's progress report contains where the logs end and the lag."""
    service.append("q", numbered("q", 0, 10))
    query = Query(service.url, maxRecordsPerTrigger="4")
    assert query.reader.reportLatestOffset() is None
    query.step()
    latest = query.reader.reportLatestOffset()
    assert latest is not None
    assert [at.next for each in logs_of(latest).values() for at in each.queues.values()] == [10]
    assert (query.reader.reportLatestOffset() or {})["waiting"] == {"default": 6}


def test_many_small_queues_share_a_partition(service: ThreadedService) -> None:
    """Many small queues are packed into few partitions, and each record is read once."""

    async def fill() -> None:
        for index in range(2_000):
            await service.log.create_queue(f"q{index:05}")
            await service.log.append_records(f"q{index:05}", None, [b"x"] * 3)

    service.call(fill())
    query = Query(service.url)
    end = query.reader.latestOffset(through_json(query.committed), ReadAllAvailable())
    assert len(query.reader.partitions(query.committed, end)) == 1
    query.step()
    assert len(query.rows) == len(set(query.rows)) == 6_000


def test_a_small_batch_waits_for_more_records(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the least number of records or for the delay; a run that ends takes what is there."""
    now = 0.0
    monkeypatch.setattr(surveying, "_clock", lambda: now)
    service.append("q", numbered("q", 0, 1))
    query = Query(service.url, minRecordsPerTrigger="10", maxTriggerDelay="60")
    assert not query.step()
    service.append("q", numbered("q", 1, 10))
    assert query.step() and len(query.rows) == 10
    service.append("q", numbered("q", 10, 12))
    assert not query.step()
    now = 59.0
    assert not query.step()
    now = 60.0
    assert query.step() and len(query.rows) == 12
    service.append("q", numbered("q", 12, 13))
    assert not query.step()
    query.drain()
    assert len(query.rows) == 13


def test_a_full_batch_waits_for_no_more_records(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the limit in bytes is reached before the least number of records, the batch is read at once, and the next."""
    monkeypatch.setattr(surveying, "_clock", lambda: 0.0)
    service.append("q", [b"x" * 10_000] * 60)
    query = Query(service.url, minRecordsPerTrigger="10", maxTriggerDelay="60", maxBytesPerTrigger="50000")
    for rows in (5, 10, 15):
        assert query.step() and len(query.rows) == rows


def test_a_batch_that_several_logs_share_waits_for_no_more_records(
    new_service: NewService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of the limit are rounded down: a batch is full although it has fewer records than the least number."""
    monkeypatch.setattr(surveying, "_clock", lambda: 0.0)
    services = [new_service() for _ in range(3)]
    for each in services:
        each.append("q", numbered("q", 0, 40))
    servers = ",".join(f"{name}={each.url}" for name, each in zip("abc", services, strict=True))
    query = Query(servers, minRecordsPerTrigger="100", maxRecordsPerTrigger="100", maxTriggerDelay="60")
    assert query.step() and len(query.rows) == 99


def test_a_stream_with_starting_positions_waits_for_a_queue(service: ThreadedService) -> None:
    """A subscribed queue that does not exist is read once it does; one that startingOffsets names must exist."""
    service.append("q", numbered("q", 0, 3))
    positions = '{"default": {"q": 1}}'
    query = Query(service.url, subscribe="q,later", startingOffsets=positions)
    while query.step():
        pass
    service.append("later", numbered("later", 0, 2))
    while query.step():
        pass
    assert query.rows == rows_of("default", "q", 1, 3) + rows_of("default", "later", 0, 2)
    with pytest.raises(OptionError, match="startingOffsets: server 'default' has no queue 'r'"):
        Query(service.url, startingOffsets=positions.replace("q", "r")).step()


def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of the requests from now on, as they are sent."""
    asked, send = list[str](), LogServer.send

    def counted(server: LogServer, call: ServiceCall[Any], log: str = "") -> Any:
        asked.append(call.path)
        return send(server, call, log)

    monkeypatch.setattr(LogServer, "send", counted)
    return asked


def test_a_stream_that_waits_requests_its_listing_alone(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the logs do not change, a trigger costs one request; then it continues."""
    service.append("q", numbered("q", 0, 5))
    query = Query(service.url, truncate="true")
    while query.step():
        pass
    query.step()  # finds that the truncate before it is done
    asked = requests(monkeypatch)
    assert not query.step() and len(asked) == 1
    service.append("q", numbered("q", 5, 8))
    while query.step():
        pass
    assert [row[2] for row in query.rows] == list(range(8))
    assert service.positions("q") == (8, 8)


def test_a_batch_is_planned_and_released_once(service: ThreadedService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that finds the end of a batch also divides it, and `commit` repeats no truncate of `latestOffset`.

    A restart, which knows no plan, requests one.
    """
    service.append("q", numbered("q", 0, 25))
    query = Query(service.url, maxRecordsPerTrigger="10", truncate="true")
    asked = requests(monkeypatch)
    query.step()
    query.step()
    assert (asked.count("/v1/plan"), asked.count("/v1/truncate")) == (2, 1)
    query.step(die_before_commit=True)
    query.step()
    assert asked.count("/v1/plan") >= 4 and query.rows == rows_of("default", "q", 0, 25)


def test_what_is_released_is_synced_before(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Each time something is truncated, each file system that syncDirs names; never while nothing is."""
    synced: list[int] = []
    monkeypatch.setattr(log_stream, "syncfs", lambda handle: synced.append(service.positions("q")[0]))
    service.append("q", numbered("q", 0, 10))
    given = json.dumps([str(tmp_path), str(tmp_path.parent)])
    query = Query(service.url, truncate="true", syncDirs=given, maxRecordsPerTrigger="5")
    while query.step():
        pass
    assert not query.step()
    assert service.positions("q") == (10, 10) and synced == [0, 0, 5, 5]


def test_payloads_may_be_left_out(service: ThreadedService) -> None:
    """A stream of positions alone transfers no payload."""
    service.append("q", numbered("q", 0, 5))
    reader = Query(service.url, payload="false").reader
    end = reader.latestOffset({}, ReadAllAvailable())
    batches = [batch for part in reader.partitions({}, end) for batch in reader.read(part)]
    assert sum(each.num_rows for each in batches) == 5 and "payload" not in batches[0].schema.names


@pytest.mark.parametrize(
    ("given", "tasks"),
    [({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "7"}, 15), ({"parallelism": "8"}, 1)],
)
def test_a_batch_is_divided_as_the_options_say(service: ThreadedService, given: dict[str, str], tasks: int) -> None:
    """A small one has at least so many tasks, none has more records than allowed, and each record is read once."""
    service.append("q", numbered("q", 0, 100))
    query = Query(service.url, **given)
    end = query.reader.latestOffset({}, ReadAllAvailable())
    assert len(query.reader.partitions({}, end)) == tasks
    query.step()
    assert sorted(query.rows) == sorted(rows_of("default", "q", 0, 100))
