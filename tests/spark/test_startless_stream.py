"""The reader for Spark 4.0 and 4.1, driven with the calls that they make, in their order, without a JVM."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.spark.log_stream import PASSES_LIMITS
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError
from mrecordlog_async.spark.offsets import first_of, logs_of
from mrecordlog_async.spark.options import OptionError
from tests.spark.conftest import NewService
from tests.spark.query import EarlierQuery, Query, Row, rows_of
from tests.spark.services import ThreadedService, numbered

LOGGER = "mrecordlog_async.spark"


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == LOGGER]


def test_a_run_of_one_batch_reads_what_stood_at_its_start(service: ThreadedService, tmp_path: Path) -> None:
    """trigger(availableNow=True) is one batch there: it reads new queues too, each record once, and no run is empty."""
    query = EarlierQuery(service.url, tmp_path / "c")
    for run in range(3):
        for queue in ("q", f"new-{run}"):
            first = 10 * run if queue == "q" else 0
            service.append(queue, numbered(queue, first, first + 10))
        query.run_available_now()
    expected = [row for run in range(3) for row in rows_of("default", f"new-{run}", 0, 10)]
    assert sorted(query.rows) == expected + rows_of("default", "q", 0, 30)
    assert query.batches == 3


def test_the_run_after_a_crash_finishes_the_batch_that_was_begun(service: ThreadedService, tmp_path: Path) -> None:
    """A replayed batch returns the same rows, even of queues that were new in it; the run after that reads the rest."""
    service.append("q", numbered("q", 0, 10))
    query = EarlierQuery(service.url, tmp_path / "c", truncate="true")
    query.step(die_before_commit=True)
    service.append("q", numbered("q", 10, 15))
    query.run_available_now()
    assert query.rows == rows_of("default", "q", 0, 10)
    query.run_available_now()
    assert query.rows == rows_of("default", "q", 0, 15)


def test_limits_hold_from_the_second_batch_on(
    service: ThreadedService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first batch of a run takes all that there is, after a restart too, and a warning says so."""
    service.append("q", numbered("q", 0, 30))
    query = EarlierQuery(service.url, tmp_path / "c", maxRecordsPerTrigger="10")
    assert query.step() and len(query.rows) == 30
    (line,) = messages(caplog)
    assert "first batch of this run has 30 records" in line and "from the second batch of a run on" in line
    service.append("q", numbered("q", 30, 50))
    for count in (40, 50):
        assert query.step() and len(query.rows) == count
    service.append("q", numbered("q", 50, 90))
    query.run_available_now()
    assert query.rows == rows_of("default", "q", 0, 90)


