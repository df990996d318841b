"""The reader for Spark 4.0 and 4.1, driven with the calls that they make, in their order, without a JVM."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.spark.checkpoints.source_report import read_report
from mrecordlog_async.spark.positions.offsets import DataLossError, HeldBackError
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.source.stream import PASSES_LIMITS
from tests.spark.conftest import NewService
from tests.spark.query import EarlierQuery, Query, Row, rows_of
from tests.spark.services import ThreadedService, numbered

LOGGER = "mrecordlog_async.spark"


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == LOGGER]


def with_checkpoint(service: ThreadedService, place: Path, **options: str) -> EarlierQuery:
    return EarlierQuery(service.url, place, checkpoint=str(place), **options)


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
    """The first batch of a run takes all that there is, and a warning names the option that avoids it."""
    service.append("q", numbered("q", 0, 30))
    query = EarlierQuery(service.url, tmp_path / "c", maxRecordsPerTrigger="10")
    assert query.step() and len(query.rows) == 30
    (line,) = messages(caplog)
    assert "first batch of this run has 30 records" in line and "option checkpoint" in line
    service.append("q", numbered("q", 30, 50))
    for count in (40, 50):
        assert query.step() and len(query.rows) == count
    assert query.rows == rows_of("default", "q", 0, 50)


@pytest.mark.parametrize("known", ["checkpoint", "consumer"])
def test_limits_hold_after_a_restart_that_knows_where_it_stands(
    service: ThreadedService, tmp_path: Path, caplog: pytest.LogCaptureFixture, known: str
) -> None:
    """With the checkpoint, or as a consumer, the first batch has limits; a warning says what one batch leaves."""
    place = tmp_path / "c"
    option = {"checkpoint": {"checkpoint": str(place)}, "consumer": {"consumer": "lake"}}[known]
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, place, maxRecordsPerTrigger="10", **option)
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


def test_with_the_checkpoint_nothing_is_left_in_the_log(service: ThreadedService, tmp_path: Path) -> None:
    """The checkpoint proves what is committed: the next trigger releases it, even if nothing new has come."""
    service.append("q", numbered("q", 0, 10))
    query = with_checkpoint(service, tmp_path / "c", truncate="true")
    assert query.step()
    assert service.positions("q") == (0, 10)
    assert not query.step()
    assert service.positions("q") == (10, 10)


def test_what_the_checkpoint_has_not_committed_is_not_released(service: ThreadedService, tmp_path: Path) -> None:
    """If a Spark requested the next end before the commit file is there, nothing would be released."""
    service.append("q", numbered("q", 0, 10))
    query = with_checkpoint(service, tmp_path / "c", truncate="true")
    query.step()
    (query.place / "commits" / "0").unlink()
    query.reader.latestOffset()
    assert service.positions("q") == (0, 10)
    query.write("commits", 0, '{"nextBatchWatermarkMs":0}')
    query.reader.latestOffset()
    assert service.positions("q") == (10, 10)


def test_a_consumer_acknowledges_what_is_committed(service: ThreadedService, tmp_path: Path) -> None:
    """As on later versions: acknowledged after the commit, and a consumer that is ahead is refused."""
    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    service.append("q", numbered("q", 0, 10))
    query = with_checkpoint(service, tmp_path / "c", consumer="lake")
    assert query.step() and not query.step()
    assert service.positions("q") == (10, 10)
    other = EarlierQuery(service.url, tmp_path / "other", consumer="other")
    service.append("q", numbered("q", 10, 15))
    assert other.step() and not other.step()
    service.append("q", numbered("q", 15, 20))
    assert other.step() and query.step() and not query.step()
    assert service.positions("q") == (15, 20)  # what the second one had confirmed


def test_a_loss_is_found(service: ThreadedService, tmp_path: Path) -> None:
    """Records that were truncated before they were read stop the query, after a restart and within a run."""
    service.append("q", numbered("q", 0, 10))
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step()
    service.append("q", numbered("q", 10, 30))
    service.truncate("q", 19)
    with pytest.raises(DataLossError, match="positions 10 to 19 were truncated"):
        query.step()
    query.restart()
    with pytest.raises(DataLossError, match="positions 10 to 19 were truncated"):
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
    with pytest.raises(HeldBackError, match="went back"):
        query.step()


def test_a_path_that_is_no_checkpoint_is_refused(service: ThreadedService, tmp_path: Path) -> None:
    """Spark has written metadata before it calls the source; nothing is created at a wrong path."""
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, tmp_path / "c", checkpoint=str(tmp_path / "none"))
    with pytest.raises(OptionError, match=r"none has no file metadata: .*checkpointLocation of this query's writer"):
        query.step()
    assert not (tmp_path / "none").exists()
    with pytest.raises(OptionError, match="s3://lake/c' is not a directory on this machine"):
        EarlierQuery(service.url, tmp_path / "d", checkpoint="s3://lake/c")


def test_the_checkpoint_of_another_query_is_refused(service: ThreadedService, tmp_path: Path) -> None:
    """At a first start before anything is written; at a later one when Spark says where the query stands."""
    service.append("q", numbered("q", 0, 5))
    with_checkpoint(service, tmp_path / "other").step()
    query = EarlierQuery(service.url, tmp_path / "c", checkpoint=str(tmp_path / "other"))
    with pytest.raises(OptionError, match="other has batches, and this query has none yet"):
        query.step()
    assert not any((tmp_path / "c" / "offsets").iterdir())
    del query.options["checkpoint"]
    query.restart()
    assert query.step()
    service.append("q", numbered("q", 5, 9))
    assert query.step()
    query.options["checkpoint"] = str(tmp_path / "other")
    with pytest.raises(OptionError, match="has no batch that ends where this query stands"):
        query.restart()


def test_a_first_batch_with_a_wrong_new_checkpoint_loses_nothing(service: ThreadedService, tmp_path: Path) -> None:
    """The checkpoint of a query that has never run looks like the right one before the first batch is planned.

    The batch is refused then. With the right path it runs again, from where it began.
    """
    service.append("q", numbered("q", 0, 5))
    with_checkpoint(service, tmp_path / "other")
    query = EarlierQuery(service.url, tmp_path / "c", checkpoint=str(tmp_path / "other"))
    with pytest.raises(OptionError, match="has no batch that ends where this query stands"):
        query.step()
    query.options["checkpoint"] = str(tmp_path / "c")
    query.restart()
    assert query.step() and query.rows == rows_of("default", "q", 0, 5)


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
    """A first start without queues stores an offset that has none, which a restart continues."""
    query = with_checkpoint(service, tmp_path / "c")
    assert query.step() and not any(Offset.decode(query.end(0)).positions.values())
    query.restart()
    service.append("q", numbered("q", 0, 3))
    while query.step():
        pass
    assert query.rows == rows_of("default", "q", 0, 3)


def test_a_run_that_ends_reports_its_end_to_the_drain(service: ThreadedService, tmp_path: Path) -> None:
    """It reads what stood at the first trigger, in batches with limits, and requests nothing after that."""
    report = str(tmp_path / "report")
    service.append("q", numbered("q", 0, 10))
    query = with_checkpoint(service, tmp_path / "c", stopAtEnd="true", reportTo=report, maxRecordsPerTrigger="4")
    while query.step():
        assert not said(report)["ended"]
        service.append("q", [b"later"])
    assert [row[2] for row in query.rows] == list(range(10))
    assert said(report) == {
        "waiting": {"default": 3},
        "retries": ANY,  # of the whole process
        "held": [],
        "down": {},
        "planned_bytes": sum(map(len, numbered("q", 0, 10))),
        "ended": True,
    }
    service.stop()
    assert not query.step()
    service.start()


def test_the_first_batch_of_a_drain_has_limits_wherever_its_checkpoint_is(
    service: ThreadedService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On hdfs:// or s3a:// the data source cannot read it; a restart finds its place all the same."""
    service.append("q", numbered("q", 0, 10))
    options = {"reportTo": str(tmp_path / "report"), "maxRecordsPerTrigger": "4"}
    query = EarlierQuery(service.url, tmp_path / "c", **options)
    for count in (4, 8, 10):
        assert query.step() and len(query.rows) == count
        query.restart()
    assert query.rows == rows_of("default", "q", 0, 10) and messages(caplog) == []


def said(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_report(path) or "{}")
    return found


def test_only_an_offset_that_begins_queues_has_the_newer_version(service: ThreadedService, tmp_path: Path) -> None:
    """A package that does not know `first` refuses the offset, instead of skipping its records."""
    service.append("q", numbered("q", 0, 5))
    query = EarlierQuery(service.url, tmp_path / "c")
    query.step()
    service.append("q", numbered("q", 5, 6))
    query.step()
    assert [query.end(batch)["version"] for batch in (0, 1)] == [4, 3]
    first = Offset.decode(query.end(0))
    assert [list(queues.items()) for queues in first.first.values()] == [[("q", 0)]]
    assert Offset.decode(first.encode()) == first


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
    place = tmp_path / "c"
    known = chance.choice([{}, {"checkpoint": str(place)}])
    query = EarlierQuery(service.url, place, maxRecordsPerTrigger="7", **release, **known)
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
    if known and release:
        assert not any(service.records().values())
