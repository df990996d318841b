"""The tasks' side: rows become Parquet files in the table's directory, durable before a task reports them.

The files of a partition lie in a directory that names its values (`directory_of`), for readers that take them from
there. What counts are the values in the table's log, as text: queues `007` and `7` are two. Rows are cut where a
partition value changes, gathered, and written in row groups; a file is closed at `bytes_per_file`, or when too many are
open. What a task leaves behind when it fails belongs to no version of the table, and is removed by a vacuum.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mrecordlog_async.spark.checkpoints.lake import WriteFailedError
from mrecordlog_async.spark.delta.content import QueueRows, merged, rows_of
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.reasons import reason_of
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES

ROW_GROUP_BYTES = 32 << 20
BUFFERED_BYTES = 96 << 20
"""Bytes that a task gathers over all its files; above it, the largest part is written."""

OPEN_FILES_MAX = 64

STATISTICS = ("server", "queue", "queue_id", "position", "timestamp")
"""Columns whose lowest and highest values the table's log states, so that readers skip files."""

STATED = "delta.dataSkippingStatsColumns"
"""The property of a table that names the columns that have statistics."""


def has_ends(column: pa.Field) -> bool:
    """Return whether *column* is one of `STATISTICS`, and of a type that a drain could give it.

    A table of another program may have a column of that name and any type.
    """
    kinds = pa.types
    checks = (kinds.is_string, kinds.is_large_string, kinds.is_integer, kinds.is_timestamp)
    return column.name in STATISTICS and any(is_kind(column.type) for is_kind in checks)


def stated(partition_by: Sequence[str]) -> str:
    """Return the columns that have statistics, as a table's property names them.

    Without the property, delta-rs takes a missing value for the lowest and highest one, and a filter finds no row.
    """
    return ",".join(name for name in STATISTICS if name not in partition_by)


NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Stands for null in the name of a directory."""

NAME_BYTES_MAX = 255
"""Bytes that the name of a directory may have on nearly all file systems."""

Values = tuple[str | None, ...]
"""The values of the partition columns, as the table's log states them."""


class NewFile(NamedTuple):
    """A file that a task wrote: what the commit adds to the table."""

    path: str  # relative to the table's directory
    size: int  # in bytes
    values: dict[str, str | None]  # partition column → value
    statistics: str  # as JSON, in Delta's form


def without_ends(file: NewFile) -> NewFile:
    """Return *file* without the lowest and highest values, for a table that wants those of other columns.

    Where any are stated, delta-rs takes those that are missing for null, and a filter finds no row.
    """
    return file._replace(statistics=json.dumps({"numRecords": json.loads(file.statistics)["numRecords"]}))


def directory_of(values: Mapping[str, str | None]) -> str:
    """Return the directory of the files of a partition, as delta-rs spells it, with a slash at its end.

    It is the table's own, "", where a name would be too long, or the value is the word that stands for null. Polars
    takes the values from here and not from the table's log.

    Args:
        values: partition column → value.
    """
    # Readers of Delta take the empty string in a table's log for null.
    names = [f"{column}={quote(value, safe='') if value else NO_VALUE}" for column, value in values.items()]
    is_named = all(len(name) <= NAME_BYTES_MAX for name in names) and all(map(_is_plain, values))
    return "".join(f"{name}/" for name in names) if is_named and NO_VALUE not in values.values() else ""


def _is_plain(column: str) -> bool:
    """Return whether delta-rs, which escapes no names of columns, names a directory after *column* that can be read."""
    return quote(column, safe="") == column


@dataclass(frozen=True, slots=True)
class Layout:
    """Division of rows into files."""

    partition_by: tuple[str, ...] = ()
    bytes_per_file: int = TARGET_FILE_BYTES


