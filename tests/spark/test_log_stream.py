"""A stream whose offset is the positions of all queues: nothing is read twice or left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.model import FUTURE_SECONDS_MAX
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.protocol.bulk_schemas import QueuePlan, QueuePosition
from mrecordlog_async.spark.connection import ServerDownError
from mrecordlog_async.spark.log_server import LogServer
from mrecordlog_async.spark.losses import ForgetError, ServersHeldError, UnreadLossError
from tests.compatibility.pipeline import BATCH, READ, payloads
from tests.compatibility.record import DATA, unpacked
from tests.spark.conftest import NewService
from tests.spark.query import EarlierQuery, Query, Row, rows_of
from tests.spark.services import ThreadedService, numbered

pytest.importorskip("pyspark.sql.streaming.datasource", exc_type=ImportError)


def feed(service: ThreadedService, queue: str, start: int, stop: int) -> None:
    service.append(queue, numbered(queue, start, stop))


def test_a_run_that_ends_begins_where_the_checkpoint_does(service: ThreadedService) -> None:
    """It compares neither the options' first positions nor its consumer with a checkpoint that is empty."""
    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    service.call(service.log.create_consumer("q", "slow"))
    feed(service, "q", 0, 10)
    owner = "00000000-0000-0000-0000-000000000001"
    consuming = Query(service.url, consumer="lake", consumerOwner=owner)
    feed(service, "r", 0, 10)
    placed = Query(service.url, subscribe="r", startingOffsets='{"default": {"r": 3}}')
    for start in (0, 10, 20):
        consuming.drain()
        placed.drain()
        service.truncate("r", start + 9)
        feed(service, "q", start + 10, start + 20)
        feed(service, "r", start + 10, start + 20)
    consuming.drain()
    assert [row for row in consuming.rows if row[1] == "q"] == rows_of("default", "q", 0, 40)
    assert placed.rows == rows_of("default", "r", 3, 30)


@pytest.mark.parametrize("recreated", [False, True])
def test_a_batch_that_runs_again_has_the_same_records(service: ThreadedService, recreated: bool) -> None:
    """Although queues were added and records appended; also what is new in it."""
    feed(service, "q", 0, 10)
    query = Query(service.url)
    query.step(die_before_commit=True)
    feed(service, "q", 10, 20)
    feed(service, "new", 0, 5)
    query.step()
    assert query.rows == rows_of("default", "q", 0, 10)
    query.drain()
    assert sorted(query.rows) == sorted([*rows_of("default", "q", 0, 20), *rows_of("default", "new", 0, 5)])
    if recreated:
        service.delete("new")
        feed(service, "new", 0, 3)
        query.step(die_before_commit=True)
        feed(service, "new", 3, 6)
        query.drain()
        assert sorted(query.rows)[5:11] != [] and len(query.rows) == 25 + 6


def test_a_log_that_went_back_is_held_back(new_service: NewService, tmp_path: Path) -> None:
    """The others are read on; without any other, the query fails."""
    one, other = new_service(), new_service()
    feed(one, "q", 0, 10)
    one.keep_copy(tmp_path / "copy")
    feed(one, "q", 10, 20)
    query, alone = Query(f"a={one.url},b={other.url}"), Query(f"a={one.url}")
    query.step()
    alone.step()
    one.go_back(tmp_path / "copy")
    feed(other, "r", 0, 3)
    query.step()
    assert query.rows == [*rows_of("a", "q", 0, 20), *rows_of("b", "r", 0, 3)]
    with pytest.raises(ServersHeldError, match="it went back"):
        alone.step()


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("options", [{"truncate": "true"}, {"consumer": "lake"}], ids=["truncate", "consumer"])
def test_a_batch_that_runs_again_reads_no_log_that_went_back(
    service: ThreadedService, tmp_path: Path, options: dict[str, str], accepted: bool
) -> None:
    """Others are at its positions. Once that is accepted, the next batches read all that the log holds."""
    if "consumer" in options:
        options = options | {"consumerOwner": "00000000-0000-0000-0000-000000000001"}
    service.call(service.log.create_queue("q"))
    feed(service, "other", 0, 3)
    query = Query(service.url, **options)
    query.step()
    feed(service, "q", 0, 10)
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 10, 20)
    query.step(die_before_commit=True)
    service.keep_copy(tmp_path / "newest")
    service.go_back(tmp_path / "copy")
    service.append("q", numbered("else", 10, 40))
    read = list(query.rows)
    if accepted:
        query.options["acceptWentBack"] = "true"
        query.drain()
        assert [row[3] for row in query.rows[len(read) :] if row[1] == "q"] == [
            *numbered("q", 0, 10),
            *numbered("else", 10, 40),
        ]
        return
    with pytest.raises(ServersHeldError, match="it went back"):
        query.step()
    assert query.rows == read
    service.go_back(tmp_path / "newest")
    query.drain()
    assert query.rows[len(read) :] == rows_of("default", "q", 0, 20)


