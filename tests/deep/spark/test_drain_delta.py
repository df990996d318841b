"""The drain into a Delta table inside Spark: what other readers find, what it refuses, how it continues."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable

from mrecordlog_async.cli.main import main
from mrecordlog_async.options import QueueOptions
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.drain.command import failures_as_sentences
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.restore.load import Loaded, run_load
from mrecordlog_async.spark.rows.columns import with_day
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.spark.conftest import NewService
from tests.spark.lake_readers import with_delta
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[str, int, bytes]


def read_with_delta_rs(path: Path) -> list[Row]:
    """Return (queue, position, payload) of each row."""
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=["queue", "position", "payload"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def read_with_pandas(path: Path) -> list[Row]:
    frame: Any = DeltaTable(str(path)).to_pandas()
    return sorted(zip(frame.queue, frame.position, frame.payload, strict=True))


def read_with_duckdb(path: Path) -> list[Row]:
    return sorted(asked_of_duckdb(path, "queue, position, payload"))


def asked_of_duckdb(path: Path, columns: str) -> list[Any]:
    """Read with DuckDB's own implementation of Delta, which shares no code with delta-rs' reader."""
    return with_delta().execute(f"SELECT {columns} FROM delta_scan(?)", [str(path)]).fetchall()


def test_every_reader_finds_the_same_rows(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """No jar: delta-rs, pandas, DuckDB and a load read what was drained, queues 007 and 7 apart; the log is empty."""
    service, other = new_service(), new_service()
    names = ["007", "7", "__HIVE_DEFAULT_PARTITION__", "ä/" * 80, "a"]
    for name in names:
        service.append(name, numbered(name, 0, 50))
    job = DrainJob(f"a={service.url}", str(tmp_path / "t, 1"), str(tmp_path / "c, 1"), partition_by=("queue",))
    summary = run_drain(spark, job)
    assert (summary.records, summary.left) == (250, {"a": 0})
    service.append("7", numbered("7", 50, 60))
    assert run_drain(spark, job).records == 10
    assert run_drain(spark, job).records == 0
    expected = sorted((name, at, each) for name in names for at, each in enumerate(numbered(name, 0, 50)))
    expected = sorted([*expected, *(("7", 50 + at, each) for at, each in enumerate(numbered("7", 50, 60)))])
    for read in (read_with_delta_rs, read_with_pandas, read_with_duckdb):
        assert read(tmp_path / "t, 1") == expected
    assert not any(service.records().values())
    with pytest.raises(RefusedError, match="is partitioned by queue"):
        run_drain(spark, replace(job, partition_by=()))
    assert run_load(spark, job.output, other.url) == Loaded(260, 0)
    assert other.records() == {name: [(at, each) for key, at, each in expected if key == name] for name in names}


def test_a_lost_or_foreign_checkpoint_is_refused(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """Without its checkpoint, or with its table replaced, the drain does not start, and the log keeps new records."""
    service.append("q", numbered("q", 0, 10))
    job = DrainJob(service.url, str(tmp_path / "t"), str(tmp_path / "c"))
    run_drain(spark, job)
    service.append("q", numbered("q", 10, 20))
    with pytest.raises(RefusedError, match=r"written with another checkpoint.*lake resume"):
        run_drain(spark, replace(job, checkpoint=str(tmp_path / "new")))
    other = LocalLake(job.checkpoint)
    other.lock()
    with pytest.raises(RefusedError, match=rf"another drain uses .*locked by process {os.getpid()}.*stop it first"):
        run_drain(spark, job)
    other.close()
    with pytest.raises(RefusedError, match="is inside the table"):
        run_drain(spark, replace(job, checkpoint=str(tmp_path / "t" / "c")))
    assert not (tmp_path / "t" / "c").exists()  # a new table would be refused in a directory that has it
    with pytest.raises(RefusedError, match="choose a path without %"):
        run_drain(spark, replace(job, output=str(tmp_path / "t%41"), checkpoint=str(tmp_path / "other")))
    shutil.move(tmp_path / "t", tmp_path / "away")
    with pytest.raises(RefusedError, match="there is no table at"):
        run_drain(spark, job)
    assert service.positions("q") == (10, 20)


def test_two_drains_share_the_queues_as_two_consumers(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Each table is complete, the service shows who is late, and the log drops what both have stored."""
    options = QueueOptions(keep="until_acknowledged")
    for name in ("a", "b"):
        service.call(service.log.create_queue(name, options=options))
        service.append(name, numbered(name, 0, 50))
    jobs = [
        DrainJob(f"s={service.url}", str(tmp_path / name), str(tmp_path / f"{name}.c"), consumer=name)
        for name in ("lake", "audit")
    ]
    for queue in ("a", "b"):  # a rule added by `audit` at its first start has the same effect
        service.call(service.log.create_consumer(queue, "audit"))
    summary = run_drain(spark, jobs[0])
    assert (summary.records, summary.left) == (100, {"s": 100})
    with urlopen(f"{service.url}/metrics") as response:
        metrics = response.read().decode()
    assert 'mrecordlog_consumer_waiting_records{queue="a",consumer="audit"} 50.0' in metrics
    assert 'mrecordlog_consumer_waiting_records{queue="a",consumer="lake"} 0.0' in metrics
    foreign = replace(jobs[0], output=str(tmp_path / "new"), checkpoint=str(tmp_path / "new.c"))
    with pytest.raises(RefusedError, match="belongs to another query"), failures_as_sentences():
        run_drain(spark, foreign)
    assert run_drain(spark, jobs[1]).left == {"s": 0}
    expected = sorted((name, at, each) for name in ("a", "b") for at, each in enumerate(numbered(name, 0, 50)))
    assert read_with_delta_rs(tmp_path / "lake") == read_with_delta_rs(tmp_path / "audit") == expected
    assert not any(service.records().values())


