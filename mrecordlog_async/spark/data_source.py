"""The data source `mrecordlog`: its name, its schema, and the readers and writers that Spark requests.

Spark finds it through the module `pyspark_mrecordlog`, in every process that handles data sources, so importing this
module must be cheap: what needs pyarrow is imported when it is used.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from functools import cached_property

from mrecordlog_async.spark.pyspark_version import refuse_without_data_sources

refuse_without_data_sources()  # before the next import fails with the name of a module of pyspark

from pyspark.sql.datasource import (  # noqa: E402  # see above
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType  # noqa: E402

from mrecordlog_async.spark.options import OptionError, Options  # noqa: E402
from mrecordlog_async.support.gc_tuning import RARE_THRESHOLD, calm_collector  # noqa: E402

POSITIONS_SCHEMA = "server string, queue string, queue_id bigint, position bigint, timestamp timestamp"
SCHEMA = f"{POSITIONS_SCHEMA}, payload binary"


class RecordLogDataSource(DataSource):
    """The queues of one or many logs, as a table or a stream.

        spark.read.format("mrecordlog").option("servers", "http://127.0.0.1:8080").load()
        spark.readStream.format("mrecordlog").option("servers", "a=http://h1:8080,b=http://h2:8080").load()
        frame.write.format("mrecordlog").option("servers", "http://127.0.0.1:8080").mode("append").save()

    Rows read: server, queue, queue_id, position, timestamp, payload. Rows written: payload, queue (or the option
    `queue`) and, to be stored exactly once, position.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check Spark's *options*; `Options` lists them.

        Raises:
            OptionError: an option is unknown, malformed, or excluded by another one.
        """
        super().__init__(options)
        if options:  # for a table of its catalog, Spark requests the schema before it passes the options
            self.parsed  # noqa: B018  # refuses invalid options here rather than in a task

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "mrecordlog"

    @cached_property
    def parsed(self) -> Options:
        """The options, checked. Raises OptionError."""
        if not self.options:
            raise OptionError(
                "no options were passed: Spark drops those of CREATE TABLE when it reads from a Python data source. "
                "Use SELECT … FROM table WITH ('servers' = …), or CREATE VIEW … AS such a query"
            )
        return Options.parse(self.options)

    def schema(self) -> str:
        """Return the columns of a read, as Spark's DDL."""
        return SCHEMA if not self.options or self.parsed.payload else POSITIONS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table.

        Args:
            schema: the columns that the user gave, or those of `schema()`.

        Raises:
            OptionError: the options are for something else, or *schema* differs from `schema()`.
        """
        self.parsed.check_batch_read()
        self._check_schema(schema)
        from mrecordlog_async.spark.log_table import LogTable

        return LogTable(self.parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream. Arguments and errors are those of `reader`."""
        self.parsed.check_stream_read()
        self._check_schema(schema)
        from mrecordlog_async.spark.log_stream import stream_reader

        if _is_stream_process():
            calm_collector(RARE_THRESHOLD)
        return stream_reader(self.parsed)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a table.

        Raises:
            OptionError: the columns or the options do not describe a write, or *overwrite* is set: it is not supported.
        """
        self._check_write(schema, overwrite)
        from mrecordlog_async.spark.log_writer import LogWriter

        return LogWriter(self.parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream. Arguments and errors are those of `writer`."""
        self._check_write(schema, overwrite)
        from mrecordlog_async.spark.log_writer import LogStreamWriter

        return LogStreamWriter(self.parsed)

    def _check_schema(self, schema: StructType) -> None:
        """Raise OptionError if the user gave a schema other than the columns that are read."""
        given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        if given != self.schema():
            raise OptionError(
                f"this source reads ({self.schema()}), not ({given}); remove the schema, then select or cast columns"
            )

    def _check_write(self, schema: StructType, overwrite: bool) -> None:
        self.parsed.check_write()
        if overwrite:
            raise OptionError(
                "mode('overwrite') is not supported, because rows can only be appended to a log; use mode('append')"
            )
        from mrecordlog_async.spark.log_writer import check_columns

        check_columns({field.name: field.dataType.simpleString() for field in schema}, self.parsed.queue)


def _is_stream_process() -> bool:
    """Return whether Spark has started this process for the reader of one stream alone.

    Offsets and listings of thousands of queues are many small objects. With Python's own thresholds, a third of the
    CPU time of a trigger over 5,000 queues with new records was the collector's, which found nothing.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.sql.streaming.python_streaming_source_runner"
