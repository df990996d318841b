"""Judges changes that other writers made to a drain's table: which make the drain, or the table's upkeep, stop.

Others may append, delete rows and rewrite files, one program at a time: delta-rs commits a compaction that was planned
before another one was committed, and then the table has the rows twice. A drain reports such a version
(`broken_after`).

A transaction that the table has says nothing about its rows once

1. the table was restored to a version without the last batch: Delta keeps the transactions of the versions in between,
2. it was created again in place, or resumed with another checkpoint: it has another owner, or none.

Some features of Delta change what a file means. What ignores them would lose rows, or bring back deleted ones. Others
are rules for rows, which every writer has to keep. And readers rely on the statistics that a table wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from mrecordlog_async.spark.delta.content import ADVICE, ForeignBatchError, TableError
from mrecordlog_async.spark.delta.entries import MARK, commit_info, entry_name, paths_of
from mrecordlog_async.spark.delta.parts import STATED, has_ends, stated
from mrecordlog_async.spark.delta.place import LOG, TablePlace
from mrecordlog_async.spark.rows.columns import ERROR, REST, TAKEN

OWNER = "mrecordlog.query"
"""The property of a table that names the query of the drain that writes it."""

DELETION_VECTORS = "deletionVectors"
"""The feature of tables whose files may hold deleted rows."""

CONSTRAINT = "delta.constraints."
"""Begins the property of a table that states a CHECK constraint; its name follows."""

NEVER_NULL = TAKEN - {ERROR, REST}
"""Columns that have a value in every row of a drain."""

RESUMING = "resume:"
"""Begins the owner of a table while a new checkpoint is made for it; the id of the new query follows."""


def refuse_other_owner(table: DeltaTable, query: str, address: str) -> None:
    """Raise ForeignBatchError unless *table* still belongs to *query*."""
    owner = table.metadata().configuration.get(OWNER)
    if owner != query:
        how = "belongs to another checkpoint now (lake resume)" if owner else "was created again by another program"
        raise ForeignBatchError(f"{address} {how}. {ADVICE}")


BROKEN = "/broken"
"""Appended to a query's id: the transaction whose version is the last one of the table that is broken."""

BROKEN_VERSION = (
    "version {} removes files that version {} does not have: two programs rewrote the same files at the same time, and "
    "rows may be in the table twice (with the same queue_id and position). Let one program at a time rewrite files, "
    "`lake optimize` or another one"
)


def broken_after(table: DeltaTable, place: TablePlace, last: int) -> list[int]:
    """Return the versions after *last* that remove a file which the version before did not have.

    Nobody prepares such an entry: other files were in the table when it was. Its rows may be in the table twice.
    """
    live = None
    found = list[int]()
    for number in range(last + 1, table.version() + 1):
        removed, added = paths_of(place.read(f"{LOG}/{entry_name(number)}") or b"")
        if live is None and not removed:
            continue
        if live is None:
            live = _files_at(place, number - 1)
            if live is None:
                return []
        if not removed <= live:
            found.append(number)
        live = (live - removed) | added
    return found


def _files_at(place: TablePlace, version: int) -> set[str] | None:
    """Return the paths of the files of a version of the table; None if its entries are deleted."""
    try:
        table = DeltaTable(place.uri, version, storage_options=dict(place.storage_options))
    except DeltaError:
        return None
    return set(pa.table(table.get_add_actions()).column("path").to_pylist())


def refuse_restored(table: DeltaTable, place: TablePlace, query: str) -> int | None:
    """Raise ForeignBatchError if *table* was restored to a version without its last batch of *query*.

    A restore to a version that has the batch takes back only what others did since.

    Returns:
        The version that the batch made; None if there is no batch, or its entry is deleted.
    """
    last = table.transaction_version(query)
    if last is None:
        return None
    number = table.version()
    state: int | None = number  # the version whose rows the table has; None if that is not known
    for number, info in _newest_first(table, place):
        mark = info.get(MARK)
        if state is None:
            break
        if number > state:
            continue  # a restore took it back
        if isinstance(mark, dict) and mark.get("query") == query:
            if mark.get("batch") == last:
                return number
            break
        if info.get("operation") == "RESTORE":
            state = _restored_to(info)
    else:
        if state == table.version() or (state is not None and 0 < number <= state + 1):
            return None  # the entry of the batch is deleted, and nothing older than the entries was restored
    raise ForeignBatchError(
        f"{place.address} was restored to a version without batch {last}, the last one of this query. {ADVICE}"
    )


