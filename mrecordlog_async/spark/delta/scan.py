"""Reading a table in Spark without a jar: one task per file of the version that was the newest at the plan."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.upkeep import files_of, open_plain, open_table
from mrecordlog_async.spark.rows.row_batches import row_batches


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
        schema: pa.Schema = to_arrow_schema(self._schema, timezone="UTC")
        with self._place.opened(partition.path) as opened, pq.ParquetFile(opened) as file:
            for batch in row_batches(file):
                yield _completed(batch, partition.values, schema)


def _completed(batch: pa.RecordBatch, values: dict[str, str | None], schema: pa.Schema) -> pa.RecordBatch:
    """Add partition columns, and columns that are newer than the file."""
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
