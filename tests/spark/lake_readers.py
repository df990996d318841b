"""Readers of Delta tables, called as users call them: which rows each of them finds with a filter.

A row is known by its payload, which differs in every row of a test.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Filter(NamedTuple):
    """A condition on one column; without a value: that it is null."""

    column: str
    compare: str = "="
    value: Any = None

    def holds(self, row: dict[str, Any]) -> bool:
        """Return whether a reader has to find *row*."""
        return bool(self.in_sql(row))

    def in_sql(self, row: dict[str, Any]) -> bool | None:
        """Return the condition's value for *row*: None if the column is null."""
        found = row[self.column]
        if self.value is None:
            return found is None
        return None if found is None else bool(OPERATORS[self.compare](found, self.value))

    def applied(self, column: Any, value: Any) -> Any:
        """Return the condition on *column* of a library of expressions, with the value as this library has it."""
        return OPERATORS[self.compare](column, value)

    @property
    def microseconds(self) -> int:
        """The value, a time, since 1970."""
        return int((self.value - EPOCH) // timedelta(microseconds=1))

    def sql(self, timestamp: str, binary: str) -> str:
        """Return the condition as SQL. timestamp, binary: how these are made of microseconds, and of hexadecimal."""
        if self.value is None:
            return f"{self.column} IS NULL"
        match self.value:
            case datetime():
                literal = timestamp.format(self.microseconds)
            case bytes():
                literal = binary.format(self.value.hex())
            case str():
                literal = "'" + self.value.replace("'", "''") + "'"
            case _:
                literal = str(self.value)
        return f"{self.column} {self.compare} {literal}"


@dataclass(frozen=True)
class Readers:
    """All readers of one version of a table in this process. hive: all files lie in directories of their partition."""

    path: str
    hive: bool = True

    @cached_property
    def _table(self) -> DeltaTable:
        return DeltaTable(self.path)

    @cached_property
    def _opened_dataset(self) -> Any:
        return self._table.to_pyarrow_dataset()

    @cached_property
    def _queries(self) -> QueryBuilder:
        return QueryBuilder().register("lake", self._table)

    @cached_property
    def _frame(self) -> Any:
        return self._table.to_pandas(types_mapper=pd.ArrowDtype)  # exact integers, and nulls that are not NaN

    def found(self, wanted: Filter) -> dict[str, list[bytes]]:
        """Return reader → the payloads of the rows that it finds, sorted."""
        readers = (self._dataset, self._sql, self._duckdb, self._polars, self._pandas)
        return {each.__name__.strip("_"): sorted(map(bytes, each(wanted))) for each in readers}

    def _dataset(self, wanted: Filter) -> list[bytes]:
        column = ds.field(wanted.column)
        condition = column.is_null() if wanted.value is None else wanted.applied(column, wanted.value)
        return list(self._opened_dataset.to_table(["payload"], filter=condition).column(0).to_pylist())

    def _sql(self, wanted: Filter) -> list[bytes]:
        condition = wanted.sql("to_timestamp_micros({})", "decode('{}', 'hex')")
        found = self._queries.execute(f"SELECT payload FROM lake WHERE {condition}")
        return list(pa.RecordBatchReader.from_stream(found).read_all().column(0).to_pylist())

    def _duckdb(self, wanted: Filter) -> list[bytes]:
        condition = wanted.sql("make_timestamptz({})", "from_hex('{}')")
        query = f"SELECT payload FROM delta_scan(?) WHERE {condition}"
        return [payload for (payload,) in with_delta().execute(query, [self.path]).fetchall()]

    def _polars(self, wanted: Filter) -> list[bytes]:
        column = pl.col(wanted.column)
        condition = column.is_null() if wanted.value is None else wanted.applied(column, wanted.value)
        frame = pl.scan_delta(self._table, use_pyarrow=not self.hive)
        return frame.filter(condition).select("payload").collect()["payload"].to_list()

    def _pandas(self, wanted: Filter) -> list[bytes]:
        column = self._frame[wanted.column]
        return list(
            self._frame[column.isna() if wanted.value is None else wanted.applied(column, wanted.value)].payload
        )


@cache
def with_delta() -> duckdb.DuckDBPyConnection:
    """Return a connection with DuckDB's own implementation of Delta, which shares no code with delta-rs' reader."""
    places = find_spec("duckdb_ext")
    assert places is not None and places.submodule_search_locations is not None
    extension = next(Path(places.submodule_search_locations[0]).rglob("delta.duckdb_extension"))
    connection = duckdb.connect()
    connection.execute(f"LOAD '{extension}'")
    return connection