PAYLOADS = {
    '{"customer": "ada", "amount": 3, "items": [{"sku": "x"}]}': ("ada", 3, [{"sku": "x"}], None, None),
    '{"customer": "ada", "coupon": {"k": 1}}': ("ada", None, None, None, '{"coupon":{"k":1}}'),
    '{"customer": "ada", "amount": "many"}': (
        None,
        None,
        None,
        "another type",
        '{"customer": "ada", "amount": "many"}',
    ),
    '{"customer": "ada"': (None, None, None, "not valid JSON", '{"customer": "ada"'),
    '[{"customer": "ada"}, {"customer": "bob"}]': (None, None, None, "not a JSON object", None),
    "\xff": (None, None, None, "not UTF-8", "base64:/w=="),
    "": (None, None, None, "not a JSON object", ""),
    ' {"customer": "ada"} more': ("ada", None, None, None, ' {"customer": "ada"} more'),
}
"""Payload → customer, amount, items, a part of `error`, and `_rest` where payloads are not stored."""

SCHEMA = "customer string, amount bigint, items array<struct<sku: string>>"


def test_payloads_become_columns_and_nothing_is_lost(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What does not parse is in the same table with null columns and a reason; unknown fields are kept."""
    payloads = [text.encode("latin-1") for text in PAYLOADS]
    service.append("q", payloads)
    keeping = DrainJob(f"a={service.url}", str(tmp_path / "t"), str(tmp_path / "c"), truncate=False)
    run_drain(spark, keeping)
    service.append("q", payloads, len(payloads))
    run_drain(spark, replace(keeping, schema=SCHEMA))
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("position").to_pylist()
    assert [row["payload"] for row in rows] == payloads * 2
    assert all(row["customer"] is None and row["error"] is None for row in rows[: len(payloads)])
    other = replace(
        keeping, output=str(tmp_path / "u"), checkpoint=str(tmp_path / "d"), schema=SCHEMA, payload=False, truncate=True
    )
    assert run_drain(spark, other).left == {"a": 0}
    without = DeltaTable(str(tmp_path / "u")).to_pyarrow_table().sort_by("position").to_pylist()
    assert "payload" not in without[0]
    for row, kept, (*columns, error, rest) in zip(rows[len(payloads) :], without, PAYLOADS.values(), strict=False):
        for each in (row, kept):
            assert [each["customer"], each["amount"], each["items"]] == columns
            assert (error in each["error"]) if error is not None else each["error"] is None
        assert kept["_rest"] == rest or (rest is None and kept["_rest"] == row["payload"].decode())
    for filters, count in (([("customer", "=", "ada")], 6), ([("amount", ">", 2)], 2), ([("position", "<", 3)], 3)):
        found: Any = DeltaTable(str(tmp_path / "u")).to_pyarrow_table(filters=filters)
        assert len(found) == count, "a reader's filter skips rows"
    assert main(["lake", "show", str(tmp_path / "u"), "--bad"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 * 5
    with pytest.raises(RefusedError, match=r"'amount' is .* types cannot change"):
        run_drain(spark, replace(keeping, schema=SCHEMA.replace("bigint", "double")))
    for ddl, said in (
        ("Queue string", "'queue' is reserved .* a JSON field of this name stays in the payload"),
        ("a int, A int", "'a' is named twice"),
        ("`a b` int", "named 'a b'"),
        ("no ddl at all", "not Spark's DDL"),
        ("i interval day to second", "has no type 'interval day to second'"),
        ("m map<string, array<void>>", "has no type 'void'"),
        ("v array<variant>", "has no type 'variant'"),
        ("s array<struct<>>", "has no type 'struct<>'"),
        ("m array<map<int, string>>", "the keys of a JSON object are text"),
    ):
        with pytest.raises(RefusedError, match=said):
            run_drain(spark, replace(keeping, schema=ddl))


def test_a_payload_that_spark_misreads_is_kept(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its columns are null, with a reason, and `_rest` has all of it: every reader can read the table."""
    bad = ('{"m":{"k":1,"k":2}}', '{"t":200}', '{"f":1e39}', '{"at":"12:00"}', '{"at":"99999-01-01T00:00:00Z"}')
    good = ('{"m":{"k":1,"j":2},"t":-128,"f":1.5,"at":"2026-01-01T12:00:00Z","note":"12:00"}', '{"t":127}')
    service.append("q", [text.encode() for text in (*bad, *good)])
    job = DrainJob(f"a={service.url}", str(tmp_path / "t"), str(tmp_path / "c"), payload=False)
    run_drain(spark, replace(job, schema="m map<string,int>, t tinyint, f float, at timestamp"))
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("position").to_pylist()
    for row, text in zip(rows, bad, strict=False):
        assert row["error"] and row["_rest"] == text and not any(row[name] for name in ("m", "t", "f", "at"))
    assert [row["error"] for row in rows[len(bad) :]] == [None, None]
    assert [(row["t"], row["f"], row["_rest"]) for row in rows[len(bad) :]] == [
        (-128, 1.5, '{"note":"12:00"}'),
        (127, None, None),
    ]
    assert asked_of_duckdb(tmp_path / "t", 'count(m), max(t), min(year("at"))') == [(1, 127, 2026)]
    assert len(DeltaTable(str(tmp_path / "t")).to_pandas()) == len(rows)
    assert main(["lake", "show", str(tmp_path / "t"), "--bad"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(bad)


def test_a_table_is_partitioned_by_the_day_of_storing(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """The day is that of the log, so it is the same when a batch runs again. Output and checkpoint may be URLs."""
    service.append("q", numbered("q", 0, 10))
    stored = [service.log.time_of("q", at) for at in range(10)]
    table, checkpoint = (tmp_path / "t").as_uri(), (tmp_path / "c").as_uri()
    run_drain(spark, DrainJob(f"a={service.url}", table, checkpoint, partition_by=("date", "queue")))
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("position").to_pylist()
    assert [row["timestamp"] for row in rows] == stored
    assert all(time is not None and row["date"] == time.date() for row, time in zip(rows, stored, strict=True))


def test_the_day_of_storing_is_in_utc(spark: SparkSession) -> None:
    """Whatever the time zone of the session: a batch that runs again in another one goes to the same partition."""
    times = [datetime(1969, 12, 31, 23, 59, 59, 900_000, UTC), datetime(2026, 1, 1, 23, 30, tzinfo=UTC)]
    rows = spark.createDataFrame([(time,) for time in times], "timestamp timestamp")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        found = [row.date for row in with_day(rows).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == [time.date() for time in times]
