"""The tasks' side of a Delta table: rows become Parquet files in its directory, durable before a task reports them.

The files of a partition are in a directory that names its values (`directory_of`), for readers that take them from
there. What counts are the values in the table's log, as text: queues `007` and `7` are two. Rows are cut where a
partition value changes, gathered, and written in row groups. What a task leaves when it fails belongs to no version of
the table.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mrecordlog_async.spark.output import WrittenFile
from mrecordlog_async.spark.table_files import TableFiles

FILE_BYTES = 128 << 20
"""A file is closed at this size."""

ROW_GROUP_BYTES = 32 << 20
BUFFERED_BYTES = 96 << 20
"""Bytes that a task gathers over all its files; above it, the largest part is written."""

OPEN_FILES_MAX = 64

STATED = ("server", "queue", "queue_id", "position", "timestamp")
"""Columns whose lowest and highest values the table's log states, so that readers skip files."""

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null in the name of a directory."""

NAME_BYTES_MAX = 255
"""Bytes that the name of a directory may have on nearly all file systems."""

Values = tuple[str | None, ...]
"""The values of the partition columns, as the table's log states them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows become files. has_ends: the table's log states the lowest and highest values of `STATED`."""

    partition_by: tuple[str, ...] = ()
    has_ends: bool = True


def is_stated(column: pa.Field) -> bool:
    """Return whether *column* is one of `STATED`, and of a type that a drain could give it."""
    kinds = pa.types
    checks = (kinds.is_string, kinds.is_large_string, kinds.is_integer, kinds.is_timestamp)
    return column.name in STATED and any(is_kind(column.type) for is_kind in checks)


def directory_of(values: Mapping[str, str | None]) -> str:
    """Return the directory of the files of a partition, as delta-rs spells it, with a slash at its end.

    It is the table's own, "", where a name would be too long, or the value is the word that stands for null. polars
    takes the values from here and not from the table's log.

    values: partition column → value.
    """
    # Readers of Delta take the empty string in a table's log for null.
    names = [f"{column}={quote(value, safe='') if value else NO_VALUE}" for column, value in values.items()]
    # delta-rs escapes no names of columns: those that need it name no directory that can be read.
    is_named = all(len(name) <= NAME_BYTES_MAX for name in names) and all(
        quote(each, safe="") == each for each in values
    )
    return "".join(f"{name}/" for name in names) if is_named and NO_VALUE not in values.values() else ""


def write_rows(
    place: TableFiles, layout: Layout, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> list[WrittenFile]:
    """Store rows as durable files; return what a commit needs of them. Raises OSError, NotSyncedError."""
    parts = _Partitions(place, layout, schema)
    try:
        for batch in batches:
            if batch.num_rows:
                for values, rows in _divided(batch, layout.partition_by):
                    parts.add(values, rows)
        return parts.finish()
    except BaseException as error:
        parts.abandon(error)
        raise


def _divided(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Cut *batch* where a value of *columns* changes; nothing is copied."""
    rest = batch.drop_columns(list(columns)) if columns else batch
    keys = [batch.column(name) for name in columns]
    first = 0
    for stop in [*_changes(keys, batch.num_rows), batch.num_rows]:
        yield tuple(_text(key[first].as_py()) for key in keys), rest.slice(first, stop - first)
        first = stop


def _changes(keys: Sequence[Any], rows: int) -> list[int]:
    differs = None
    for key in keys:
        before, after = key.slice(0, rows - 1), key.slice(1)
        jumps = pc.or_(pc.fill_null(pc.not_equal(before, after), False), pc.xor(pc.is_null(before), pc.is_null(after)))
        differs = jumps if differs is None else pc.or_(differs, jumps)
    return [] if differs is None else [index + 1 for index in pc.indices_nonzero(differs).to_pylist()]


def _text(value: Any) -> str | None:
    """Return a partition value as Delta spells it."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(slots=True)
class _Partition:
    """The rows of one partition that wait, and the file they go to."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    name: str = ""
    opened: AbstractContextManager[Any] | None = None
    file: Any = None
    writer: Any = None
    footers: list[Any] = field(default_factory=list)


