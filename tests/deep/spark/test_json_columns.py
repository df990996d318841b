"""Columns from JSON payloads: what parses, what is null, what `from_json` stores as something else, what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

from mrecordlog_async.spark.json_columns import ColumnsError, parsed_schema, with_day, with_json_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def parsed(spark: SparkSession, ddl: str, *payloads: bytes) -> list[tuple[Any, ...]]:
    """Return the columns of each payload."""
    rows = spark.createDataFrame([(at, each) for at, each in enumerate(payloads)], "position bigint, payload binary")
    found = with_json_columns(ddl)(rows)
    assert found.columns[:2] == ["position", "payload"]
    return [tuple(row)[2:] for row in found.orderBy("position").collect()]


def test_a_row_that_does_not_parse_has_nulls(spark: SparkSession) -> None:
    """So has a field that is missing or of another type; the payload stays."""
    assert parsed(
        spark,
        "a string, b int not null, `c` struct<d: bigint not null>",
        b'{"a": "x", "b": 1, "c": {"d": 2}}',
        b'{"a": "x"}',
        b'{"a": "x", "b": "y"}',
        b"not JSON",
        b"\xff\xfe",
        b"",
        b"7",
    ) == [("x", 1, (2,)), ("x", None, None), ("x", None, None), *[(None, None, None)] * 4]


def test_what_from_json_stores_as_something_else(spark: SparkSession) -> None:
    """The table of the manual."""
    small, single, double, price, at, day, text, last = parsed(
        spark,
        "t tinyint, f float, d double, p decimal(5,2), at timestamp, day date, s string, n int, m map<string, int>",
        b'{"t": 200}',
        b'{"f": 1e39}',
        b'{"d": 1e400}',
        b'{"p": 1.006}',
        b'{"at": 5}',
        b'{"day": "1"}',
        b'{"s": 1.50}',
        b'{"n": 1, "n": 2, "m": {"k": 1, "k": 2}}',
    )
    assert small[0] == 200 - 256
    assert single[1] == double[2] == float("inf")
    assert str(price[3]) == "1.01"
    assert at[4] == datetime(1970, 1, 1, 0, 0, 5)
    assert day[5] == date(1970, 1, 2)
    assert text[6] == "1.5"
    assert last[7] == 2 and last[8] == {"k": 2}
    ((today,),) = parsed(spark, "at timestamp", b'{"at": "12:00"}')
    assert today is not None and today.year == datetime.now(UTC).year


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("a nothing", "is not Spark's DDL"),
        ("int", "names no columns"),
        ("`a b` int", "has no column named 'a b'"),
        ("a variant", "has no type 'variant'"),
        ("a array<interval day>", "has no type 'interval day'"),
        ("a struct<>", "has no type 'struct<>'"),
        ("a map<int, int>", "keys of the type string"),
        ("payload string", "'payload' is reserved"),
        ("Queue string", "'queue' is reserved"),
        ("__a int", "'__a' is reserved"),
        ("a int, A int", "'a' is named twice"),
    ],
)
def test_columns_that_a_table_cannot_have_are_refused(spark: SparkSession, ddl: str, says: str) -> None:
    """In a sentence, before anything is created."""
    with pytest.raises(ColumnsError, match=says):
        parsed_schema(ddl)


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Pacific/Kiritimati"])
def test_the_day_of_storing_is_in_utc(spark: SparkSession, zone: str) -> None:
    """Whatever the zone of the session; a function may give another day."""

    def unchanged(rows: DataFrame) -> DataFrame:
        return rows

    def its_own(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import expr

        return rows.withColumn("date", expr("date'2000-01-01'"))

    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = spark.sql("select timestamp'2026-01-01T23:59:59Z' as timestamp")
        assert with_day(unchanged)(rows).collect()[0].date == date(2026, 1, 1)
        assert with_day(its_own)(rows).collect()[0].date == date(2000, 1, 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
