"""What Spark's `from_json` reads otherwise than a payload says is marked; everything else is read as before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mrecordlog_async.spark.rows.columns import with_columns
from mrecordlog_async.spark.rows.misread import misread, read_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "t tinyint, i int, f float, d double, ts timestamp, ntz timestamp_ntz, day date, s string, m map<string,int>, "
    "n array<struct<x:tinyint>>, st struct<y:tinyint,q:float,`a'``b`:timestamp>, mt map<string,tinyint>, "
    "mm map<string,map<string,int>>, ats array<timestamp>, mts map<string,struct<at:timestamp,b:string>>"
)

LARGE = "a number is too large for the type of its column"
TIMELESS = "a timestamp has a time and no day"
YEAR = "a year is not one of 1 to 9999"
TWICE = "a map has a key twice"
DAYS = "a date is a number"

MISREAD = {
    '{"t":128}': LARGE,
    '{"t":255}': LARGE,
    '{"t":256}': LARGE,
    '{"t":-129}': LARGE,
    '{"n":[{"x":1},null,{"x":200}]}': LARGE,
    '{"st":{"y":200}}': LARGE,
    '{"mt":{"a":1,"b":200}}': LARGE,
    '{"f":1e39}': LARGE,
    '{"f":-3.5e38}': LARGE,
    '{"d":1e400}': LARGE,
    '{"d":1e400,"s":"Infinity Ltd"}': LARGE,
    '{"st":{"q":1e39}}': LARGE,
    '{"ts":"12:00"}': TIMELESS,
    '{"ts":"T1:2"}': TIMELESS,
    '{"ts":" 12:00:00.5"}': TIMELESS,
    r'{"ts":"\t12:00"}': TIMELESS,
    r'{"ts":"\u00312:00"}': TIMELESS,
    r'{"ts":"\u007f12:00"}': TIMELESS,
    '{"ts":"\x7f12:00"}': TIMELESS,
    '{"ts":"T12"}': TIMELESS,
    '{"ts":"T1 "}': TIMELESS,
    '{"ats":["2026-01-01","12:00"]}': TIMELESS,
    '{"st":{"a\'`b":"12:00"}}': TIMELESS,
    '{"mts":{"a":{"at":"12:00"}}}': TIMELESS,
    '{"ts":"0000-12-31T23:59:59Z"}': YEAR,
    '{"ts":"9999-12-31T23:59:59-01:00"}': YEAR,
    '{"ts":"-0001-01-01T00:00:00Z"}': YEAR,
    '{"ts":99999999999999}': YEAR,
    '{"ts":18446744073709552}': YEAR,
    '{"ts": 9223372036854775807 }': YEAR,
    '{"ts":-9223372036854775808}': YEAR,
    '{"ats":[5,1700000000000000001]}': YEAR,
    '{"mts":{"a":{"at":\n36893488147419103}}}': YEAR,
    '{"day":"1"}': DAYS,
    '{"day":"-99"}': DAYS,
    '{"day":"02026010"}': DAYS,
    '{"day":"٢٠٢٦"}': DAYS,
    r'{"day":"\u0031"}': DAYS,
    '{"ntz":"99999-01-01T00:00:00"}': YEAR,
    '{"day":"0000-01-01"}': YEAR,
    '{"day":"+99999-01-01"}': YEAR,
    '{"m":{"k":1,"k":2}}': TWICE,
    '{"mm":{"a":{"k":1,"k":1}}}': TWICE,
    '{"mt":{"a":1,"a":1}}': TWICE,
}
"""Payload → why it is misread."""

READ: dict[str, dict[str, Any]] = {
    '{"t":127,"i":1}': {"t": 127, "i": 1},
    '{"t":-128}': {"t": -128},
    '{"n":[{"x":-128},{"x":null},null]}': {"n": [{"x": -128}, {}, None]},
    '{"mt":{"a":5,"b":null}}': {"mt": {"a": 5, "b": None}},
    '{"st":{"y":127,"q":3.4028235e38}}': {"st": {"y": 127, "q": 3.4028235e38}},
    '{"f":"Infinity","d":"-Infinity"}': {"f": "Infinity", "d": "-Infinity"},
    '{"f":"+INF","d":"-INF"}': {"f": "Infinity", "d": "-Infinity"},
    '{"st":{"q":-INF},"d": +Infinity }': {"st": {"q": "-Infinity"}, "d": "Infinity"},
    '{"f":NaN}': {"f": "NaN"},
    '{"ts":"0001-01-01T00:00:00Z"}': {"ts": "0001-01-01T00:00:00.000Z"},
    '{"ts":"9999-12-31T23:59:59.999999Z","s":"12:00"}': {"ts": "9999-12-31T23:59:59.999Z", "s": "12:00"},
    '{"ts":"2026","day":"2026-01"}': {"ts": "2026-01-01T00:00:00.000Z", "day": "2026-01-01"},
    '{"ts":5,"12":1,"x":"1:2"}': {"ts": "1970-01-01T00:00:05.000Z"},
    '{"ts":253402300799,"x":1700000000000000001,"s":"12"}': {"ts": "9999-12-31T23:59:59.000Z", "s": "12"},
    '{"ts":"2026-11-26T12","s":"T1","day":"2026"}': {"ts": "2026-11-26T12:00:00.000Z", "s": "T1", "day": "2026-01-01"},
    '{"mts":{"a":{"b":"12:00"}}}': {"mts": {"a": {"b": "12:00"}}},
    r'{"s":"a \\ \"12:00\"","ts":"2026-01-01T12:00"}': {"s": 'a \\ "12:00"', "ts": "2026-01-01T12:00:00.000Z"},
    '{"ntz":"0001-01-01T00:00:00","day":"9999-12-31"}': {"ntz": "0001-01-01T00:00:00.000", "day": "9999-12-31"},
    '{"m":{"k":1,"j":2},"mm":{"a":{"k":1},"b":{"k":1}}}': {"m": {"k": 1, "j": 2}, "mm": {"a": {"k": 1}, "b": {"k": 1}}},
    '{"i":1,"i":2}': {"i": 2},
    "{}": {},
}
"""Payload → its columns, as Spark's JSON."""