class _Partitions:
    """All files of one task."""

    def __init__(self, place: TableFiles, layout: Layout, schema: pa.Schema) -> None:
        self._place, self._layout = place, layout
        self._schema = pa.schema([each for each in schema if each.name not in layout.partition_by])
        self._parts: dict[Values, _Partition] = {}
        self._bytes = 0
        self._files: list[WrittenFile] = []

    def add(self, values: Values, rows: pa.RecordBatch) -> None:
        part = self._parts.pop(values, None) or _Partition()
        self._parts[values] = part  # in the order of their last use
        part.waiting.append(rows)
        part.bytes += rows.nbytes
        self._bytes += rows.nbytes
        if part.bytes >= ROW_GROUP_BYTES:
            self._write(values)
        elif self._bytes >= BUFFERED_BYTES:
            # The largest one frees the most memory, and makes the fewest row groups.
            self._write(max(self._parts, key=lambda each: self._parts[each].bytes))

    def finish(self) -> list[WrittenFile]:
        while self._parts:  # a write may close the file of another one, or a full one of its own
            values = next(iter(self._parts))
            self._write(values)
            if values in self._parts:
                self._close(values)
        # After the last file: one sync of each directory makes the names of all of them durable.
        self._place.sync_names(each["path"] for each in self._files)
        return self._files

    def abandon(self, error: BaseException) -> None:
        """Close what is open, without a sync: no table names these files."""
        for part in self._parts.values():
            if part.writer is not None:
                part.writer.is_open = False  # otherwise it writes to the closed file when it is collected
            if part.opened is not None:
                with suppress(BaseException):
                    part.opened.__exit__(type(error), error, error.__traceback__)

    def _write(self, values: Values) -> None:
        part = self._parts[values]
        if not part.waiting:
            return
        if part.writer is None:
            opened = [each for each, other in self._parts.items() if other.writer is not None]
            if len(opened) >= OPEN_FILES_MAX:
                self._close(opened[0])  # the one that was not used for the longest time
            self._open(part, values)
        table = pa.Table.from_batches(part.waiting, self._schema)
        part.writer.write_table(table, row_group_size=len(table))
        self._bytes -= part.bytes
        part.waiting, part.bytes = [], 0
        if part.file.tell() >= FILE_BYTES:
            self._close(values)

    def _named(self, values: Values) -> dict[str, str | None]:
        return dict(zip(self._layout.partition_by, values, strict=True))

    def _open(self, part: _Partition, values: Values) -> None:
        part.name = f"{directory_of(self._named(values))}part-{uuid.uuid4()}.parquet"
        part.opened = self._place.new_file(part.name)
        part.file = part.opened.__enter__()
        # A dictionary of payloads would be given up after the first pages; its attempt costs time.
        known = [name for name in self._schema.names if name in ("server", "queue", "queue_id")]
        stated = [each.name for each in self._schema if is_stated(each)]
        part.writer = pq.ParquetWriter(
            part.file,
            self._schema,
            compression="snappy",
            use_dictionary=known,
            write_statistics=stated,
            metadata_collector=part.footers,
        )

    def _close(self, values: Values) -> None:
        part = self._parts[values]
        if part.writer is None or part.opened is None:
            return
        part.writer.close()  # writes the footer, so the size is known only now
        size = part.file.tell()
        part.opened.__exit__(None, None, None)
        self._files.append(
            {
                "path": part.name,
                "size": size,
                "rows": part.footers[-1].num_rows,
                "partition_values": {name: value or None for name, value in self._named(values).items()},
                "stats": statistics_of(part.footers[-1], has_ends=self._layout.has_ends),
            }
        )
        if part.waiting:
            self._parts[values] = _Partition(part.waiting, part.bytes)
        else:
            del self._parts[values]


def statistics_of(footer: Any, *, has_ends: bool) -> str:
    """Return the statistics of a file as Delta's JSON, from its footer."""
    found: dict[str, Any] = {"numRecords": footer.num_rows}
    if has_ends:
        ends = {name: each for name in STATED if (each := _ends_of(footer, name)) is not None}
        found["minValues"] = {name: _json(each[0]) for name, each in ends.items() if each[0] is not None}
        found["maxValues"] = {name: _json(each[1]) for name, each in ends.items() if each[1] is not None}
        found["nullCount"] = {name: each[2] for name, each in ends.items()}
    # Characters as they are: readers decode the escapes of one such as 𠮷 as another character, and skip the file.
    return json.dumps(found, ensure_ascii=False)


def _ends_of(footer: Any, name: str) -> tuple[Any, Any, int] | None:
    """Return lowest value, highest value and number of nulls of a column; None if the footer does not say."""
    low, high, nulls = list[Any](), list[Any](), 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        stated = columns[name].statistics if name in columns else None
        if stated is None or not stated.has_null_count:
            return None
        nulls += stated.null_count
        if stated.has_min_max:
            low.append(stated.min)
            high.append(stated.max)
        elif stated.null_count < group.num_rows:
            return None
    return min(low, default=None), max(high, default=None), nulls


def _json(value: Any) -> Any:
    return value if isinstance(value, str | int) else value.isoformat().replace("+00:00", "Z")
