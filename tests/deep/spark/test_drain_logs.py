"""A drain inside Spark whose logs move, go back or are lost: the others go on, and it says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from mrecordlog_async.cli.main import build_parser
from mrecordlog_async.spark.drain import job as drain
from mrecordlog_async.spark.drain import query as drain_query
from mrecordlog_async.spark.drain import steps as drain_steps
from mrecordlog_async.spark.drain.command import JobFailedError, failures_as_sentences
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.drain.progress import Summary
from mrecordlog_async.spark.drain.query import IDLE_REPORTS, KEPT_REPORTS
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.spark.conftest import NewService
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def test_a_server_that_returns_too_late_was_not_drained(
    spark: SparkSession, new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ended without a server says so, although it responds again when the summary is made.

    What was down is in the report of the last trigger, which has no records.
    """
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 10))
    b.append("r", numbered("r", 0, 7))
    b.stop()
    last = list[int]()
    follow, remaining = drain_query.follow, drain_steps.remaining

    def followed(query: StreamingQuery, *given: Any) -> None:
        follow(query, *given)
        assert query.lastProgress is not None
        last.append(query.lastProgress.numInputRows)

    def remaining_later(*given: Any) -> tuple[dict[str, int], dict[str, str]]:
        b.start()
        found: tuple[dict[str, int], dict[str, str]] = remaining(*given)
        return found

    monkeypatch.setattr(drain, "follow", followed)
    monkeypatch.setattr(drain, "remaining", remaining_later)
    before = spark.conf.get(IDLE_REPORTS)
    given = {"failOnServerDown": "false"}
    job = DrainJob(f"a={a.url},b={b.url}", str(tmp_path / "t"), str(tmp_path / "c"), options=given)
    lines: list[str] = []
    summary = run_drain(spark, job, lines.append)
    assert (summary.records, summary.left, list(summary.down)) == (10, {"a": 0, "b": 7}, ["b"])
    assert summary.line().endswith("left in the log: a 0, b 7; NOT drained: server 'b' was down")
    assert any(line.startswith("server 'b' is down, the others continue: ") for line in lines)
    assert last == [0] and spark.conf.get(IDLE_REPORTS) == before


def test_few_reports_of_a_query_are_kept(
    spark: SparkSession, new_service: NewService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the offsets of all queues: with many of them, the hundred that Spark keeps fill Java's memory."""
    service, kept, follow = new_service(), list[int](), drain_query.follow
    service.append("q", numbered("q", 0, 10))

    def followed(query: StreamingQuery, *given: Any) -> None:
        follow(query, *given)
        kept.append(len(query.recentProgress))

    monkeypatch.setattr(drain, "follow", followed)
    monkeypatch.setattr(drain_query, "REPORTS_KEPT", 2)  # Spark keeps one less
    run_drain(spark, DrainJob(f"a={service.url}", str(tmp_path / "t"), str(tmp_path / "c")))
    assert kept == [1] and spark.conf.get(KEPT_REPORTS) == "100", "that of the session stays"


def test_logs_that_move_go_back_or_are_lost(
    spark: SparkSession,
    new_service: NewService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Swapped servers and a second name change nothing; a restored and an emptied log wait until they are accepted.

    A command whose run ended without a log exits with 1.
    """
    a, b = new_service(), new_service()
    a.append("q", numbered("q", 0, 10))
    b.append("r", numbered("r", 0, 10))
    job = DrainJob(f"a={a.url},b={b.url}", str(tmp_path / "t"), str(tmp_path / "c"))
    assert run_drain(spark, job).records == 20

    b.keep_copy(tmp_path / "copy")
    a.append("q", numbered("q", 10, 15))
    b.append("r", numbered("r", 10, 15))
    job = replace(job, servers=f"a={b.url},b={a.url},c={a.url.replace('127.0.0.1', 'localhost')}")
    summary = run_drain(spark, job)
    assert (summary.records, summary.held) == (10, {})

    b.go_back(tmp_path / "copy")
    b.append("r", [b"new"] * 9)
    a.append("q", numbered("q", 15, 17))
    line = ["drain", "--output", job.output, "--checkpoint", job.checkpoint, "--json"]
    line += [word for server in job.servers.split(",") for word in ("--server", server)]
    monkeypatch.setattr(drain, "job_session", lambda name, master: spark)
    with monkeypatch.context() as kept:  # this process keeps its session and its signals
        kept.setattr(type(spark), "stop", lambda self: None)
        kept.setattr("signal.signal", lambda number, handler: None)
        assert drain.run(build_parser().parse_args(line)) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["records"] == 2 and "does not know the opening in which it was read" in said["held"].pop("a")
    assert said["held"] == {}
    assert b.positions("r") == (10, 19), "nothing was truncated"
    assert run_drain(spark, replace(job, accept_went_back=True)).records == 9

    a.replace_by_nothing()
    a.append("q", numbered("again", 0, 3))
    b.append("r", [b"last"])
    summary = run_drain(spark, job)
    assert summary.records == 1 and "new and empty" not in summary.held["b"]
    lost = summary.held["b"].partition("option forget: ")[2][:8]
    assert run_drain(spark, replace(job, options={"forget": lost})).records == 3
    assert not any(a.records().values()) and not any(b.records().values())

    rows = DeltaTable(job.output).to_pyarrow_table(columns=["queue", "payload"]).to_pylist()
    expected = [*numbered("q", 0, 17), *numbered("r", 0, 15), *numbered("again", 0, 3), *[b"new"] * 9, b"last"]
    assert sorted(row["payload"] for row in rows) == sorted(expected)


def drained(spark: SparkSession, job: DrainJob) -> Summary:
    """Run *job* as the command does."""
    with failures_as_sentences():
        return run_drain(spark, job)


@pytest.mark.parametrize("newest", [True, False])
def test_a_begun_batch_of_a_log_that_went_back_continues_as_the_error_says(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, newest: bool
) -> None:
    """Once the newest state is served again, the next start needs no flag; --allow-data-loss stores what is left."""
    engine = DeltaEngine(f"a={service.url}", tmp_path)
    service.append("q", numbered("q", 0, 12))
    service.keep_copy(tmp_path / "older")
    service.append("q", numbered("q", 12, 20))
    assert engine.kill_at("files of a task")
    service.keep_copy(tmp_path / "newer")
    service.go_back(tmp_path / "older")
    job = DrainJob(f"a={service.url}", str(engine.table_path), str(engine.checkpoint_path))
    for _ in range(2):
        with pytest.raises(JobFailedError, match=r"went back; serve .*, or let --allow-data-loss .* store what it"):
            drained(spark, job)
    if newest:
        service.go_back(tmp_path / "newer")
        assert drained(spark, job).left == {"a": 0}
    else:
        with pytest.raises(JobFailedError, match="accept it"):  # now it is held back, and there is no other log
            drained(spark, replace(job, options={"failOnDataLoss": "false"}))
    assert [position for _, position, _ in engine.rows()] == list(range(20 if newest else 12))
