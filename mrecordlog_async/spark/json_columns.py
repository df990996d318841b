"""Functions between fetching and storing: columns from JSON payloads, the day of storing, and a function of the user.

Spark's `from_json` parses, so types and formats are those that its users know. The payload stays, and a row that does
not parse keeps its place: its columns are null.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import TYPE_CHECKING

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.runners import DATE, Change

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

TAKEN = {"server", "queue", "queue_id", "position", "timestamp", "date", "payload"}
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


class ColumnsError(RecordLogError, ValueError):
    """The columns or the function that a drain was given cannot be used; nothing was started."""


def with_json_columns(ddl: str) -> Change:
    """Return a function that adds the columns that *ddl* describes, from the payloads. It needs a Spark session.

    Raises:
        ColumnsError: *ddl* is not Spark's DDL, or a table cannot have these columns.
    """
    schema = parsed_schema(ddl)

    def change(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import col, from_json

        parsed = rows.withColumn(_PARSED, from_json(col("payload").cast("string"), schema))
        return parsed.select("*", f"{_PARSED}.*").drop(_PARSED)

    return change


def parsed_schema(ddl: str) -> StructType:
    """Read the columns that *ddl* describes; all of them may be null. Raises ColumnsError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ColumnsError(f"--schema {ddl!r} is not Spark's DDL: {str(error).strip().partition(chr(10))[0]}") from None
    if not isinstance(schema, StructType):
        raise ColumnsError(f"--schema {ddl!r} names no columns: write 'customer string, amount bigint'")
    odd = next((each.name for each in schema if set(each.name) & set(" ,;{}()\n\t=")), None)
    if odd is not None:
        raise ColumnsError(
            f"--schema: a Delta table has no column named {odd!r}: names have no blanks and none of ,;{{}}()="
        )
    found = _FOREIGN_TYPE.search(schema.json())
    foreign = found[1] if found else "struct<>" if any(_NO_FIELDS in each.json() for each in schema) else None
    if foreign is not None:
        raise ColumnsError(f"--schema: a drain's table has no type {foreign!r}: use string, and cast it when you read")
    if _KEY.search(schema.json()):
        raise ColumnsError("--schema: the keys of a JSON object are text: declare the map with keys of the type string")
    _refuse_names([each.name.lower() for each in schema])
    return schema.toNullable()  # as `from_json` has it, whatever the schema says of the fields of a struct


def _refuse_names(names: list[str]) -> None:
    """Raise ColumnsError for columns that the table has anyway, or that are named twice."""
    taken = next((name for name in names if name in TAKEN or name.startswith("__")), None)
    if taken is not None:
        raise ColumnsError(
            f"--schema: the name {taken!r} is reserved for the table itself; leave it out: a JSON field of this name "
            "stays in the payload"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ColumnsError(f"--schema: the column {twice!r} is named twice (case is ignored): name it once")


def with_day(change: Change) -> Change:
    """Return *change* with the column `date` after it, unless it gives one: the day of storing, in UTC.

    It is UTC even in a session that has another time zone. A function that leaves out `timestamp` must give the day.
    """

    def changed(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import expr

        found = change(rows)
        if DATE in found.columns:
            return found
        return found.withColumn(DATE, expr("date_from_unix_date(cast(floor(unix_seconds(timestamp) / 86400) as int))"))

    return changed


def function_named(text: str) -> Change:
    """Import a function, MODULE:FUNCTION, as `--transform` names it; modules may be in the working directory.

    Raises:
        ColumnsError: there is no such module, or no such function in it.
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ColumnsError(f"--transform {text!r}: write MODULE:FUNCTION, such as events:flattened")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ColumnsError(f"--transform {text}: its module cannot be imported: {error}") from error
        raise ColumnsError(f"--transform {text}: there is no module {error.name!r} here or on PYTHONPATH") from None
    except Exception as error:  # whatever the module does when it is imported
        raise ColumnsError(f"--transform {text}: its module cannot be imported: {error!r}") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise ColumnsError(f"--transform {text}: the module has no {name!r}") from None
    if not callable(found):
        raise ColumnsError(f"--transform {text}: {name!r} is not a function")
    change: Change = found
    return change
