"""Decides about a drain's table before the query starts: create it, add columns, or refuse it.

| found | what happens |
|---|---|
| no table, a new checkpoint | the table is created in a new or empty directory; a killed creation is continued |
| no table, but other files in its directory | refused |
| no table, a checkpoint with batches | refused |
| a table that another query writes, or no drain at all | refused |
| a table whose new checkpoint is not finished (`resume`) | refused |
| a column that the drain does not have in the table yet | added, null in the rows before |
| a column of another type, or another partitioning | refused |
| the table's last batch is the checkpoint's, or the one that runs next | accepted |
| a table that was restored to a version without its last batch | refused |
| a table with constraints, or with columns that are mapped, generated or NOT NULL | refused |
| a table that wants statistics of other columns | refused |
| anything else: one of them is older, copied or replaced | refused, with what it looks like |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from deltalake import DeltaTable, Field, Schema

from mrecordlog_async.spark.checkpoints.batches import COMMITS, OFFSETS, newest
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.lake import Lake, foreign_name
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.changes import (
    OWNER,
    RESUMING,
    refuse_mapped_columns,
    refuse_restored,
    refuse_rules,
    refuse_statistics,
)
from mrecordlog_async.spark.delta.content import ForeignBatchError, refuse_apart
from mrecordlog_async.spark.delta.place import LOG, TablePlace
from mrecordlog_async.spark.delta.recovery import repair_checkpoint, repair_table
from mrecordlog_async.spark.delta.table import NO_HOOKS, columns_of, create_table, explained


def repair(checkpoint: Lake, place: TablePlace) -> list[str]:
    """Repair what the last run left half written; return one sentence for each thing.

    Raises:
        SyncFailedError, WriteFailedError: the disk failed.
        TableError: the table's log is damaged.
    """
    said = repair_checkpoint(checkpoint)
    if place.path is not None:
        with closing(LocalLake(place.path)) as lake:
            said += repair_table(lake)
    return said


def refuse_inside(place: TablePlace, checkpoint: str) -> None:
    """Raise RefusedError if the directory *checkpoint* is inside the table."""
    if place.holds(checkpoint):
        raise RefusedError(
            f"the checkpoint {checkpoint} is inside the table {place.address}, where the vacuum of another program "
            "would delete its files: choose a directory next to the table"
        )


def prepare(
    checkpoint: Lake,
    place: TablePlace,
    schema: Schema,
    partition_by: Sequence[str],
    query: str,
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Make the table ready for the query, after `repair`; return one sentence for each thing that was changed.

    check: called before the table is created or changed. If it raises, there is no new table, and the next start may
    choose another layout.

    Raises:
        RefusedError: table, checkpoint and settings do not belong together.
        SyncFailedError, WriteFailedError: the disk failed.
        TableError: the table cannot be used: no rights, no credentials, no space, or a damaged log.
    """
    planned, committed = newest(checkpoint, OFFSETS), newest(checkpoint, COMMITS)

    def fitting() -> DeltaTable:
        table = DeltaTable(place.uri, storage_options=dict(place.storage_options))
        _refuse_foreign(table, place, checkpoint, query)
        _refuse_partitioning(table, place, partition_by)
        _refuse_older(table, place, query, planned, committed)
        refuse_mapped_columns(table, place.address)
        refuse_rules(table, place.address)
        refuse_statistics(table, place.address)
        return table

    with explained(place):
        table = fitting() if DeltaTable.is_deltatable(place.uri, dict(place.storage_options)) else None
    if table is None and planned >= 0:
        raise RefusedError(
            f"there is no table at {place.address}, but {checkpoint.path} has batches: name the table that this "
            "checkpoint belongs to, or use a new checkpoint, which stores everything that the log still holds"
        )
    if table is None:
        with explained(place):
            _refuse_used(place)
    check()
    with explained(place):
        if table is None:
            create_table(place, schema, partition_by, query)
            table = fitting()  # another drain may have created it at the same moment
        return _add_columns(table, place, schema)


def _refuse_used(place: TablePlace) -> None:
    """Raise RefusedError if the directory of a new table holds anything else.

    Readers and a vacuum of other programs take what lies in a table's directory for a part of it.
    """
    other = foreign_name(place.names(), {LOG})
    if other is not None:
        raise RefusedError(
            f"{place.address} holds {other!r} and no table: a drain creates its table in a new or empty directory. "
            "Name another path, or move what is there"
        )


def _refuse_foreign(table: DeltaTable, place: TablePlace, checkpoint: Lake, query: str) -> None:
    owner = table.metadata().configuration.get(OWNER)
    if owner is None:
        raise RefusedError(
            f"the table at {place.address} was not created by a drain: choose another path, or drain into a new table "
            "and merge that"
        )
    if owner.startswith(RESUMING):
        raise RefusedError(
            f"a `mrecordlog lake resume` of the table at {place.address} has not finished: run it again, and start the "
            "drain with the checkpoint that it makes"
        )
    if owner != query:
        raise RefusedError(
            f"the table at {place.address} was written with another checkpoint than {checkpoint.path}. Use the "
            "checkpoint that belongs to it. If it is lost, `mrecordlog lake resume` makes a new one that continues "
            "after what the table holds; a second drain needs a separate table"
        )


def _refuse_partitioning(table: DeltaTable, place: TablePlace, partition_by: Sequence[str]) -> None:
    known = table.metadata().partition_columns
    if known != list(partition_by):
        how = (
            f"partitioned by {','.join(known)}: set --partition-by to that"
            if known
            else ("not partitioned: leave out --partition-by")
        )
        raise RefusedError(f"{place.address} is {how}, or use a new table and a new checkpoint")


def _refuse_older(table: DeltaTable, place: TablePlace, query: str, planned: int, committed: int) -> None:
    try:
        refuse_apart(planned, committed, table.transaction_version(query), place.address)
        refuse_restored(table, place, query)
    except ForeignBatchError as error:
        raise RefusedError(str(error)) from None


def _add_columns(table: DeltaTable, place: TablePlace, schema: Schema) -> list[str]:
    known, given = columns_of(table.schema()), columns_of(schema)
    changed = next((name for name in known if name in given and known[name] != given[name]), None)
    if changed is not None:
        raise RefusedError(
            f"{place.address}: the column {changed!r} is {known[changed]} in the table and {given[changed]} in this "
            "drain; types cannot change. Choose another name for the column, or a new table and a new checkpoint"
        )
    missing = [name for name in known if name not in given]
    if missing:
        raise RefusedError(
            f"{place.address} has the columns {', '.join(missing)}, which this drain does not write: set --schema and "
            "--no-payload as before, or use a new table and a new checkpoint"
        )
    added = [each for each in schema.fields if each.name not in known]
    if not added:
        return []
    table.alter.add_columns(
        [Field(each.name, each.type, nullable=True) for each in added], post_commithook_properties=NO_HOOKS
    )
    place.sync()
    return [f"added to the table: {', '.join(each.name for each in added)}"]
