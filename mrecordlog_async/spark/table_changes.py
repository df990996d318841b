"""Judges what others did to a drain's table: which changes make the drain stop.

Others may append, delete rows and rewrite files. What a transaction of the table says about its rows is no longer true
once the table was restored to a version without the last batch, because Delta keeps the transactions of the versions in
between. Some features change what a file means: whoever ignores them loses rows. Others are rules for rows, which every
writer has to keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from mrecordlog_async.spark.output import OutputRefusedError
from mrecordlog_async.spark.parquet_writer import is_stated
from mrecordlog_async.spark.state import DrainState
from mrecordlog_async.spark.table_entries import entry_name, restored_to
from mrecordlog_async.spark.table_files import TableFiles

CONSTRAINT = "delta.constraints."
"""Begins the property of a table that states a CHECK constraint; its name follows."""

STATED_COLUMNS = "delta.dataSkippingStatsColumns"
"""The property of a table that names the columns whose ends its log states."""

TRANSACTIONS_EXPIRE = "delta.setTransactionRetentionDuration"

NEVER_NULL = frozenset(("server", "queue", "queue_id", "position", "payload"))
"""Columns that have a value in every row that no function has changed."""


def refuse_changes(table: DeltaTable, schema: pa.Schema, partition_by: tuple[str, ...], *, plain: bool) -> None:
    """Raise OutputRefusedError for what no rows of *schema* may be added to.

    plain: the rows are those of the logs; no function has changed them.
    """
    metadata = table.metadata()
    properties = metadata.configuration
    mode = properties.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise OutputRefusedError(
            f"the table maps the names of its columns (delta.columnMapping.mode is {mode!r}), and files written here "
            "would lack them: drain into a new table"
        )
    if TRANSACTIONS_EXPIRE in properties:
        raise OutputRefusedError(
            f"the table forgets transactions ({TRANSACTIONS_EXPIRE} is set), and with them how far its logs are "
            "stored: unset this property, and start again"
        )
    rule = next(_rules(table, schema, plain=plain), None)
    if rule is not None:
        raise OutputRefusedError(
            f"the table {rule}: such rules are not checked here, and rows could break them. Drop the rule, and start "
            "again; nothing was stored"
        )
    known, given = _types_of(table.schema()), _types_of(Schema.from_arrow(schema))
    for name, kind in given.items():
        if known.get(name) != kind:
            there = f"is {known[name]}" if name in known else "is missing"
            raise OutputRefusedError(f"the column {name!r} {there} in the table, and {kind} in the drain")
    if tuple(metadata.partition_columns) != partition_by:
        parts = ",".join(metadata.partition_columns) or "nothing"
        raise OutputRefusedError(
            f"the table is partitioned by {parts}, and the drain by {','.join(partition_by) or 'nothing'}"
        )


def _rules(table: DeltaTable, schema: pa.Schema, *, plain: bool) -> Iterator[str]:
    """Yield what *table* demands of its rows."""
    for name, text in table.metadata().configuration.items():
        if name.startswith(CONSTRAINT):
            yield f"has a constraint {name.removeprefix(CONSTRAINT)!r} ({text})"
    for column in table.schema().fields:
        if "delta.invariants" in column.metadata:
            yield f"has an invariant on the column {column.name!r}"
        if (expression := column.metadata.get("delta.generationExpression")) is not None:
            yield f"generates the column {column.name!r} ({expression})"
        is_kept = plain and column.name in NEVER_NULL and column.name in schema.names
        if not column.nullable and not is_kept:
            yield f"has NOT NULL on the column {column.name!r}"


def _types_of(schema: Schema) -> dict[str, str]:
    found = {}
    for each in schema.fields:
        kind = json.loads(each.type.to_json())
        found[each.name] = kind if isinstance(kind, str) else json.dumps(_nullable(kind), sort_keys=True)
    return found


def _nullable(kind: Any) -> Any:
    """Return a nested type without what it says of nulls and metadata, which rows from Arrow do not say."""
    if isinstance(kind, dict):
        dropped = ("containsNull", "valueContainsNull", "nullable", "metadata")
        return {name: _nullable(each) for name, each in kind.items() if name not in dropped}
    return [_nullable(each) for each in kind] if isinstance(kind, list) else kind


def states_ends(table: DeltaTable) -> bool:
    """Return whether files may state the ends of their columns as `parquet_writer` does.

    Where any are stated, delta-rs takes those that are missing for null, and a filter finds no row. So they are left
    out where the table wants those of other columns.
    """
    metadata = table.metadata()
    asked = metadata.configuration.get(STATED_COLUMNS)
    wanted = None if asked is None else {name.strip(" `").partition(".")[0] for name in asked.split(",")}
    for column in pa.schema(table.schema().to_arrow()):
        has_them = is_stated(column) or column.name in metadata.partition_columns or pa.types.is_binary(column.type)
        if not has_them and (wanted is None or column.name in wanted):
            return False
    return True


def refuse_restored(table: DeltaTable, files: TableFiles, state: DrainState, seen: int) -> bool:
    """Raise OutputRefusedError if *table* was restored to a version without the last batch of *state*.

    Return whether only the entries of the table's log show that it was not: others have removed or rewritten its rows.

    seen: a version up to which this is known not to have happened.
    """
    own, version, seen = state.rows_at, table.version(), max(state.onto + 1, seen)
    if not state.witness or version <= seen or has_file(table, state.witness):
        return False
    number, now = version, version  # now: the version whose rows the table has
    # What happened before version `seen` counts only if the table was restored to a version before that one.
    while now >= own and number > (seen if now >= seen else own):
        content = files.read(entry_name(number)) if number <= now else b""  # a restore took the newer ones back
        if content is None:
            raise OutputRefusedError(
                f"the entries of the table's log from version {number} on are deleted, and the rows of batch "
                f"{state.batch} were removed or rewritten since: they may have been taken back by a RESTORE. {ADVICE}"
            )
        back = restored_to(content)
        now = now if back is None else back
        number -= 1
    if now < own:
        raise OutputRefusedError(
            f"the table was restored to a version without batch {state.batch}, the last one of this drain. {ADVICE}"
        )
    return True


ADVICE = (
    "Drain into a new table; or accept with --allow-data-loss that rows are missing, and the drain continues after "
    "that batch"
)


def newest_file(table: DeltaTable) -> str:
    """Return the name of a file of the newest commit whose files the table still has; "" if it has none."""
    found = pa.table(table.get_add_actions()).to_pydict()
    newest = max(zip(found["modification_time"], found["path"], strict=True), default=(None, ""))
    return str(newest[1]).rpartition("/")[2]


def has_file(table: DeltaTable, name: str) -> bool:
    """Return whether the version of *table* has a file of this name, in any directory."""
    paths = pa.table(table.get_add_actions()).column("path")
    return bool(pc.any(pc.ends_with(paths, pattern=name)).as_py())