def test_a_batch_that_runs_again_reads_neither_of_two_live_copies(new_service: NewService, tmp_path: Path) -> None:
    """It is unknown which of them has its records."""
    one = new_service()
    feed(one, "q", 0, 10)
    query = Query(f"a={one.url}")
    query.step(die_before_commit=True)
    one.keep_copy(tmp_path / "copy")
    other = new_service()
    other.go_back(tmp_path / "copy")
    query.options["servers"] = f"a={one.url},b={other.url}"
    query.restart()
    with pytest.raises(ServersHeldError, match="live copies"):
        query.step()
    query.options["servers"] = f"a={one.url}"
    query.restart()
    query.step()
    assert query.rows == rows_of("a", "q", 0, 10)


def test_rows_of_a_batch_that_runs_again_keep_the_name_of_their_server(service: ThreadedService) -> None:
    """Whatever its server is called now: a sink may have some of them already."""
    feed(service, "q", 0, 10)
    query = Query(f"a={service.url}")
    query.step(die_before_commit=True)
    query.options["servers"] = f"b={service.url}"
    query.restart()
    query.step()
    assert query.rows == rows_of("a", "q", 0, 10)


def test_going_back_is_accepted_once_per_run(service: ThreadedService, tmp_path: Path) -> None:
    """A log that goes back again is held back until the next run accepts that."""
    feed(service, "q", 0, 10)
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 10, 20)
    query = Query(service.url, acceptWentBack="true")
    query.step()
    service.go_back(tmp_path / "copy")
    while query.step():
        pass
    assert query.rows == [*rows_of("default", "q", 0, 20), *rows_of("default", "q", 0, 10)]
    feed(service, "q", 10, 15)
    query.step()
    service.go_back(tmp_path / "copy")
    with pytest.raises(ServersHeldError, match="it went back"):
        query.step()
    query.restart()
    while query.step():
        pass
    assert query.rows[35:] == rows_of("default", "q", 0, 10)


def test_each_server_gets_a_share_of_a_batch(new_service: NewService) -> None:
    """One with a backlog of many batches delays no other, even if a batch has room for one server alone."""
    for limit in (10, 1):
        a, b = new_service(), new_service()
        feed(a, "q", 0, 100)
        feed(b, "r", 0, 1)
        query = Query(f"a={a.url},b={b.url}", maxRecordsPerTrigger=str(limit))
        for _ in range(2):
            query.step()
        feed(b, "r", 1, 4)
        for _ in range(8):
            query.step()
        assert [row for row in query.rows if row[0] == "b"] == rows_of("b", "r", 0, 4)
        assert len(query.rows) <= limit * query.batches


