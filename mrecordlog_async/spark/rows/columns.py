"""Columns from JSON payloads, in the same rows and the same commit as the payloads.

Spark's `from_json` parses, so types and formats are those that its users know. A row whose payload does not parse, or
is read otherwise than it says (`misread`), keeps its place in the table: its columns are null, and `error` says why.
With the payload left out, what no column holds goes to `_rest` (`delta.rest`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mrecordlog_async.spark.checkpoints.identity import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ERROR = "error"
REST = "_rest"
TAKEN = {"server", "queue", "queue_id", "position", "timestamp", "date", "payload", ERROR, REST}
"""Columns that a table has anyway."""

_FOREIGN_TYPE = re.compile(r'"(?:type|elementType|keyType|valueType)":"(interval[^"]*|void|variant|time\([^"]*)"')
"""Types of Spark that delta-rs stores and no other reader of Delta tables knows: none can read the table then.

And variant, whose rows the tasks fail to write.
"""

_KEY = re.compile(r'"keyType":(?!"string")')
"""Maps that no JSON object can be."""

_NO_FIELDS = '"fields":[]'
"""In the JSON of a struct that Parquet cannot store: each batch would fail."""

_PARSED = "__parsed"
_CORRUPT = "__corrupt"

_TEXT = "cast(payload as string)"

_UNREAD = f"""
    when not is_valid_utf8({_TEXT}) then 'the payload is not UTF-8'
    when not ltrim(' \\t\\r\\n', {_TEXT}) like '{{%' then 'the payload is not a JSON object'
    when {_PARSED} is null or {_PARSED}.{_CORRUPT} is not null
         then 'the payload is not valid JSON, or a field has another type than in the schema'"""


def parsed_schema(ddl: str) -> StructType:
    """Read the columns that *ddl* describes; all of them may be null. Needs a Spark session. Raises RefusedError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise RefusedError(f"--schema {ddl!r} is not Spark's DDL: {str(error).strip().partition(chr(10))[0]}") from None
    if not isinstance(schema, StructType):
        raise RefusedError(f"--schema {ddl!r} names no columns: write 'customer string, amount bigint'")
    odd = next((each.name for each in schema if set(each.name) & set(" ,;{}()\n\t=")), None)
    if odd is not None:
        raise RefusedError(
            f"--schema: a Delta table has no column named {odd!r}: names have no blanks and none of ,;{{}}()="
        )
    found = _FOREIGN_TYPE.search(schema.json())
    foreign = found[1] if found else "struct<>" if any(_NO_FIELDS in each.json() for each in schema) else None
    if foreign is not None:
        raise RefusedError(f"--schema: a drain's table has no type {foreign!r}: use string, and cast it when you read")
    if _KEY.search(schema.json()):
        raise RefusedError("--schema: the keys of a JSON object are text: declare the map with keys of the type string")
    _refuse_names([each.name.lower() for each in schema])
    return schema.toNullable()  # as `from_json` has it, whatever the schema says of the fields of a struct


def _refuse_names(names: list[str]) -> None:
    """Raise RefusedError for columns that the table has anyway, or that are named twice."""
    taken = next((name for name in names if name in TAKEN or name.startswith("__")), None)
    if taken is not None:
        raise RefusedError(
            f"--schema: the name {taken!r} is reserved for the table itself; leave it out: a JSON field of this name "
            "stays in the payload (in _rest with --no-payload)"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RefusedError(f"--schema: the column {twice!r} is named twice (case is ignored): name it once")


def with_day(rows: DataFrame) -> DataFrame:
    """Add to *rows* the column `date`: the day of storing, in UTC, even in a session that has another time zone."""
    from pyspark.sql.functions import expr

    return rows.withColumn("date", expr("date_from_unix_date(cast(floor(unix_seconds(timestamp) / 86400) as int))"))


def with_columns(rows: DataFrame, ddl: str) -> DataFrame:
    """Add to *rows* the columns that *ddl* describes, from their payloads, and `error`. Raises RefusedError."""
    from pyspark.sql.functions import expr, from_json
    from pyspark.sql.types import StringType, StructField, StructType

    from mrecordlog_async.spark.rows.misread import misread, quoted, read_as

    schema = parsed_schema(ddl)
    whole = StructType([StructField(each.name, read_as(each.dataType)) for each in schema])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    found = rows.withColumn(_PARSED, from_json(expr(_TEXT), whole.add(_CORRUPT, StringType()), options))
    wrong = "".join(f"\n    when {each} then '{why}'" for each, why in misread(_PARSED, _TEXT, schema))
    found = found.withColumn(ERROR, expr(f"case {_UNREAD}{wrong} end"))
    columns = []
    for each in schema:
        value = expr(f"if({ERROR} is null, {_PARSED}.{quoted(each.name)}, null)")
        narrow = read_as(each.dataType) == each.dataType
        columns.append((value if narrow else value.try_cast(each.dataType)).alias(each.name))
    return found.select(*(name for name in rows.columns), *columns, ERROR)
