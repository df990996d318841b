"""What only a real Spark shows, in one session; `tests/deep/spark` has the rest of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Collect rows, sorted, payloads as bytes."""
    return sorted(
        tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row)
        for row in frame.drop("queue_id", "timestamp").collect()
    )


def read(spark: SparkSession, service: ThreadedService, **options: str) -> DataFrame:
    return spark.read.format("mrecordlog").options(servers=service.url, retries="0", **options).load()


def test_a_log_is_a_table(spark: SparkSession, service: ThreadedService) -> None:
    """The data source is found without registration, and each record is one row."""
    service.append("a", numbered("a", 0, 30))
    service.append("b", numbered("b", 0, 20))
    service.truncate("b", 4)
    found = rows(read(spark, service))
    assert found == [("default", "a", at, f"a:{at}".encode()) for at in range(30)] + [
        ("default", "b", at, f"b:{at}".encode()) for at in range(5, 20)
    ]


def drain(spark: SparkSession, servers: str, output: Path, **options: str) -> None:
    """Run the data source into Parquet until it has caught up."""
    query = (
        spark.readStream.format("mrecordlog")
        .options(servers=servers, truncate="true", retries="0", **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(output / "out"))
        .option("checkpointLocation", str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None


def test_a_drain_leaves_nothing_in_the_log(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """Two servers into Parquet: every record once, and both logs empty, after each of two runs."""
    first, second = new_service(), new_service()
    for run in range(2):
        first.append("q", numbered("first", run * 50, run * 50 + 50))
        second.append("q", numbered("second", run * 10, run * 10 + 10))
        drain(spark, f"a={first.url},b={second.url}", tmp_path, maxRecordsPerTrigger="40")
        assert first.records() == second.records() == {"q": []}
    expected = [("a", "q", at, f"first:{at}".encode()) for at in range(100)]
    expected += [("b", "q", at, f"second:{at}".encode()) for at in range(20)]
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == expected


def test_a_failing_sink_keeps_its_batch(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """A batch that foreachBatch did not finish stays in the log."""
    service.append("q", numbered("q", 0, 10))

    def fail_at_second(frame: DataFrame, batch: int) -> None:
        if frame.count() and batch >= 2:
            raise RuntimeError("the sink is full")

    query = (
        spark.readStream.format("mrecordlog")
        .options(servers=service.url, truncate="true", maxRecordsPerTrigger="4")
        .load()
        .writeStream.foreachBatch(fail_at_second)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="the sink is full"):
        query.awaitTermination(120)
    assert service.positions("q") == (8, 10)


def test_restoring_twice_stores_once(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """Writing Parquet with positions into a log stores each record once: a second run changes nothing."""
    first, second = new_service(), new_service()
    first.append("a", numbered("a", 0, 3_000))
    first.append("b", numbered("b", 0, 10))
    first.truncate("b", 3)
    read(spark, first).write.parquet(str(tmp_path / "copy"))
    for _ in range(2):
        ordered = (
            spark.read.parquet(str(tmp_path / "copy"))
            .drop("server")
            .repartition(2, "queue")
            .sortWithinPartitions("queue", "position")
        )
        ordered.write.format("mrecordlog").option("servers", second.url).mode("append").save()
        assert second.records() == first.records()


def test_overwrite_is_refused(spark: SparkSession, service: ThreadedService) -> None:
    """mode('overwrite') is refused: rows can only be appended to a log."""
    frame = spark.createDataFrame([("q", b"x")], "queue string, payload binary")
    with pytest.raises(Exception, match="overwrite"):
        frame.write.format("mrecordlog").option("servers", service.url).mode("overwrite").save()


def test_a_log_is_a_table_of_the_catalog(spark: SparkSession, service: ThreadedService) -> None:
    """A table of the catalog can be created; Spark drops its options on read, so a view or the query must have them."""
    service.append("a", numbered("a", 0, 10))
    expected = [("a", at, f"a:{at}".encode()) for at in range(10)]
    columns = "SELECT queue, position, payload FROM"
    try:
        spark.sql(f"CREATE TABLE served USING mrecordlog OPTIONS (servers '{service.url}', retries 0)")
        assert rows(spark.sql(f"{columns} served WITH ('servers' = '{service.url}')")) == expected
        with pytest.raises(Exception, match=r"SELECT … FROM table WITH \('servers' = …\), or CREATE VIEW … AS such"):
            spark.sql(f"{columns} served").collect()
        spark.sql(f"CREATE VIEW viewed AS {columns} served WITH ('servers' = '{service.url}')")
        assert rows(spark.newSession().table("viewed")) == expected
        spark.sql(f"CREATE TEMPORARY VIEW fixed USING mrecordlog OPTIONS (servers '{service.url}')")
        assert rows(spark.sql(f"{columns} fixed")) == expected
    finally:
        spark.sql("DROP VIEW IF EXISTS viewed")
        spark.sql("DROP TABLE IF EXISTS served")
        spark.sql("DROP VIEW IF EXISTS fixed")
    with pytest.raises(Exception, match="start `mrecordlog serve` on each directory"):
        spark.read.format("mrecordlog").load(["/a", "/b"]).collect()
