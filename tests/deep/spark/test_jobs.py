"""The data source inside Spark: one session for all tests; each has its own queues, output and checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, numbered
from tests.spark.test_in_spark import read, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_an_empty_log_is_an_empty_table(spark: SparkSession, service: ThreadedService) -> None:
    """A log without queues is a table without rows."""
    assert read(spark, service).count() == 0


def test_a_query_finds_all_rows_after_a_filtered_query_of_the_same_frame(
    spark: SparkSession, service: ThreadedService
) -> None:
    """A filter narrows its own query only, even where Spark may push filters down; pushdown=true is refused."""
    for queue in "abc":
        service.append(queue, numbered(queue, 0, 10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, service, pushdown="false")
        frame.createOrReplaceTempView("filtered")
        wanted = {"queue = 'a'": 10, "true": 30, "queue = 'a' or queue = 'b'": 20, "queue = 'c' and position >= 7": 3}
        for condition, count in (wanted | {"not (position < 4)": 18}).items():
            assert frame.where(condition).count() == count, condition
            assert spark.sql(f"select * from filtered where {condition}").count() == count, condition
        with pytest.raises(Exception, match="to fetch less, set subscribe"):
            read(spark, service, pushdown="true")
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_positions_alone_need_no_payload(spark: SparkSession, service: ThreadedService) -> None:
    """payload=false gives no payload."""
    service.append("a", numbered("a", 0, 3))
    frame = read(spark, service, payload="false")
    assert frame.columns == ["server", "queue", "queue_id", "position", "timestamp"]
    assert rows(frame) == [("default", "a", at) for at in range(3)]


def test_a_misspelt_option_is_named(spark: SparkSession, service: ThreadedService) -> None:
    """An unknown option is refused, and the error names the nearest known one."""
    with pytest.raises(Exception, match="did you mean failOnDataLoss"):
        read(spark, service, failOnDataLos="false")


def test_an_idle_stream_leaves_nothing(
    spark: SparkSession, service: ThreadedService, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    """A stream that waits has truncated everything it stored, including its last batch; progress reports the lag."""
    service.append("q", numbered("q", 0, 10))
    query = (
        spark.readStream.format("mrecordlog")
        .options(servers=service.url, truncate="true")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        until(lambda: service.positions("q") == (10, 10))
        progress = query.lastProgress
        assert progress is not None and "latestOffset" in progress["sources"][0]
    finally:
        query.stop()


def test_rows_without_positions_are_appended(spark: SparkSession, service: ThreadedService) -> None:
    """The log assigns positions; the queue may be an option, and the payload may be text."""
    frame = spark.createDataFrame([(f"line {n}",) for n in range(100)], "payload string").coalesce(1)
    frame.write.format("mrecordlog").options(servers=service.url, queue="lines").mode("append").save()
    assert service.records() == {"lines": [(n, f"line {n}".encode()) for n in range(100)]}


def test_rows_out_of_order_are_refused_with_the_way_out(spark: SparkSession, service: ThreadedService) -> None:
    """The message names the two calls that sort the rows."""
    frame = spark.createDataFrame([("q", 5, b"x"), ("q", 4, b"y")], "queue string, position bigint, payload binary")
    with pytest.raises(Exception, match="sortWithinPartitions"):
        frame.coalesce(1).write.format("mrecordlog").option("servers", service.url).mode("append").save()


def test_a_stream_is_mirrored_from_log_to_log(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """A stream that is written batch by batch with positions makes an identical log."""
    first, second = new_service(), new_service()
    first.append("a", numbered("a", 0, 100))

    def store(frame: DataFrame, batch: int) -> None:
        ordered = frame.drop("server").repartition(2, "queue").sortWithinPartitions("queue", "position")
        ordered.write.format("mrecordlog").option("servers", second.url).mode("append").save()

    query = (
        spark.readStream.format("mrecordlog")
        .options(servers=first.url, maxRecordsPerTrigger="30")
        .load()
        .writeStream.foreachBatch(store)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert second.records() == first.records()


def test_a_stream_is_written_without_positions(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """A stream may be written as it arrives; the log assigns the positions."""
    first, second = new_service(), new_service()
    first.append("a", numbered("a", 0, 20), 7)
    query = (
        spark.readStream.format("mrecordlog")
        .options(servers=first.url)
        .load()
        .drop("server", "position")
        .writeStream.format("mrecordlog")
        .options(servers=second.url, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert second.records() == {"a": [(at, payload) for at, payload in enumerate(numbered("a", 0, 20))]}


def test_a_view_of_a_query_reads_what_is_there_now(spark: SparkSession, service: ThreadedService) -> None:
    """Spark keeps the records of the first query of a DataFrame, and of a view that is made `USING mrecordlog`."""
    service.append("a", numbered("a", 0, 10))
    frame = read(spark, service)
    query = f"SELECT * FROM served WITH ('servers' = '{service.url}')"
    spark.sql(f"CREATE TABLE served USING mrecordlog OPTIONS (servers '{service.url}')")
    spark.sql(f"CREATE VIEW viewed AS {query}")
    spark.sql(f"CREATE TEMPORARY VIEW temporary AS {query}")
    spark.sql(f"CREATE TEMPORARY VIEW kept USING mrecordlog OPTIONS (servers '{service.url}')")
    try:
        assert frame.count() == spark.table("kept").count() == 10

        def counts(*names: str) -> list[int]:
            return [spark.sql(f"SELECT count(*) FROM {name}").first()[0] for name in names]  # type: ignore[index]

        assert counts("viewed", "temporary") == [10, 10]
        service.append("a", numbered("a", 10, 20))
        assert counts("viewed", "temporary") == [20, 20]
        assert [frame.count(), *counts("kept")] == [10, 10]
        service.truncate("a", 4)
        assert counts("viewed", "temporary") == [15, 15]
        for kept in (frame, spark.table("kept")):
            with pytest.raises(Exception, match=r"410.*make the DataFrame or the view again"):
                kept.count()
    finally:
        for name in ("viewed", "temporary", "kept"):
            spark.sql(f"DROP VIEW IF EXISTS {name}")
        spark.sql("DROP TABLE IF EXISTS served")


def test_an_insert_of_sql_is_refused_with_what_to_use(spark: SparkSession, service: ThreadedService) -> None:
    """Spark fills in all columns of a read, which are not those of a write: rows of a query are written as a frame."""
    rows_to_write = "SELECT 'a' AS queue, CAST('x' AS BINARY) AS payload"
    spark.sql(f"CREATE TEMPORARY VIEW written USING mrecordlog OPTIONS (servers '{service.url}')")
    try:
        with pytest.raises(Exception, match="INSERT INTO always has it; write a DataFrame"):
            spark.sql(f"INSERT INTO written (queue, payload) {rows_to_write}")
    finally:
        spark.sql("DROP VIEW written")
    spark.sql(rows_to_write).write.format("mrecordlog").option("servers", service.url).mode("append").save()
    assert service.records() == {"a": [(0, b"x")]}
