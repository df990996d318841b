"""Keeps a table fast and small: fewer and larger files, no old rows.

Each change is one commit, written and synced before anything is deleted. It may run next to a drain and to readers: a
commit that another writer was faster than is prepared again, and files that a reader may still need stay for a while
(`vacuum`). delta-rs could rewrite files too, but would commit them without a sync: a power cut could then leave entries
that name lost files, and the drain's records would be in neither place.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.transaction import AddAction, RemoveAction

from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.changes import (
    column_without_statistics,
    refuse_deletion_vectors,
    refuse_mapped_columns,
)
from mrecordlog_async.spark.delta.content import TableError
from mrecordlog_async.spark.delta.entries import entry_name, entry_numbers, mark_of, sync_entries
from mrecordlog_async.spark.delta.parts import Layout, NewFile, directory_of, without_ends, write_files
from mrecordlog_async.spark.delta.place import LOG, TablePlace
from mrecordlog_async.spark.delta.recovery import repair_table
from mrecordlog_async.spark.delta.table import ATTEMPTS, columns_of, commit, sum_up
from mrecordlog_async.spark.rows.row_batches import row_batches
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES

logger = logging.getLogger("mrecordlog_async.spark")

LITERAL = "!$&'()+,-./:;=@_~"
"""Characters that delta-rs does not percent-encode in the path of an action, besides ASCII letters and digits."""


NAMES = ("server", "queue")
"""Columns whose values are names, of any characters."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the table's newest version."""

    path: str  # relative to the table's directory
    raw: str  # its path as the entry that added it spells it
    size: int  # in bytes
    rows: int  # how many it has
    values: dict[str, str | None]  # partition column → value
    newest: datetime | None  # the last `timestamp` in it; None if it is not known, or some rows have none
    added: int  # when, in milliseconds since 1970
    # Column of names → the lowest and highest one, as readers understand the table's log
    names: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def is_removable(self) -> bool:
        """Return whether a `remove` that delta-rs writes has the path of the `add`.

        Otherwise, the table would keep the file: readers compare the two as text. Delta-Spark writes `ä` as it is, and
        delta-rs as `%C3%A4`.
        """
        return quote(self.path, LITERAL) == self.raw


def files_of(table: DeltaTable) -> list[TableFile]:
    """Return the files of the newest version of *table*."""
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    columns = table.metadata().partition_columns
    return [_held(each, columns) for each in actions]


def _held(action: dict[str, Any], columns: list[str]) -> TableFile:
    values = {name: _text(action.get(f"partition.{name}")) for name in columns}
    return TableFile(
        unquote(action["path"]),
        action["path"],
        action["size_bytes"],
        action.get("num_records") or 0,
        values,
        None if action.get("null_count.timestamp") else action.get("max.timestamp"),
        action["modification_time"] or 0,
        {
            name: (action[f"min.{name}"], action[f"max.{name}"])
            for name in NAMES
            if action.get(f"max.{name}") is not None
        },
    )


def _text(value: Any) -> str | None:
    """Return the value of a partition column as an entry states it."""
    if isinstance(value, bytes):
        return value.decode()  # delta-rs keeps the text of binary values, which are escaped
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Replaced:
    """Number of files that a change removed and added."""

    removed: int = 0
    added: int = 0


def optimize(place: TablePlace, bytes_per_file: int = TARGET_FILE_BYTES, *, rewrite: bool = False) -> Replaced:
    """Rewrite small files of each partition into files of about *bytes_per_file*, and write a table checkpoint.

    Files that cannot be removed from the table stay as they are, with a warning. With *rewrite*, files of any size are
    rewritten where readers may miss rows: 0.2.0 put them elsewhere, and stated some names so that readers misread them.

    Raises:
        TableError: there is no table, it has deletion vectors or mapped columns, or other writers were faster each
            time. Files that were rewritten before stay so.
        SyncFailedError, WriteFailedError: the disk failed.
    """
    repair_log(place)
    table, done = open_plain(place), Replaced()
    files, schema = files_of(table), _file_schema(table)
    if kept := [each.raw for each in files if not each.is_removable]:
        logger.warning(
            "%s: delta-rs cannot remove files with paths like %r, so they stay as they are (%d); let the engine that "
            "wrote them optimize the table",
            place.address,
            kept[0],
            len(kept),
        )
    wants_others = column_without_statistics(table) is not None
    removable = [each for each in files if each.is_removable]
    outdated = {each.raw for each in removable if rewrite and _is_outdated(place, each)}
    for group in _groups(removable, bytes_per_file, outdated):
        layout, rows = Layout((), bytes_per_file), _rows(place, group, schema)
        added = write_files(place, layout, schema, rows, group[0].values)
        if wants_others:
            added = [without_ends(each) for each in added]
        if not _replace(place, group, added, changes_data=False):
            continue  # a file of the group has been removed since
        done = Replaced(done.removed + len(group), done.added + len(added))
    sum_up(open_table(place), place)
    return done