def write_parts(
    place: TablePlace, layout: Layout, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[list[NewFile], list[QueueRows]]:
    """Store *batches* as files of the table, durably; return the files, and what they hold by queue.

    Raises:
        WriteFailedError, SyncFailedError: a file could not be written.
    """
    content = list[QueueRows]()

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal content
        for batch in batches:
            if batch.num_rows:
                content = merged([*content, *rows_of(batch)])
            yield batch

    return write_files(place, layout, schema, counted()), content


def write_files(
    place: TablePlace,
    layout: Layout,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    partition: Mapping[str, str | None] | None = None,
) -> list[NewFile]:
    """Store *batches* as `write_parts` does, without counting what they hold.

    partition: column → value, if all rows are of one partition, and lack its columns.
    """
    parts = _Parts(place, layout, schema, partition or {})
    try:
        for batch in batches:
            if batch.num_rows:
                with _explained(place):
                    for values, rows in _divided(batch.cast(schema), layout.partition_by):
                        parts.add(values, rows)
        with _explained(place):
            return parts.finish()
    except BaseException as error:
        parts.abandon(error)
        raise


@contextmanager
def _explained(place: TablePlace) -> Iterator[None]:
    """Raise WriteFailedError for an error of the disk or the object store."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or reason_of(error)
        raise WriteFailedError(
            f"a file of the table {place.address} could not be written ({reason}); its batch was not "
            "stored. Free space, or repair the disk or the rights, and start again: the batch runs again"
        ) from error


def _divided(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Cut *batch* where a value of *columns* changes; nothing is copied."""
    rest = batch.drop_columns(list(columns)) if columns else batch
    keys = [batch.column(name) for name in columns]
    first = 0
    for stop in [*_changes(keys, batch.num_rows), batch.num_rows]:
        yield tuple(_text(key[first].as_py()) for key in keys), rest.slice(first, stop - first)
        first = stop


def _changes(keys: list[Any], rows: int) -> list[int]:
    differs = None
    for key in keys:
        before, after = key.slice(0, rows - 1), key.slice(1)
        jumps = pc.or_(pc.fill_null(pc.not_equal(before, after), False), pc.xor(pc.is_null(before), pc.is_null(after)))
        differs = jumps if differs is None else pc.or_(differs, jumps)
    return [] if differs is None else [index + 1 for index in pc.indices_nonzero(differs).to_pylist()]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


@dataclass(slots=True)
class _Part:
    """One partition of a task: rows that wait, and the file they go to."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    name: str = ""
    opened: AbstractContextManager[Any] | None = None
    writer: pq.ParquetWriter | None = None
    file: Any = None
    seen: dict[str, list[Any]] = field(default_factory=dict)


class _Parts:
    """All files of one task."""

    def __init__(
        self, place: TablePlace, layout: Layout, schema: pa.Schema, partition: Mapping[str, str | None]
    ) -> None:
        self._place = place
        self._layout = layout
        self._partition = partition
        self._schema = pa.schema([each for each in schema if each.name not in layout.partition_by])
        self._parts: dict[Values, _Part] = {}
        self._bytes = 0
        self._files: list[NewFile] = []

    def add(self, values: Values, rows: pa.RecordBatch) -> None:
        part = self._parts.pop(values, None) or _Part()
        self._parts[values] = part  # in the order of their last use
        part.waiting.append(rows)
        part.bytes += rows.nbytes
        self._bytes += rows.nbytes
        if part.bytes >= ROW_GROUP_BYTES:
            self._write(values)
        elif self._bytes >= BUFFERED_BYTES:
            # The largest one frees the most memory, and makes the fewest row groups.
            self._write(max(self._parts, key=lambda each: self._parts[each].bytes))

    def finish(self) -> list[NewFile]:
        for values in list(self._parts):
            self._write(values)
            self._close(values)
        # After the last file: one sync of each directory makes the names of all of them durable.
        if self._files:
            self._place.sync_names(each.path for each in self._files)
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
            self._make_room()
            self._open(part, values)
        assert part.writer is not None
        table = pa.Table.from_batches(part.waiting, self._schema)
        part.writer.write_table(table, row_group_size=len(table))
        _gather(part.seen, table)
        self._bytes -= part.bytes
        part.waiting, part.bytes = [], 0
        if part.file.tell() >= self._layout.bytes_per_file:
            self._close(values)

    def _make_room(self) -> None:
        opened = [values for values, part in self._parts.items() if part.writer is not None]
        if len(opened) >= OPEN_FILES_MAX:
            self._close(opened[0])  # the one that was not used for the longest time

    def _open(self, part: _Part, values: Values) -> None:
        part.name = f"{directory_of(self._named(values))}part-{uuid.uuid4()}.parquet"
        part.opened = self._place.new_file(part.name)
        part.file = part.opened.__enter__()
        # A dictionary of payloads would be given up after the first pages; its attempt costs time.
        known = [name for name in self._schema.names if name in ("server", "queue", "queue_id", "error")]
        part.writer = pq.ParquetWriter(
            part.file, self._schema, compression="snappy", use_dictionary=known, write_statistics=list(STATISTICS)
        )

    def _close(self, values: Values) -> None:
        part = self._parts.get(values)
        if part is None or part.writer is None or part.opened is None:
            return
        part.writer.close()  # writes the footer, so the size is known only now
        size = part.file.tell()
        part.opened.__exit__(None, None, None)
        self._files.append(NewFile(part.name, size, self._named(values), _statistics(part.seen)))
        rest = _Part(part.waiting, part.bytes)
        if rest.waiting:
            self._parts[values] = rest
        else:
            del self._parts[values]

    def _named(self, values: Values) -> dict[str, str | None]:
        return {**self._partition, **dict(zip(self._layout.partition_by, values, strict=True))}


def _gather(seen: dict[str, list[Any]], table: pa.Table) -> None:
    """Add the statistics of *table* to *seen*: column → [rows, nulls, lowest, highest]."""
    for name in ("", *[each.name for each in table.schema if has_ends(each)]):
        if not name:
            found = [table.num_rows, 0, None, None]
        else:
            column = table.column(name)
            ends = pc.min_max(column).as_py()
            found = [len(column), column.null_count, ends["min"], ends["max"]]
        known = seen.get(name)
        seen[name] = found if known is None else _joined(known, found)


def _joined(one: list[Any], two: list[Any]) -> list[Any]:
    low = [each for each in (one[2], two[2]) if each is not None]
    high = [each for each in (one[3], two[3]) if each is not None]
    return [one[0] + two[0], one[1] + two[1], min(low, default=None), max(high, default=None)]


def _statistics(seen: dict[str, list[Any]]) -> str:
    columns = {name: found for name, found in seen.items() if name}
    found = {
        "numRecords": seen[""][0],
        "minValues": {name: _json(found[2]) for name, found in columns.items() if found[2] is not None},
        "maxValues": {name: _json(found[3]) for name, found in columns.items() if found[3] is not None},
        "nullCount": {name: found[1] for name, found in columns.items()},
    }
    # Characters as they are: readers decode the escapes of one such as 𠮷 as another character, and skip the file.
    return json.dumps(found, ensure_ascii=False)


def _json(value: Any) -> Any:
    return value if isinstance(value, str | int) else value.isoformat().replace("+00:00", "Z")
