"""A table as Spark sees it: a streaming sink, whose tasks write files and whose driver commits them; and a reader.

Spark builds a new writer for each batch: in a process next to the driver's Java for `commit`, and in the processes
of the tasks for `write`. `abort` deletes nothing: an error out of `commit` may mean that the batch is stored.

The id of the query comes from Spark (`sql.streaming.queryId`), not from the options, so it is always the one in the
checkpoint that Spark really uses. A batch without rows has a task too, which reports nothing but the id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Field, Schema
from deltalake.schema import PrimitiveType
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.delta.content import QueueRows, TableError, merged
from mrecordlog_async.spark.delta.parts import Layout, NewFile, write_parts
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.table import DrainTable, NewBatch
from mrecordlog_async.spark.delta.upkeep import completed, files_of, open_plain, open_table
from mrecordlog_async.spark.rows.columns import REST
from mrecordlog_async.spark.rows.rest import Kind, with_rest
from mrecordlog_async.spark.rows.row_batches import row_batches
from mrecordlog_async.spark.rows.stream_writer import StreamArrowWriter
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES

FORMAT = "mrecordlog-delta"


@dataclass
class StoredRows(WriterCommitMessage):
    """Files that a task stored."""

    query: str
    files: list[NewFile] = field(default_factory=list)
    content: list[QueueRows] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Destination of rows, as options of Spark's writer carry it."""

    place: TablePlace  # the table
    layout: Layout = field(default_factory=Layout)  # how rows are divided into files
    # The checkpoint's directory, if it is on a disk of the driver: it is synced before each commit
    checkpoint: str | None = None
    # The struct of the columns parsed from payloads, as Spark's JSON, if payloads are not stored
    rest: str | None = None

    def encode(self) -> dict[str, str]:
        """Return the options of Spark's writer."""
        found = {
            "path": self.place.address,
            "partitionedBy": json.dumps(self.layout.partition_by),
            "targetFileBytes": str(self.layout.bytes_per_file),
            "storageSecrets": json.dumps(dict(self.place.storage_options)),  # Spark redacts options of such a name
        }
        given = {"syncedCheckpoint": self.checkpoint, "restOf": self.rest}
        return found | {name: text for name, text in given.items() if text is not None}

    @classmethod
    def decode(cls, options: Mapping[str, str]) -> SinkOptions:
        """Return what `encode` returned, from names in any case."""
        found = {name.lower(): text for name, text in options.items()}
        place = TablePlace(found["path"], json.loads(found.get("storagesecrets", "{}")))
        columns = tuple(json.loads(found.get("partitionedby", "[]")))
        layout = Layout(columns, int(found.get("targetfilebytes", TARGET_FILE_BYTES)))
        return cls(place, layout, found.get("syncedcheckpoint"), found.get("restof"))

    def columns(self, schema: str) -> Schema:
        """Return the table's columns for rows of *schema*, as Spark's JSON."""
        fields = Schema.from_json(schema).fields
        if self.rest is None:
            return Schema(fields)
        kept = [each for each in fields if each.name != "payload"]
        return Schema([*kept, Field(REST, PrimitiveType("string"), nullable=True)])


class DeltaSink(DataSource):
    """Stores a stream in a Delta table, each batch once. For the drain, which prepares the table.

    Spark can also read a table with it, without a jar:

        spark.dataSource.register(DeltaSink)
        spark.read.format("mrecordlog-delta").load("/lake/events")
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the table."""
        return schema_of(SinkOptions.decode(self.options).place)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table's newest version."""
        return DeltaReader(SinkOptions.decode(self.options).place, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:  # noqa: N802  # Spark's
        """Return the writer of a batch."""
        return DeltaWriter(SinkOptions.decode(self.options), schema)


_tables: dict[tuple[str, str], DrainTable] = {}
"""(table, query) → its state, where Spark uses a process for several batches."""


class DeltaWriter(StreamArrowWriter):
    """Writes batches of one query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema.json()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
        """Store the rows of one task as files that no version of the table names yet."""
        options = self._options
        rows = iterator
        if options.rest is not None:
            kind: Kind = json.loads(options.rest)
            rows = (with_rest(batch, kind, REST) for batch in iterator)
        files, content = write_parts(options.place, options.layout, arrow_schema(self._columns()), rows)
        return StoredRows(_query(), files, content)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make the files of all tasks part of the table, in one step, durably."""
        stored = [message for message in messages if isinstance(message, StoredRows)]
        queries = {each.query for each in stored}
        if len(queries) != 1:
            raise TableError(f"batch {batchId} has tasks of {len(queries)} queries; it was not stored. Start again")
        batch = NewBatch(
            queries.pop(),
            batchId,
            merged(rows for each in stored for rows in each.content),
            [file for each in stored for file in each.files],
        )
        place = self._options.place
        table = _tables.get((place.uri, batch.query))
        if table is None or table.place != place:  # a process outlives a query, whose token may have expired since
            table = _tables[place.uri, batch.query] = self._table(place)
        try:
            table.store(batch, self._columns(), self._options.layout.partition_by, self._sync_checkpoint)
        except BaseException:
            # The outcome is unknown: the next attempt must load the table instead of trusting what it remembers.
            _tables.clear()
            raise

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete nothing: the batch may be stored. What no version names is removed by a vacuum."""

    def _table(self, place: TablePlace) -> DrainTable:
        return DrainTable(place)

    def _columns(self) -> Schema:
        return self._options.columns(self._schema)

    def _sync_checkpoint(self) -> None:
        if self._options.checkpoint is not None:
            with closing(LocalLake(self._options.checkpoint)) as checkpoint:
                checkpoint.sync()


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a table as pyarrow has them."""
    return pa.schema(schema.to_arrow())


def _query() -> str:
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if not query:
        raise TableError(f"the format {FORMAT} is for streaming queries: it needs the id of the query")
    return query


def schema_of(place: TablePlace) -> StructType:
    """Return the columns of a table. Raises TableError if there is none."""
    return StructType.fromJson(json.loads(open_table(place).schema().to_json()))


class FilePartition(InputPartition):
    """A file, and the values of its partition columns."""

    def __init__(self, path: str, values: dict[str, str | None]) -> None:
        super().__init__(path)
        self.path, self.values = path, values


class DeltaReader(DataSourceReader):
    """Reads the newest version of a table."""

    def __init__(self, place: TablePlace, schema: StructType) -> None:
        self._place = place
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the files of the table; Spark would replace an empty list by one partition without a value."""
        found = [FilePartition(each.path, each.values) for each in files_of(open_plain(self._place))]
        return [*found] or [FilePartition("", {})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        assert isinstance(partition, FilePartition)
        if not partition.path:
            return
        schema: pa.Schema = to_arrow_schema(self._schema, **_IN_UTC)
        with self._place.opened(partition.path) as opened, pq.ParquetFile(opened) as file:
            for batch in row_batches(file):
                yield completed(batch, schema, partition.values)


_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""The argument for timestamps in UTC; without it, Spark before 4.2 has them in UTC."""