def test_a_payload_that_is_misread_says_why(spark: SparkSession) -> None:
    """All of its columns are null; payloads next to it are read as they are."""
    payloads = [*MISREAD, *READ, '{"i":"x"}']
    rows = spark.createDataFrame([(text.encode(),) for text in payloads], "payload binary")
    found = (
        with_columns(rows, SCHEMA).selectExpr("error", "to_json(struct(* except(payload, error))) columns").collect()
    )
    assert dict(zip(MISREAD, (row.error for row in found), strict=False)) == MISREAD
    assert all(row.columns == "{}" for row in found[: len(MISREAD)])
    rest = found[len(MISREAD) :]
    assert dict(zip(READ, (json.loads(row.columns) for row in rest), strict=False)) == READ
    assert [row.error for row in rest[:-1]] == [None] * len(READ)
    assert "another type than in the schema" in rest[-1].error


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Kiritimati"])
def test_a_year_is_that_of_utc(spark: SparkSession, zone: str) -> None:
    """Whatever the time zone of the session, as everywhere in the table."""
    rows = spark.createDataFrame(
        [(b'{"ts":"0001-01-01T00:00:00Z"}',), (b'{"ts":"10000-01-01T00:00:00Z"}',)], "payload binary"
    )
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = with_columns(rows, "ts timestamp").select("error").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [row.error for row in found] == [None, YEAR]


def test_a_field_that_the_schema_calls_not_null_may_be_missing(spark: SparkSession) -> None:
    """As a column that is called so; comments in the schema change nothing, either."""
    payloads = ['{"a":{"b":1},"n":[{"x":1}]}', '{"a":{},"n":[{}]}', "{}", '{"n":[{"x":200}]}']
    rows = spark.createDataFrame([(text.encode(),) for text in payloads], "payload binary")
    ddl = "a struct<b:int not null comment 'b'>, n array<struct<x:tinyint not null>>, c int not null"
    found = with_columns(rows, ddl).select("a.b", "n.x", "c", "error").collect()
    assert [tuple(row) for row in found] == [
        (1, [1], None, None),
        (None, [None], None, None),
        (None, None, None, None),
        (None, None, None, LARGE),
    ]


def test_a_schema_that_is_never_misread_costs_nothing(spark: SparkSession) -> None:
    """Text and whole numbers are what they were before."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL("a string, b int, c array<struct<d: bigint>>, e decimal(5,2), f boolean")
    assert isinstance(schema, StructType)
    assert read_as(schema) == schema and not [*misread("parsed", "payload", schema)]