def _is_outdated(place: TablePlace, file: TableFile) -> bool:
    """Return whether readers may miss rows of *file*: by its directory, or by names that its entry states wrongly."""
    if file.path[: file.path.rfind("/") + 1] != directory_of(file.values):
        return True
    found: dict[str, list[str]] = {}
    with place.opened(file.path) as opened, pq.ParquetFile(opened) as parquet:
        for group in map(parquet.metadata.row_group, range(parquet.metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                statistics = column.statistics
                if column.path_in_schema in file.names and statistics is not None and statistics.has_min_max:
                    found.setdefault(column.path_in_schema, []).extend((statistics.min, statistics.max))
    return any((min(ends), max(ends)) != file.names[name] for name, ends in found.items())


def _groups(files: list[TableFile], bytes_per_file: int, outdated: set[str]) -> Iterator[list[TableFile]]:
    """Yield files of one partition that together make up one large file; in the order in which they were added.

    outdated: raw paths of files that are rewritten whatever their size.
    """
    partitions: dict[tuple[Any, ...], list[TableFile]] = {}
    for each in sorted(files, key=lambda each: each.added):
        if each.size < bytes_per_file * 3 // 4 or each.raw in outdated:
            partitions.setdefault(tuple(each.values.values()), []).append(each)
    for small in partitions.values():
        group, size = list[TableFile](), 0
        for each in small:
            group.append(each)
            size += each.size
            if size >= bytes_per_file:
                yield group
                group, size = [], 0
        if len(group) > 1 or any(each.raw in outdated for each in group):
            yield group


def _file_schema(table: DeltaTable) -> pa.Schema:
    columns = table.metadata().partition_columns
    return pa.schema([each for each in pa.schema(table.schema().to_arrow()) if each.name not in columns])


def _rows(place: TablePlace, files: list[TableFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for each in files:
        with place.opened(each.path) as opened, pq.ParquetFile(opened) as file:
            for batch in row_batches(file):
                yield completed(batch, schema)


def completed(
    batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None] = MappingProxyType({})
) -> pa.RecordBatch:
    """Return *batch* with columns that are newer than its file, and partition columns. values: those of the latter."""
    known = set(batch.schema.names)
    arrays = [
        batch.column(each.name) if each.name in known else _constant(values.get(each.name), each.type, len(batch))
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names).cast(schema)


def _constant(value: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, kind)
    return pa.repeat(pa.scalar(value, pa.string()).cast(kind), rows)


def drop_older(place: TablePlace, seconds: float, *, apply: bool = True) -> Replaced:
    """Remove the files whose rows were all stored more than *seconds* ago. Their space is given back by `vacuum`.

    Without *apply*, only count them.

    Raises:
        TableError: there is no table, it states no times, it has deletion vectors or mapped columns, an old file cannot
            be removed, or other writers were faster each time.
    """
    if apply:
        repair_log(place)
    table = open_plain(place)
    if columns_of(table.schema()).get("timestamp") != "timestamp":
        raise TableError(
            f"{place.address} has no column 'timestamp' of the type timestamp: it is not known how old its rows are"
        )
    before = datetime.fromtimestamp(max(0.0, time.time() - seconds), UTC)
    old = [each for each in files_of(table) if (newest := each.newest or _newest(place, each)) and newest < before]
    for each in old:
        if not each.is_removable:
            raise TableError(
                f"{each.raw!r} in {place.address} is old enough, but delta-rs cannot remove such a path; nothing was "
                "dropped. Delete the old rows with the engine that wrote the file"
            )
    if apply and old and not _replace(place, old, [], changes_data=True):
        return Replaced()  # a file has been removed since
    return Replaced(len(old))


def _newest(place: TablePlace, file: TableFile) -> datetime | None:
    """Return the last `timestamp` in a file as its footer states it; None if it does not, or some rows have none.

    For files of which the table's log does not state it, such as those that `optimize` wrote for a table that wants
    statistics of other columns.
    """
    found = list[datetime]()
    with place.opened(file.path) as opened, pq.ParquetFile(opened) as parquet:
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            columns = {each.path_in_schema: each for each in map(group.column, range(group.num_columns))}
            stated = columns["timestamp"].statistics if "timestamp" in columns else None
            if stated is None or not stated.has_min_max or stated.null_count != 0:
                return None
            found.append(stated.max)
    newest = max(found, default=None)
    return newest if newest is None or newest.tzinfo is not None else None  # otherwise, it is not known of which zone


def repair_log(place: TablePlace) -> None:
    """Set aside what a power cut left half written in the log of a table: a commit on top of it would keep it there.

    Raises SyncFailedError, TableError: the disk failed, or the log is damaged.
    """
    if place.path is None or not Path(place.path, LOG).is_dir():
        return
    with closing(LocalLake(place.path)) as lake:
        for line in repair_table(lake):
            logger.warning("%s: %s", place.address, line)


def open_table(place: TablePlace) -> DeltaTable:
    """Return the newest version of a table. Raises TableError if there is none."""
    options = dict(place.storage_options)
    if place.is_misread:
        raise TableError(
            f"delta-rs would look for the table somewhere else than {place.path}: move it to a path without % and \\"
        )
    if not DeltaTable.is_deltatable(place.uri, options):
        raise TableError(f"there is no Delta table at {place.address}")
    return DeltaTable(place.uri, storage_options=options)


def query_rows(table: DeltaTable, query: str) -> pa.RecordBatchReader:
    """Return the rows of *query*, which calls *table* "lake".

    A dataset that delta-rs makes for pyarrow knows no deletion vectors. It reads through a file system in Python: if a
    thread of pyarrow is still in it when the process ends, the process is aborted.
    """
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("lake", table).execute(query))


def open_plain(place: TablePlace) -> DeltaTable:
    """Return the newest version of a table whose files hold its rows and nothing else. Raises TableError."""
    table = open_table(place)
    refuse_deletion_vectors(table, place.address)
    refuse_mapped_columns(table, place.address)
    return table


def _replace(place: TablePlace, removed: list[TableFile], added: list[NewFile], *, changes_data: bool) -> bool:
    """Commit that *added* replaces *removed*, durably; return False if one of these is no longer in the table."""
    change, first = str(uuid.uuid4()), 0
    for attempt in range(ATTEMPTS + 1):
        table, now = open_plain(place), round(time.time() * 1_000)
        if attempt == 0:
            first = table.version()
        if not {each.raw for each in removed} <= {each.raw for each in files_of(table)}:
            return _is_committed(place, change, first, table.version())
        if attempt == ATTEMPTS:
            break
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.size, each.values, now, changes_data, each.statistics) for each in added
        ]
        actions += [RemoveAction(each.path, changes_data, now, each.size, each.values) for each in removed]
        what = "rows removed" if changes_data else "files rewritten"
        facts = {"upkeep": what, "actions": len(actions), "change": change}
        if commit(table, actions, table.metadata().partition_columns, facts, [], place.address):
            _sync_entries(place)
            return True
    raise TableError(f"other writers changed {place.address} {ATTEMPTS} times at the same time. Run it again")


def _is_committed(place: TablePlace, change: str, first: int, last: int) -> bool:
    """Return whether one of the entries after *first* up to *last* is that of *change*.

    If the response of an object store is lost, delta-rs sends the entry again, and takes its own for another writer's.
    """
    entries = (place.read(f"{LOG}/{entry_name(number)}") for number in range(last, first, -1))
    return any(mark_of(each or b"").get("change") == change for each in entries)


def _sync_entries(place: TablePlace) -> None:
    """Make the newest entries of the table's log durable, oldest first."""
    if place.path is not None:
        with closing(LocalLake(place.path)) as lake:
            sync_entries(lake, sorted(entry_numbers(place.path)))