def test_a_log_that_goes_back_while_a_batch_is_planned(
    service: ThreadedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made again from a new listing: otherwise its records would be those of another state of the log."""
    feed(service, "q", 0, 10)
    query = Query(service.url)
    query.step()
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 10, 20)
    plain, turns = LogServer.plan, [lambda: service.go_back(tmp_path / "copy")]

    def plan(*arguments: Any) -> list[QueuePlan]:
        while turns:
            turns.pop()()
            service.append("q", numbered("else", 10, 20))
        return plain(*arguments)

    monkeypatch.setattr(LogServer, "plan", plan)
    query.step()
    service.append("q", numbered("else", 20, 25))
    query.step()
    assert [row[3] for row in query.rows] == [*numbered("q", 0, 10), *numbered("else", 10, 25)]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_queue_that_is_deleted_while_its_start_is_looked_up(
    service: ThreadedService, monkeypatch: pytest.MonkeyPatch, recreated: bool
) -> None:
    """It is not read from the position 0."""
    feed(service, "q", 0, 5)
    feed(service, "r", 0, 5)
    plain, turns = LogServer.positions_at, [lambda: service.delete("q")]

    def positions_at(*arguments: Any) -> list[QueuePosition]:
        while turns:
            turns.pop()()
            if recreated:
                feed(service, "q", 0, 2)
        return plain(*arguments)

    monkeypatch.setattr(LogServer, "positions_at", positions_at)
    start = datetime.now(UTC) + timedelta(seconds=FUTURE_SECONDS_MAX / 2)
    query = Query(service.url, startingTimestamp=start.isoformat())
    query.step()
    feed(service, "r", 5, 7)
    query.step()
    assert query.rows == rows_of("default", "r", 5, 7)


@pytest.mark.parametrize("is_read", [False, True], ids=["new log", "known log"])
@pytest.mark.parametrize("deleted", [False, True])
def test_records_of_a_queue_that_was_seen_empty_are_missed(
    service: ThreadedService, is_read: bool, deleted: bool
) -> None:
    """What was seen empty is in the checkpoint, so what was removed from it unread is a loss."""
    query = Query(service.url)
    if is_read:
        feed(service, "q", 0, 5)
        query.step()
    service.call(service.log.create_queue("x"))
    query.step()
    assert not query.step()
    feed(service, "x", 0, 10)
    if deleted:
        service.delete("x")
    else:
        service.truncate("x", 4)
    with pytest.raises(UnreadLossError, match="queue 'x'"):
        query.step()


def test_a_queue_that_was_seen_empty_does_not_end_the_wait_for_more(service: ThreadedService) -> None:
    """A batch with fewer records than minRecordsPerTrigger waits, even if one of its queues is new."""
    feed(service, "q", 0, 3)
    query = Query(service.url, minRecordsPerTrigger="5", maxTriggerDelay="600")
    assert not query.step()
    service.call(service.log.create_queue("x"))
    assert not query.step()
    feed(service, "q", 3, 5)
    assert query.step() and query.rows == rows_of("default", "q", 0, 5)


def test_positions_that_are_missing_do_not_end_the_wait_for_more(service: ThreadedService) -> None:
    """A gap is not a backlog."""
    feed(service, "q", 0, 100)
    query = Query(service.url, minRecordsPerTrigger="50", maxTriggerDelay="600")
    assert query.step()
    service.append("q", numbered("q", 150, 151), 150)
    assert not query.step()
    feed(service, "q", 151, 200)
    assert query.step() and len(query.rows) == 150


def test_a_start_that_had_to_be_moved_is_reported(service: ThreadedService, caplog: pytest.LogCaptureFixture) -> None:
    """Although the loss is accepted."""
    feed(service, "q", 0, 10)
    service.truncate("q", 6)
    start = '{"default": {"q": 3}}'
    query = Query(service.url, startingOffsets=start, failOnDataLoss="false")
    query.step()
    assert query.rows == rows_of("default", "q", 7, 10)
    assert "queue 'q': position 3 is not in 7 to 10" in caplog.text


def test_a_stream_that_is_held_back_names_its_own_options(service: ThreadedService, tmp_path: Path) -> None:
    """Next to those of a drain."""
    feed(service, "q", 0, 10)
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 10, 20)
    query = Query(service.url)
    query.step()
    service.go_back(tmp_path / "copy")
    with pytest.raises(ServersHeldError, match="acceptWentBack=true in Spark"):
        query.step()
    service.replace_by_nothing()
    query.restart()
    with pytest.raises(ServersHeldError, match=r"--forget (\w{8}) \(forget=\1 in Spark\)"):
        query.step()
    service.go_back(tmp_path / "copy")
    log = next(iter(query.committed["logs"]))
    query.options["forget"] = log
    query.restart()
    with pytest.raises(ForgetError, match="forget in Spark"):
        query.step()


def test_the_report_says_what_the_batch_leaves(new_service: NewService) -> None:
    """Of each server, also where the limit was reached before it."""
    one, two = new_service(), new_service()
    feed(one, "q", 0, 10)
    feed(two, "q", 0, 10)
    query = Query(f"a={one.url},b={two.url}", maxRecordsPerTrigger="1")
    for _ in range(3):
        query.step()
        found = query.reader.reportLatestOffset()
        assert found is not None
        assert sum(found["waiting"].values()) == 20 - len(query.rows)


@pytest.mark.parametrize("grown", [False, True], ids=["shorter", "grown past"])
@pytest.mark.parametrize("earlier", [False, True], ids=["4.2", "4.0"])
def test_a_log_that_went_back_is_not_truncated_by_the_old_positions(
    service: ThreadedService, tmp_path: Path, earlier: bool, grown: bool
) -> None:
    """Once that is accepted, all of the log is read again, and only what was read then is released."""
    feed(service, "q", 0, 10)
    service.keep_copy(tmp_path / "copy")
    feed(service, "q", 10, 20)
    options = {"acceptWentBack": "true", "truncate": "true"}
    query: Query | EarlierQuery = (
        EarlierQuery(service.url, tmp_path / "checkpoint", **options) if earlier else Query(service.url, **options)
    )
    query.step()
    service.go_back(tmp_path / "copy")
    if grown:
        service.append("q", numbered("other", 10, 40))
    held = len(service.records()["q"])
    query.step(die_before_commit=True)
    assert len(service.records()["q"]) == held
    query.step()  # where it is read from is in the checkpoint before its records are
    assert query.step() and len(query.rows) == 20 + held and len(service.records()["q"]) == held
    feed(service, "q", 40 if grown else 10, 45)
    while query.step():
        pass
    feed(service, "q", 45, 46)
    assert query.step() and service.positions("q") == (45, 46)


def test_a_server_that_is_down_fails_the_query_unless_it_is_skipped(new_service: NewService) -> None:
    """Watermarks are the reason to wait for it; `false` continues without it."""
    one, two = new_service(), new_service()
    feed(one, "q", 0, 5)
    feed(two, "r", 0, 5)
    servers = f"a={one.url},b={two.url}"
    failing, skipping = Query(servers), Query(servers, failOnServerDown="false")
    failing.step()
    skipping.step()
    two.stop()
    feed(one, "q", 5, 10)
    with pytest.raises(ServerDownError, match="server 'b'"):
        failing.step()
    skipping.step()
    assert sorted(skipping.rows) == sorted([*rows_of("a", "q", 0, 10), *rows_of("b", "r", 0, 5)])
    two.start()


# Of earlier releases.


@pytest.fixture(params=sorted(path.name for path in DATA.iterdir()))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpacked(request.param, tmp_path)


@pytest.fixture
def earlier(place: Path) -> Iterator[ThreadedService]:
    service = ThreadedService(place / "log")
    yield service
    service.end()


@pytest.mark.parametrize("killed", [False, True])
def test_a_plain_stream_goes_on(earlier: ThreadedService, place: Path, killed: bool) -> None:
    """It reads what it has not read, even a batch again that was planned and whose commit file is missing."""
    offsets = (place / "clicks" / "checkpoint" / "offsets").glob("[0-9]*")
    *_, before, last = (json.loads(path.read_text().splitlines()[2]) for path in sorted(offsets))
    query = Query(f"a={earlier.url}", subscribe="clicks")
    query.committed, query.planned = (before, last) if killed else (last, None)
    query.drain()
    found: list[Row] = query.rows
    expected = [("clicks", at, payload) for at, payload in enumerate(payloads("clicks", 0, 2 * READ))]
    assert [row[1:] for row in found] == expected[READ - BATCH if killed else READ :]