def _newest_first(table: DeltaTable, place: TablePlace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the commit information of the entries of *table*, as far as they are kept.

    They are read by name: `DeltaTable.history` leaves out entries without commit information, and numbers the rest as
    if these did not exist.
    """
    for number in range(table.version(), -1, -1):
        content = place.read(f"{LOG}/{entry_name(number)}")
        if content is None:
            return
        yield number, commit_info(content)


def _restored_to(info: dict[str, Any]) -> int | None:
    """Return the version to which a table was restored; None if only a time is known."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        return int(info["operationParameters"]["version"])
    return None


def refuse_mapped_columns(table: DeltaTable, address: str) -> None:
    """Raise TableError if files of *table* name columns differently: those of a drain would have none of them."""
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise TableError(
            f"{address} maps the names of its columns (delta.columnMapping.mode is {mode!r}), and files written here "
            "would lack them: use a new table and a new checkpoint"
        )


def refuse_rules(table: DeltaTable, address: str) -> None:
    """Raise TableError if *table* has rules for its rows: delta-rs checks none when it adds files."""
    rule = next(_rules(table), None)
    if rule is not None:
        raise TableError(
            f"{address} {rule}: such rules are not checked here, and rows could break them. Let the table do without "
            "it, and start again; nothing was stored"
        )


def _rules(table: DeltaTable) -> Iterator[str]:
    """Yield what *table* demands of its rows."""
    for name, text in table.metadata().configuration.items():
        if name.startswith(CONSTRAINT):
            yield f"has a constraint {name.removeprefix(CONSTRAINT)!r} ({text})"
    for column in table.schema().fields:
        if "delta.invariants" in column.metadata:
            yield f"has an invariant on the column {column.name!r}"
        if (expression := column.metadata.get("delta.generationExpression")) is not None:
            yield f"generates the column {column.name!r} ({expression})"
        if not column.nullable and column.name not in NEVER_NULL:
            yield f"has NOT NULL on the column {column.name!r}"


def refuse_statistics(table: DeltaTable, address: str) -> None:
    """Raise TableError if *table* wants statistics that files written here lack: by these, delta-rs finds no row."""
    column = column_without_statistics(table)
    if column is not None:
        raise TableError(
            f"{address} wants statistics of the column {column!r}, which files written here do not have: a filter of "
            f"delta-rs would find none of their rows. Let the table set {STATED} to "
            f"{stated(table.metadata().partition_columns)}, and start again; nothing was stored"
        )


def column_without_statistics(table: DeltaTable) -> str | None:
    """Return a column of which *table* wants statistics, and files written here have none; None if there is none."""
    metadata = table.metadata()
    asked = metadata.configuration.get(STATED)
    wanted = None if asked is None else {name.strip(" `").partition(".")[0] for name in asked.split(",")}
    for column in pa.schema(table.schema().to_arrow()):
        is_stated = has_ends(column) or column.name in metadata.partition_columns
        has_none = not is_stated and not pa.types.is_binary(column.type)  # of which nobody has any
        if has_none and (wanted is None or column.name in wanted):
            return str(column.name)
    return None


def refuse_deletion_vectors(table: DeltaTable, address: str) -> None:
    """Raise TableError if files of *table* may have deletion vectors: they are read here with all of their rows."""
    if DELETION_VECTORS in (table.protocol().reader_features or ()):
        raise TableError(
            f"{address} has deletion vectors, without which deleted rows would come back. Let the engine that deleted "
            "the rows read, optimize and vacuum the table. The drain continues"
        )
