"""Describes a table for people and programs: sizes, the drain that writes it, rows that did not parse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from mrecordlog_async.spark.delta.changes import BROKEN, DELETION_VECTORS, OWNER
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.table import columns_of
from mrecordlog_async.spark.delta.upkeep import files_of, open_table, query_rows
from mrecordlog_async.spark.rows.columns import ERROR


@dataclass(frozen=True, slots=True)
class Shown:
    """A table."""

    version: int  # its newest version
    rows: int  # in that version
    files: int  # in that version
    bytes: int  # of these files
    partition_by: list[str]  # the columns by which it is partitioned
    partitions: int  # how many combinations of their values there are
    query: str | None  # the id of the drain's query; None if no drain writes it
    batch: int | None  # the last batch of that query
    columns: dict[str, str]  # column → type
    # The last version by which rows may be in the table twice, as far as its drain knows; None if none is
    broken: int | None


def show(place: TablePlace) -> Shown:
    """Describe the newest version of a table, from its log alone. Raises TableError if there is none."""
    table = open_table(place)
    files, query = files_of(table), table.metadata().configuration.get(OWNER)
    return Shown(
        table.version(),
        sum(each.rows for each in files) - _deleted(table),
        len(files),
        sum(each.size for each in files),
        table.metadata().partition_columns,
        len({tuple(each.values.items()) for each in files}),
        query,
        table.transaction_version(query) if query is not None else None,
        columns_of(table.schema()),
        table.transaction_version(query + BROKEN) if query is not None else None,
    )


def _deleted(table: DeltaTable) -> int:
    """Return how many rows of the files are deleted by deletion vectors."""
    if DELETION_VECTORS not in (table.protocol().reader_features or ()):
        return 0
    kept = pa.table(table.deletion_vectors()).column("selection_vector").combine_chunks().flatten()
    return len(kept) - (pc.sum(kept).as_py() or 0)


def bad_rows(place: TablePlace) -> Iterator[dict[str, Any]]:
    """Yield the rows whose payload did not parse. Raises TableError if the table has no such column."""
    table = open_table(place)
    if ERROR not in columns_of(table.schema()):
        raise TableError(f"{place.address} has no column {ERROR!r}: its drain does not parse payloads (--schema)")
    for batch in query_rows(table, f'select * from lake where "{ERROR}" is not null'):
        for row in batch.to_pylist():
            yield {name: row[name] for name in row if row[name] is not None}
