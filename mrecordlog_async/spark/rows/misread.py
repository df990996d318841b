"""Finds values that Spark's `from_json` silently reads otherwise than the payload says, as SQL.

| in the payload | `from_json` | found by |
|---|---|---|
| 200 for a tinyint | -56 | reading it as a smallint |
| 1e39 for a float, 1e400 for a double | infinity | infinity, where no value in the payload says so |
| "12:00", "T12" for a timestamp | noon of the day when the drain runs | reading it as text, where one looks like it |
| 1700000000000000001 for a timestamp | any time: it overflows | reading it as text, where a number is as long |
| "12" for a date | 1970-01-13: a number of days | reading it as text, where a text is a number |
| a year outside of 1 to 9999 | a value that pandas and others cannot read | its year |
| a key of a map twice | a map that DuckDB and others cannot read | counting its keys |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Find = Callable[[str, DataType], str | None]
"""Returns SQL that is true if the value of this expression and type is misread; None if no value of the type is."""

TIME_ONLY = r"[\x00-\x20\x7f]*(T[0-9]|[0-9]{1,2}:)"
"""Regular expression: how a text begins that `from_json` takes for a time of today."""

OVERFLOWING = r"(9[2-9][0-9]{11}|[0-9]{14})"
"""Regular expression: how a number of seconds begins whose microseconds need more than 64 bits."""

DAYS = r"(?![+-]?[0-9]{4,7}$)[+-]?\p{IsDigit}+$"
"""Regular expression: a text that `from_json` takes for a number of days since 1970, and not for a year."""

INFINITE = r"""[:,\[]\s*"?[+-]?(Infinity|INF)"?\s*[,}\]]"""
"""Regular expression: a value of JSON that is infinity for `from_json`."""

YEAR = "a year is not one of 1 to 9999"

SECOND_LOOKS = (
    (TimestampType, rf'"{TIME_ONLY}|\\', f"^{TIME_ONLY}", "a timestamp has a time and no day"),
    (TimestampType, rf"[:,\[\s-]{OVERFLOWING}", f"^-?{OVERFLOWING}", YEAR),
    (DateType, r'"[+-]?\p{IsDigit}+"|\\', f"^{DAYS}", "a date is a number"),
)
"""Values of a type, read again as text: where a payload has the first expression (a text may hide in escapes, after a
backslash), a text that has the second one is misread."""

MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""


def read_as(kind: DataType) -> DataType:
    """Return the type to read JSON with instead of *kind*: a tinyint is read as a smallint, and is to be cast."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, read_as(each.dataType), metadata=each.metadata) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(read_as(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, read_as(kind.valueType))
    return ShortType() if isinstance(kind, ByteType) else kind


def misread(parsed: str, payload: str, schema: StructType) -> Iterator[tuple[str, str]]:
    """Yield pairs of SQL and what is wrong with a row for which it is true.

    Args:
        parsed: SQL of the struct that `from_json` returned, with the types of `read_as`.
        payload: SQL of the payload as text.
        schema: the columns.
    """
    too_large = "a number is too large for the type of its column"
    if (large := _anywhere(parsed, schema, _is_too_large)) is not None:
        yield large, too_large
    if (infinite := _anywhere(parsed, schema, _is_infinite)) is not None:
        yield f"({infinite}) and not {payload} rlike {_literal(INFINITE)}", too_large
    for read, may_have, has, why in SECOND_LOOKS:
        if (part := _texts_in(schema, read)) is not None:
            texts = f"from_json({payload}, {_literal(_ddl(part))})"
            # A second look at every payload would cost as much as the first.
            yield f"{payload} rlike {_literal(may_have)} and ({_anywhere(texts, part, _text_has(has))})", why
    if (far := _anywhere(parsed, schema, _is_far)) is not None:
        yield far, YEAR
    if (twice := _anywhere(parsed, schema, _has_key_twice)) is not None:
        yield twice, "a map has a key twice"


def _anywhere(at: str, kind: DataType, find: Find, depth: int = 0) -> str | None:
    """Return SQL that is true if *find* finds any value in the value *at*, which is of the type *kind*."""
    found = [find(at, kind)]
    element = f"e{depth}"
    if isinstance(kind, StructType):
        found += [_anywhere(f"{at}.{quoted(each.name)}", each.dataType, find, depth) for each in kind]
    elif isinstance(kind, ArrayType):
        inner = _anywhere(element, kind.elementType, find, depth + 1)
        found.append(inner and f"exists({at}, {element} -> {inner})")
    elif isinstance(kind, MapType):
        inner = _anywhere(element, kind.valueType, find, depth + 1)
        found.append(inner and f"exists(map_values({at}), {element} -> {inner})")
    return " or ".join(f"coalesce({each}, false)" for each in found if each is not None) or None


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _texts_in(kind: DataType, read: type[DataType]) -> DataType | None:
    """Return only the parts of *kind* that are of the type *read*, as strings; None if there are none."""
    if isinstance(kind, StructType):
        found = [(each.name, _texts_in(each.dataType, read)) for each in kind]
        fields = [StructField(name, part) for name, part in found if part is not None]
        return StructType(fields) if fields else None
    if isinstance(kind, ArrayType):
        element = _texts_in(kind.elementType, read)
        return None if element is None else ArrayType(element)
    if isinstance(kind, MapType):
        value = _texts_in(kind.valueType, read)
        return None if value is None else MapType(kind.keyType, value)
    return StringType() if isinstance(kind, read) else None


def _ddl(kind: DataType) -> str:
    """Return a type of `_texts_in` as SQL has it."""
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{quoted(each.name)}:{_ddl(each.dataType)}' for each in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    return f"map<string,{_ddl(kind.valueType)}>" if isinstance(kind, MapType) else "string"


def _is_too_large(at: str, kind: DataType) -> str | None:
    return f"{at} not between -128 and 127" if isinstance(kind, ByteType) else None


def _is_infinite(at: str, kind: DataType) -> str | None:
    return f"abs({at}) = double('infinity')" if isinstance(kind, FloatType | DoubleType) else None


def _text_has(pattern: str) -> Find:
    return lambda at, kind: f"{at} rlike {_literal(pattern)}" if isinstance(kind, StringType) else None


def _is_far(at: str, kind: DataType) -> str | None:
    if isinstance(kind, TimestampType):
        return f"unix_micros({at}) not between {MICROS[0]} and {MICROS[1]}"
    return f"year({at}) not between 1 and 9999" if isinstance(kind, DateType | TimestampNTZType) else None


def _has_key_twice(at: str, kind: DataType) -> str | None:
    return f"size({at}) <> size(array_distinct(map_keys({at})))" if isinstance(kind, MapType) else None