def test_limits_hold_after_a_restart_of_a_consumer(
    service: ThreadedService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first batch has limits there; a warning says what one batch leaves."""
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, tmp_path / "c", maxRecordsPerTrigger="10", consumer="lake")
    query.run_available_now()
    service.append("q", numbered("q", 5, 30))
    for count in (15, 25):
        query.run_available_now()
        assert len(query.rows) == count
    assert any("leave 15 records for later batches" in line for line in messages(caplog))
    query.run_available_now()
    assert query.rows == rows_of("default", "q", 0, 30)


def test_only_what_commit_confirms_is_released(service: ThreadedService, tmp_path: Path) -> None:
    """Without the checkpoint, the last batch stays in the log until the next one; that is so after a restart, too."""
    service.append("q", numbered("q", 0, 10))
    query = EarlierQuery(service.url, tmp_path / "c", truncate="true")
    assert query.step() and not query.step()
    query.restart()
    assert not query.step()
    assert service.positions("q") == (0, 10)
    service.append("q", numbered("q", 10, 12))
    assert query.step()
    assert service.positions("q") == (10, 12)


def test_a_consumer_acknowledges_what_is_committed(service: ThreadedService, tmp_path: Path) -> None:
    """As on later versions, after the commit."""
    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    service.append("q", numbered("q", 0, 10))
    query = EarlierQuery(service.url, tmp_path / "c", consumer="lake")
    assert query.step() and not query.step()
    assert service.positions("q") == (0, 10)
    service.append("q", numbered("q", 10, 15))
    assert query.step()
    assert service.positions("q") == (10, 15)  # a batch is acknowledged with the next one


def test_a_loss_is_found(service: ThreadedService, tmp_path: Path) -> None:
    """Records that were truncated before they were read stop the query, after a restart and within a run."""
    service.append("q", numbered("q", 0, 10))
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step()
    service.append("q", numbered("q", 10, 30))
    service.truncate("q", 19)
    with pytest.raises(UnreadLossError, match="positions 10 to 19 were truncated"):
        query.step()
    query.restart()
    with pytest.raises(UnreadLossError, match="positions 10 to 19 were truncated"):
        query.step()


def test_a_log_that_went_back_is_held_back(new_service: NewService, tmp_path: Path) -> None:
    """The state of each log is in the checkpoint, as on later versions."""
    service = new_service()
    service.append("q", numbered("q", 0, 5))
    service.keep_copy(tmp_path / "copy")
    service.append("q", numbered("q", 5, 10))
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step()
    service.go_back(tmp_path / "copy")
    query.restart()
    with pytest.raises(ServersHeldError, match="went back"):
        query.step()


def test_sparks_wrapper_for_available_now_is_refused(service: ThreadedService, tmp_path: Path) -> None:
    """With it, Spark asks where a run ends before it says where the run begins; a first start is fine."""
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, tmp_path / "c")
    target = query.reader.latestOffset()
    query.reader.latestOffset()  # Spark drops what this returns
    query.write("offsets", 0, "{}", json.dumps(target))
    assert query.step() and query.rows == rows_of("default", "q", 0, 5)
    query.reader.stop()
    query.reader = type(query.reader)(query.reader._options)
    query.reader.latestOffset()
    with pytest.raises(OptionError, match=r"triggerAvailableNowWrapper\.enabled .* set it to false"):
        query.reader.partitions(query.end(0), query.end(0))


def test_a_spark_that_does_not_say_where_it_stands_reads_each_record_once(
    service: ThreadedService, tmp_path: Path
) -> None:
    """Then a restart looks like a new query: its first batch reads from where Spark stands, and new queues too."""
    service.append("q", numbered("q", 0, 10))
    query = EarlierQuery(service.url, tmp_path / "c", maxRecordsPerTrigger="4")
    query.step()
    service.append("q", numbered("q", 10, 20))
    service.append("new", numbered("new", 0, 5))
    query.reader.stop()
    query.reader = type(query.reader)(query.reader._options)
    assert query.step()
    service.append("q", numbered("q", 20, 22))
    assert query.step() and not query.step()
    assert sorted(query.rows) == rows_of("default", "new", 0, 5) + rows_of("default", "q", 0, 22)


def test_an_empty_log_makes_one_empty_batch(service: ThreadedService, tmp_path: Path) -> None:
    """A first start without queues stores nothing that a restart does not continue."""
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step()
    query.restart()
    service.append("q", numbered("q", 0, 3))
    while query.step():
        pass
    assert query.rows == rows_of("default", "q", 0, 3)


def test_only_an_offset_that_begins_queues_has_the_newer_version(service: ThreadedService, tmp_path: Path) -> None:
    """A package that does not know `first` refuses the offset, instead of skipping its records."""
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step()
    service.append("q", numbered("q", 5, 6))
    query.step()
    assert [query.end(batch)["version"] for batch in (0, 1)] == [4, 3]
    assert [first_of(query.end(0), log) for log in logs_of(query.end(0))] == [{"q": 0}]


@pytest.mark.skipif(not PASSES_LIMITS, reason="this pyspark has no reader that gets a start")
def test_a_later_spark_finishes_a_batch_that_began_queues(service: ThreadedService, tmp_path: Path) -> None:
    """The offset says where they began, so the reader of 4.2 and later reads the batch as this one would have."""
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step(die_before_commit=True)
    service.append("q", numbered("q", 5, 8))
    later = Query(service.url)
    later.planned = query.end(0)
    assert later.step() and later.rows == rows_of("default", "q", 0, 5)
    assert later.step() and later.rows == rows_of("default", "q", 0, 8)


@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_read_once(service: ThreadedService, tmp_path: Path, seed: int) -> None:
    """Whatever happens between the calls: appends, new and recreated queues, crashes before the commit, restarts."""
    chance = random.Random(seed)
    release = chance.choice([{}, {"truncate": "true"}, {"consumer": "lake"}])
    query = EarlierQuery(service.url, tmp_path / "c", maxRecordsPerTrigger="7", **release)
    kept = QueueOptions(keep="until_acknowledged") if "consumer" in release else None
    expected: list[Row] = []
    ends: dict[str, int] = {}
    for _ in range(60):
        match chance.randrange(6):
            case 0 | 1:
                queue = f"q{chance.randrange(4)}"
                service.call(service.log.create_queue(queue, exist_ok=True, options=kept))
                first, ends[queue] = ends.get(queue, 0), ends.get(queue, 0) + chance.randrange(1, 12)
                service.append(queue, numbered(queue, first, ends[queue]))
                expected += rows_of("default", queue, first, ends[queue])
            case 2 | 3:
                query.step(die_before_commit=chance.random() < 0.3)
            case 4:
                query.restart()
            case 5:
                while query.step():
                    pass
                if ends and chance.random() < 0.3:
                    queue = chance.choice(sorted(ends))
                    service.call(service.log.delete_queue(queue, past_consumers=True))
                    del ends[queue]
    while query.step():
        pass
    assert sorted(query.rows) == sorted(expected)
