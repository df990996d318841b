"""The drain on a real Spark: one task fetches and writes, or a function of the user stands in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.delta_output import DeltaOutput
from mrecordlog_async.spark.drain_call import DrainOptionError, DrainOptions, drain
from mrecordlog_async.spark.drain_loop import Drain
from mrecordlog_async.spark.log_server import ReadTask
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError, WrittenFile
from mrecordlog_async.spark.runners import on_spark, parallelism, schema_after, transformed
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.surveying import DrainSettings
from mrecordlog_async.spark.table_files import TableFiles
from tests.spark.draining import Draining, columns, expected, table_rows
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_tasks_of_spark_store_rows_once(spark: SparkSession, service: ThreadedService, table: Path) -> None:
    """A large batch has several tasks, and their files are one commit."""
    for queue in ("q", "r"):
        service.append(queue, numbered(queue, 0, 3_000))
    process = Draining({"s": service}, table, run=on_spark(spark), partition_by=("date", "queue"))
    assert process.all() == 6_000
    assert table_rows(table) == expected(q=3_000, r=3_000)
    assert not any(service.records().values())
    assert parallelism(spark) == 2


def with_length(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import col, length

    return rows.withColumn("bytes", length("payload")).where(col("position") % 2 == 0).drop("payload")


def test_a_function_changes_rows(spark: SparkSession, service: ThreadedService, table: Path) -> None:
    """It may add columns, leave some out, and give fewer rows: they are counted, and the log is released."""
    service.append("q", numbered("q", 0, 100))
    schema = schema_after(spark, with_length)
    output = DeltaOutput(TableFiles(str(table)), schema, plain=False)
    output.open()
    job = Drain(ServerSet([Endpoint(service.url, name="s")]), output, transformed(spark, with_length), DrainSettings())
    assert job.step() == 100
    assert (job.totals.records, job.totals.rows) == (100, 50)
    assert sorted(columns(table, "position", "bytes")) == [(at, len(f"q:{at}")) for at in range(0, 100, 2)]
    assert not any(service.records().values())
    job.close()
    output.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows.select("absent"), "`absent`"),
        (lambda rows: rows.absent, "absent"),
        (lambda rows: None, "NoneType"),
        (lambda rows: rows.schema["absent"], "absent"),
    ],
)
def test_a_function_that_cannot_be_applied_is_a_wrong_setting(
    spark: SparkSession, service: ThreadedService, table: Path, change: Any, says: str
) -> None:
    """Such as one that names a column that no row has: the sentence says so, and no table is created."""
    service.append("q", numbered("q", 0, 5))
    with pytest.raises(DrainOptionError, match=f"--transform cannot be applied to the rows of a log: .*{says}"):
        drain(DrainOptions(service.url, str(table), transform=change), spark)
    assert not table.exists() and len(service.records()["q"]) == 5


def test_a_failed_task_is_one_sentence(spark: SparkSession, service: ThreadedService, table: Path) -> None:
    """Spark's pages about it are not shown; a refusal of the output stays one."""
    service.append("q", numbered("q", 0, 100))

    def elsewhere(tasks: Sequence[ReadTask], writer: Any) -> list[WrittenFile]:
        (table / writer.mark).unlink()
        return on_spark(spark)(tasks, writer)

    with pytest.raises(OutputRefusedError, match="is not the directory that the driver sees") as refused:
        Draining({"s": service}, table, run=elsewhere).step()
    assert "\n" not in str(refused.value)

    def broken(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import expr

        return rows.withColumn("payload", expr("raise_error('no such thing')").cast("binary"))

    other = Draining({"s": service}, table, run=transformed(spark, broken))
    with pytest.raises(BatchFailedError, match="no such thing") as failed:
        other.step()
    assert "\n" not in str(failed.value)


def test_one_call_drains_on_spark(spark: SparkSession, service: ThreadedService, table: Path) -> None:
    """With a function of the user, or without one; a session on this machine may write to its disk."""
    service.append("q", numbered("q", 0, 100))
    assert drain(DrainOptions(service.url, str(table)), spark).rows == 100
    assert table_rows(table) == expected(q=100)
    service.append("q", numbered("q", 100, 120))
    other = str(table.with_name("other"))
    summary = drain(DrainOptions(service.url, other, transform=with_length), spark)
    assert (summary.records, summary.rows) == (20, 10)


def test_a_typed_table_by_day_is_continued(spark: SparkSession, service: ThreadedService, table: Path) -> None:
    """Its partitioning need not be named again; the day comes from the drain, or from the function."""
    service.append("q", [b'{"amount": 1}'])
    options = DrainOptions(service.url, str(table), schema="amount int", partition_by=("date",))
    assert drain(options, spark).rows == 1
    service.append("q", [b'{"amount": 2}'])
    assert drain(DrainOptions(service.url, str(table), schema="amount int"), spark).rows == 1
    found = DeltaTable(str(table)).to_pyarrow_table().sort_by("position").to_pylist()
    assert [row["amount"] for row in found] == [1, 2]
    assert all(row["date"] == row["timestamp"].date() for row in found)
