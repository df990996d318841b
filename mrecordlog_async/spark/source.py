"""The data source `mrecordlog`, as Spark meets it: a name, a schema, and the readers and writers for what is asked.

Spark finds it by itself through the module `pyspark_mrecordlog`, in every process that speaks of data sources, so this
module must be light: what needs pyarrow is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from mrecordlog_async.spark.options import OptionError, Options

if TYPE_CHECKING:
    from mrecordlog_async.spark.directory import DirectoryReader
    from mrecordlog_async.spark.reader import LogReader

SCHEMA = "server string, queue string, position bigint, payload binary"
POSITIONS_SCHEMA = "server string, queue string, position bigint"


class RecordLogDataSource(DataSource):
    """Queues of one or many logs, as a table or a stream.

        spark.read.format("mrecordlog").option("servers", "http://127.0.0.1:8080").load()
        spark.read.format("mrecordlog").load("/var/lib/log")               # a directory, on this machine
        spark.readStream.format("mrecordlog").option("servers", "a=http://h1:8080,b=http://h2:8080").load()
        frame.write.format("mrecordlog").option("servers", "http://127.0.0.1:8080").mode("append").save()

    Rows read: server, queue, position, payload. Rows written: payload, queue (or the option `queue`) and, if they are
    to be stored exactly once, position.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if options:  # Spark asks a table of its catalog for its schema before it hands its options over
            self.parsed  # noqa: B018  # refuses what cannot be, here and not in a task

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "mrecordlog"

    @cached_property
    def parsed(self) -> Options:
        """The options, checked. Raises OptionError."""
        if not self.options:
            raise OptionError(
                "Spark handed no options over: it forgets those of CREATE TABLE when it reads from a Python source. "
                "Use CREATE TEMPORARY VIEW … USING mrecordlog OPTIONS (…), or SELECT … FROM table WITH ('servers' = …)"
            )
        return Options.parse(self.options)

    def schema(self) -> str:
        """Return the columns of a read."""
        return SCHEMA if not self.options or self.parsed.payload else POSITIONS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table."""
        self.parsed.check_batch_read()
        self._check_schema(schema)
        return self._batch_reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return what reads a stream."""
        self.parsed.check_stream_read()
        self._check_schema(schema)
        try:
            from mrecordlog_async.spark.stream import LogStreamReader
        except ImportError as error:
            if not str(error.name).startswith("pyspark"):
                raise
            raise OptionError(
                f"streaming reads need pyspark 4.2 or later, this is {pyspark.__version__}; batch reads and writes work"
            ) from error
        return LogStreamReader(self.parsed)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes a table."""
        self._check_write(schema, overwrite)
        from mrecordlog_async.spark.writer import LogWriter

        return LogWriter(self.parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return what writes a stream."""
        self._check_write(schema, overwrite)
        from mrecordlog_async.spark.writer import LogStreamWriter

        return LogStreamWriter(self.parsed)

    def _batch_reader(self) -> LogReader | DirectoryReader:
        if self.parsed.path is not None:
            from mrecordlog_async.spark.directory import DirectoryReader

            return DirectoryReader(self.parsed)
        from mrecordlog_async.spark.reader import LogReader, PushingLogReader

        return PushingLogReader(self.parsed) if self.parsed.pushdown else LogReader(self.parsed)

    def _check_schema(self, schema: StructType) -> None:
        """Refuse a schema of the user's that is not what is read."""
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        if given != self.schema():
            raise OptionError(
                f"this source reads ({self.schema()}); leave the schema out, and select or cast afterwards"
            )

    def _check_write(self, schema: StructType, overwrite: bool) -> None:
        self.parsed.check_write()
        if overwrite:
            raise OptionError("mode('overwrite') is refused: a log is appended to; truncate it first if that is meant")
        from mrecordlog_async.spark.writer import check_columns

        check_columns({field.name: field.dataType.simpleString() for field in schema}, self.parsed.queue)
